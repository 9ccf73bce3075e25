"""Perplexity and bits per byte against sums done by hand; what cannot be evaluated."""

import csv
import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from gpt1_jax import GPT1, InputError, evaluate, load_pretrained, predict, save_pretrained
from gpt1_jax.model import ReadOut
from gpt1_jax.outcome import PartialPredictions
from gpt1_jax.tasks.predictions import read_predictions
from gpt1_jax.tasks.zero_shot_predict import zero_shot


def test_the_loss_of_a_text_is_the_mean_over_all_its_tokens(pretrained, tmp_path):
    text = "the film was warm and number 7 had a lovely cast .\nthe pace was dull .\n" * 5
    (tmp_path / "a.txt").write_text(text)
    result = evaluate.run(pretrained, {"source": f"text:{tmp_path}/a.txt", "batch_size": 8})

    model, params, tokenizer = load_pretrained(pretrained)
    ids = [*tokenizer.encode(text), *tokenizer.document_separator]
    n_ctx, nll = model.config.n_ctx, 0.0
    for start in range(0, len(ids) - 1, n_ctx - 1):
        window = ids[start : start + n_ctx]
        logits = np.asarray(model.apply({"params": params}, np.array([window])))[0].astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nll -= sum(log_p[i, token] for i, token in enumerate(window[1:]))
    assert result["loss"] == pytest.approx(nll / (len(ids) - 1), rel=1e-5)
    assert result["perplexity"] == pytest.approx(np.exp(result["loss"]))
    # Bytes are known for each document as a whole; here it is one, less its first token.
    n_bytes = len(text.encode()) * (len(ids) - 1) / len(ids)
    assert result["bits_per_byte"] == pytest.approx(nll / np.log(2) / n_bytes, rel=1e-3)


def test_a_pretrained_run_is_evaluated_on_its_own_heldout_text(pretrained):
    stored = json.loads((pretrained / "results.json").read_text())
    result = evaluate.run(pretrained, {"batch_size": 16})
    assert result["loss"] == pytest.approx(stored["heldout_loss"], rel=1e-5)


@pytest.mark.usefixtures("all_devices")
def test_what_cannot_be_evaluated(pretrained, corpus, tmp_path):
    with pytest.raises(InputError, match="without a task head"):
        evaluate.run(pretrained, {"data": (str(corpus / "test.csv"),)})
    with pytest.raises(InputError, match="batch_size=12"):
        evaluate.run(pretrained, {"batch_size": 12})
    with pytest.raises(InputError, match="not both"):
        evaluate.run(pretrained, {"source": "text:a.txt", "data": ("a.csv",)})
    with pytest.raises(InputError, match=r"splits=\['test'\] are the task's"):
        evaluate.run(pretrained, {"splits": ("test",), "data": ("a.csv",)})
    for asked in ({"splits": ("test",)}, {"predictions": str(tmp_path / "predictions")}):
        with pytest.raises(InputError, match=r"is a language model without a task head, of which a text is"):
            evaluate.run(pretrained, asked)
    assert not (tmp_path / "predictions").exists()
    model, params, tokenizer = load_pretrained(pretrained)
    save_pretrained(tmp_path / "saved", model, params, tokenizer)
    with pytest.raises(InputError, match="no held-out text of its own"):
        evaluate.run(tmp_path / "saved")
    with pytest.raises(InputError, match="no task head"):
        predict(model, params, tokenizer, ["good"])


def test_a_head_of_another_program_reads_the_last_token_of_the_bare_text(pretrained):
    language_model, params, tokenizer = load_pretrained(pretrained)
    config = dataclasses.replace(language_model.config, clf_bias=False)
    model = GPT1(config, ReadOut("classification", ("no", "perhaps", "yes"), read_at="last"))
    kernel = np.random.default_rng(0).normal(size=(config.n_embd, 3)).astype(np.float32)
    params = {**params, "clf": {"kernel": kernel}}
    texts = ["the film", "the music was warm and number 7"]
    labels, probabilities = predict(model, params, tokenizer, texts)
    for text, label, row in zip(texts, labels, probabilities, strict=True):
        h, _ = language_model.apply({"params": params}, np.array([tokenizer.encode(text)]), method=GPT1.features)
        logits = np.asarray(h)[0, -1] @ kernel
        np.testing.assert_allclose(row, np.exp(logits) / np.exp(logits).sum(), atol=1e-5)
        assert label == model.readout.labels[logits.argmax()]


def test_weights_of_another_program_are_evaluated_on_text(pretrained, tmp_path):
    model, params, tokenizer = load_pretrained(pretrained)
    (tmp_path / "a.txt").write_text("the film was warm and number 7 had a lovely cast .")
    source = {"source": f"text:{tmp_path}/a.txt", "batch_size": 8}
    for format in ("huggingface", "openai"):
        save_pretrained(tmp_path / format, model, params, tokenizer, format=format)
    expected = evaluate.run(pretrained, source)
    assert evaluate.run(tmp_path / "huggingface", source) == expected
    with pytest.raises(InputError, match="n_head"):
        evaluate.run(tmp_path / "openai", source)


def test_any_checkpoint_is_asked_zero_shot(pretrained, corpus, tmp_path):
    files = {"data": (str(corpus / "test.csv"),)}
    result = evaluate.run(pretrained, {"zero_shot": "sst2", **files})
    model, params, tokenizer = load_pretrained(pretrained)
    with open(corpus / "test.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    asked = zero_shot(model, params, tokenizer, [row["text"] for row in rows], "sst2")
    hits = [label == row["label"] for label, row in zip(asked.labels, rows, strict=True)]
    assert result == {"test": {"accuracy": np.mean(hits)}}

    # The threshold comes from other rows, and is part of the result.
    task = {"train": [str(corpus / "train.csv")], "labels": ["negative", "positive"], "metrics": ["accuracy"]}
    result = evaluate.run(pretrained, {"zero_shot": "cola", "task": task, **files})["test"]
    assert set(result) == {"accuracy", "threshold"}
    asked = zero_shot(
        *(model, params, tokenizer, [row["text"] for row in rows], "cola"),
        threshold=result["threshold"],
        labels=task["labels"],
    )
    hits = [label == row["label"] for label, row in zip(asked.labels, rows, strict=True)]
    assert result["accuracy"] == np.mean(hits)

    # Neither the task head of a fine-tuned model nor its special tokens play a part; its own task is the default.
    config, grown = dataclasses.replace(model.config, n_special=3), dict(params)
    readout = ReadOut("classification", ("negative", "positive"))
    fresh = GPT1(config, readout).init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    grown["clf"] = fresh["clf"]
    save_pretrained(tmp_path / "finetuned", GPT1(config, readout), grown, tokenizer)
    record = json.loads((tmp_path / "finetuned" / "config.json").read_text())
    record["config"] = {"task": {"test": list(files["data"]), "fields": {"text": "text"}, "metrics": ["accuracy"]}}
    (tmp_path / "finetuned" / "config.json").write_text(json.dumps(record))
    finetuned = evaluate.run(tmp_path / "finetuned", {"zero_shot": "sst2", "splits": ["test"]})
    assert finetuned == evaluate.run(tmp_path / "finetuned", {"zero_shot": "sst2", **files})
    assert finetuned == evaluate.run(pretrained, {"zero_shot": "sst2", **files})
    with pytest.raises(
        InputError, match="zero_shot='race' is for the kind 'multiple_choice', and the task 'custom' is"
    ):
        evaluate.run(tmp_path / "finetuned", {"zero_shot": "race", "splits": ["test"]})


def test_zero_shot_reads_winograd_schemas(pretrained, tmp_path):
    rows = [
        {
            "text": f"the film was dull because [it] had a {word} cast .",
            "options": ["the film", "the music"],
            "label": i,
        }
        for i, word in enumerate(["warm", "cold"])
    ]
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = evaluate.run(pretrained, {"zero_shot": "winograd", "data": [str(tmp_path / "w.jsonl")]})
    assert set(found["test"]) == {"accuracy"}
    (tmp_path / "a.csv").write_text("sentence,one,two,answer\nthe film was dull as _ was cold .,film,cast,1\n")
    task = {"fields": {"context": "sentence", "answers": "one,two"}, "label": "answer", "labels": ["1", "2"]}
    found = evaluate.run(pretrained, {"zero_shot": "winograd", "data": [str(tmp_path / "a.csv")], "task": task})
    assert set(found["test"]) == {"accuracy"}


def test_zero_shot_predictions_are_written_like_those_of_a_task_head(pretrained, corpus, tmp_path):
    data, out = [str(corpus / "test.csv")], tmp_path / "out"
    config = {"zero_shot": "cola", "data": data, "predictions": str(out)}
    config["task"] = {"train": [str(corpus / "train.csv")], "labels": ["negative", "positive"]}
    result = evaluate.run(pretrained, config)
    predictions = read_predictions(out / "predictions" / "test.jsonl")
    model, params, tokenizer = load_pretrained(pretrained)
    with open(data[0], encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    asked = zero_shot(
        *(model, params, tokenizer, [row["text"] for row in rows], "cola"),
        threshold=result["test"]["threshold"],
        labels=["negative", "positive"],
    )
    assert [p.label for p in predictions] == asked.labels
    assert [p.gold for p in predictions] == [row["label"] for row in rows]
    assert [p.id for p in predictions] == [f"test.csv:{i}" for i in range(2, len(rows) + 2)]
    stored = json.loads((out / "results.json").read_text())
    assert (stored["zero_shot"], stored["metrics"]) == ("cola", result)
    assert sum(map(sum, stored["reports"]["test"]["confusion"])) == len(rows)
    assert (out / "reports" / "confusion_test.png").exists()


def test_zero_shot_predictions_of_ragged_answers_and_without_labels(pretrained, tmp_path):
    rows = [{"question": "was it", "answers": ["warm", "cold", "dull"][:n], "label": 0} for n in (2, 3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {"zero_shot": "multiple_choice", "data": [str(tmp_path / "a.jsonl")], "predictions": str(tmp_path / "out")}
    config["task"] = {"labels": ["0", "1", "2", "3"], "fields": {"question": "question"}}
    assert set(evaluate.run(pretrained, config)["test"]) == {"accuracy"}
    first, second = read_predictions(tmp_path / "out" / "predictions" / "test.jsonl")
    assert (list(first.probabilities), list(second.probabilities)) == (["0", "1"], ["0", "1", "2"])
    assert first.gold == second.gold == "0"

    for row in rows:
        del row["label"]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert evaluate.run(pretrained, {**config, "unlabelled": True, "predictions": str(tmp_path / "new")}) == {}
    unlabelled = read_predictions(tmp_path / "new" / "predictions" / "test.jsonl")
    assert [(p.label, p.gold) for p in unlabelled] == [(first.label, None), (second.label, None)]
    assert not (tmp_path / "new" / "reports").exists()


def test_what_cannot_be_asked_zero_shot(pretrained, corpus, tmp_path):
    data = [str(corpus / "test.csv")]
    for config, message in [
        ({"zero_shot": "sst"}, "did you mean 'sst2'"),
        ({"zero_shot": "sst2"}, "give data, or a task"),
        ({"zero_shot": "sst2", "source": "text:a.txt"}, "one of the two is evaluated"),
        ({"label_words": {"a": "b"}}, "are for zero_shot, which is empty"),
        ({"zero_shot": "cola", "data": data}, "chooses its threshold on training rows"),
        (
            {"zero_shot": "sst2", "task": {"name": "sst2"}, "data": data},
            "the files of task.name='sst2' are in task.data",
        ),
        (
            {"zero_shot": "sst2", "task": {"test": data, "labels": ["a", "b"]}, "splits": ["test"]},
            "none for the label 'a'",
        ),
        (
            {"zero_shot": "sst2", "task": {"test": data}, "splits": []},
            "no validation split with labels; name some of 'test'",
        ),
        ({"zero_shot": "sst2", "task": {"test": data, "unlabelled": ["test"]}, "splits": ["test"]}, "has no labels"),
        ({"zero_shot": "{text} {label}", "data": data}, "labels: task 'custom' learns them from its training split"),
    ]:
        with pytest.raises(InputError, match=message):
            evaluate.run(pretrained, config)


def test_a_killed_evaluation_leaves_what_was_predicted(pretrained, corpus, tmp_path, monkeypatch):
    language_model, params, tokenizer = load_pretrained(pretrained)
    model = GPT1(language_model.config, ReadOut("classification", ("negative", "positive"), read_at="last"))
    kernel = np.random.default_rng(0).normal(size=(model.config.n_embd, 2)).astype(np.float32)
    params = {**params, "clf": {"kernel": kernel, "bias": np.zeros(2, np.float32)}}
    save_pretrained(tmp_path / "model", model, params, tokenizer)
    record = json.loads((tmp_path / "model" / "config.json").read_text())
    record["config"] = {"task": {"test": [str(corpus / "test.csv")], "fields": {"text": "text"}}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(record))
    out = tmp_path / "out"
    config = {"splits": ["test"], "predictions": str(out), "batch_size": 8}
    whole, partial = (out / "predictions" / f"test{suffix}.jsonl" for suffix in ("", ".partial"))

    write, calls = PartialPredictions.__call__, itertools.count(1)

    def killed_at_the_third(self, *batch):
        if next(calls) == 3:
            raise KeyboardInterrupt
        write(self, *batch)

    monkeypatch.setattr(PartialPredictions, "__call__", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(tmp_path / "model", config)
    known = read_predictions(partial)
    assert len(known) == 16  # two batches of three
    assert not whole.exists()

    monkeypatch.setattr(PartialPredictions, "__call__", write)
    evaluate.run(tmp_path / "model", config)
    assert not partial.exists()
    predictions = read_predictions(whole)
    assert [p.id for p in predictions] == [f"test.csv:{i}" for i in range(2, 21)]
    assert {p.id: p for p in known}.items() <= {p.id: p for p in predictions}.items()


def test_results_table_lines_up():
    table = evaluate.results_table({"test": {"accuracy": 0.5, "f1": 0.25}, "loss": 1.0})
    assert table.splitlines() == ["test accuracy  0.5000", "test f1        0.2500", "loss           1.0000"]


def test_what_predictions_and_unlabelled_data_need(pretrained, tmp_path):
    with pytest.raises(InputError, match="give both"):
        evaluate.run(pretrained, {"data": ("a.csv",), "unlabelled": True})
    with pytest.raises(InputError, match="is the workdir of a run"):
        evaluate.run(pretrained, {"predictions": str(pretrained)})
    with pytest.raises(InputError, match="source is a text; leave one of them out"):
        evaluate.run(pretrained, {"predictions": str(tmp_path / "out"), "source": "text:a.txt"})
    for task in ({"fields": {"text": "body"}}, {"name": "sst2", "data": "a"}):
        with pytest.raises(InputError, match="without zero_shot a task says how data are read, and is custom"):
            evaluate.run(pretrained, {"task": task})
    with pytest.raises(InputError, match="nowhere"):
        evaluate.run(tmp_path / "nowhere", {"data": ("a.csv",), "predictions": str(tmp_path / "out")})
    assert not (tmp_path / "out").exists()
    assert evaluate.results_table({}) == ""
