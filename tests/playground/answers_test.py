"""One example of each kind of task, and how fields are called."""

import pytest

from gpt1_jax import InputError, predict, save_pretrained
from gpt1_jax.playground.answers import classify
from gpt1_jax.playground.models import load
from gpt1_jax.workdir import read_config, write_config

PAIR = {"premise": "a warm film", "hypothesis": "it is dull"}


def of_predict(loaded, example):
    labels, probabilities = predict(loaded.model, loaded.params, loaded.tokenizer, [example])
    return labels[0], probabilities[0].tolist()


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        ("classification", {"text": "a warm film 😀"}),
        ("entailment", PAIR),
        ("similarity", {"text_a": "a warm film", "text_b": "it is dull"}),
    ],
)
def test_classes_are_those_of_predict(tasks, kind, example):
    loaded = tasks(kind, ("no", "yes", "<b>"))
    answer = classify(loaded, example)
    label, probabilities = of_predict(loaded, example)
    assert list(answer.probabilities) == ["no", "yes", "<b>"]
    assert list(answer.probabilities.values()) == pytest.approx(probabilities, abs=1e-6)
    assert max(answer.probabilities, key=answer.probabilities.get) == label
    assert (answer.score, answer.n_cut) == (None, 0)


def test_any_number_of_answers(tasks):
    loaded = tasks("multiple_choice", ("A", "B", "C", "D"))
    for answers in (["it", "the film"], ["it", "the film", "it"], ["it", "it", "a", "b"]):
        typed = {"context": "a film", "question": "", "answers": "\n".join(["", *answers, " "])}
        found = classify(loaded, typed).probabilities
        expected = of_predict(loaded, {"context": "a film", "question": "", "answers": answers})[1]
        assert list(found) == [f"{name}: {text}" for name, text in zip("ABCD", answers, strict=False)]
        assert list(found.values()) == pytest.approx(expected[: len(answers)], abs=1e-6)
        assert sum(found.values()) == pytest.approx(1)
    with pytest.raises(InputError, match="5 answers, and labels for 4"):
        classify(loaded, {"context": "a", "answers": "a\nb\nc\nd\ne"})
    with pytest.raises(InputError, match="answers: one answer; a choice needs at least two"):
        classify(loaded, {"context": "a", "answers": "a"})
    with pytest.raises(InputError, match=r"^context and question are both empty"):
        classify(loaded, {"answers": "a\nb"})


def test_a_score(tasks):
    loaded = tasks("similarity", score_range=(0, 5), score_points=6)
    example = {"text_a": "a warm film", "text_b": "it is dull"}
    answer = classify(loaded, example)
    assert answer.probabilities == {}
    assert answer.score == pytest.approx(of_predict(loaded, example)[0], abs=1e-5)


def test_what_is_cut_is_told_and_what_is_missing_named(tasks):
    loaded = tasks("classification", ("no", "yes"))
    long = "a warm film , " * 40
    assert classify(loaded, {"text": long}).n_cut == len(loaded.tokenizer.encode(long)) - 30
    for text, message in (("", r"^text is empty; fill it in"), ("\ud800", "half of a surrogate pair")):
        with pytest.raises(InputError, match=message):
            classify(loaded, {"text": text})
    loaded.fields["text"] = "review"
    with pytest.raises(InputError, match=r"^review is empty; fill it in"):
        classify(loaded, {"text": " \n"})


def test_other_lengths_seldom_compile(tasks, monkeypatch):
    loaded = tasks("entailment", ("no", "yes"))
    classify(loaded, {"premise": "film", "hypothesis": "a"})
    monkeypatch.setattr(type(loaded.model), "task_logits", None)  # what is traced again calls it
    for n in range(2, 5):
        classify(loaded, {"premise": "film " * n, "hypothesis": "a"})
    with pytest.raises(TypeError):
        classify(loaded, {"premise": "film " * 20, "hypothesis": "a"})


def test_fields_have_the_names_of_the_task(reviews, tasks, language_model, tmp_path):
    (loaded,) = load([str(reviews)])
    assert loaded.fields == {"text": "review"}
    assert "fine-tuned for classification (negative, positive)" in loaded.describe()
    assert "on cpu:0" in loaded.describe() or "on TFRT_CPU_0" in loaded.describe()

    choice = tasks("multiple_choice", ("0", "1"))
    save_pretrained(tmp_path / "m", choice.model, choice.params, choice.tokenizer)
    (loaded,) = load([str(tmp_path / "m")])
    assert loaded.fields == {"context": "context", "question": "question", "answers": "answers"}
    stored = read_config(tmp_path / "m")
    task = {"kind": "multiple_choice", "train": ["gone.csv"], "labels": ["0", "1"]}
    fields = {"context": "start,middle", "answers": "ending1,ending2"}
    write_config(tmp_path / "m", {**stored, "config": {"task": {**task, "fields": fields}}})
    (loaded,) = load([str(tmp_path / "m")])
    assert loaded.fields == {"context": "start + middle", "answers": "ending1, ending2"}
    write_config(tmp_path / "m", {**stored, "config": {"task": {"name": "story_cloze", "data": "gone"}}})
    (loaded,) = load([str(tmp_path / "m")])
    assert loaded.fields["answers"] == "answers"


def test_what_cannot_be_loaded(reviews):
    for paths, message in (
        ([], "checkpoint is empty"),
        ([str(reviews), f"{reviews}/"], "given twice"),
        (["gone"], "not a workdir"),
    ):
        with pytest.raises(InputError, match=message):
            load(paths)
