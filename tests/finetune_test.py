"""Fine-tuning: L3 on sentences from a pre-trained model and from scratch, exact resume, evaluation, bad input."""

import json
import shutil

import jax
import numpy as np
import pytest

from gpt1_jax import InputError, evaluate, finetune, load_pretrained, predict
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.metrics import read_metrics
from gpt1_jax.tasks.predictions import read_predictions
from gpt1_jax.tokenizers.protocol import MARKER
from gpt1_jax.workdir import OUTPUTS


@pytest.fixture(scope="module")
def settings(corpus):
    def make(**changes):
        config = {
            "task": {
                "train": [str(corpus / "train.csv")],
                "validation": [str(corpus / "validation.csv")],
                "test": [str(corpus / "test.csv")],
            },
            "batch_size": 8,
            "epochs": 6,
            "optimizer": {"learning_rate": 1e-2, "schedule": "warmup_linear", "warmup_steps": None},
            "n_buckets": 2,
            "log_every": 1,
        }
        for name, value in changes.items():
            config[name] = {**config.get(name, {}), **value} if isinstance(value, dict) else value
        return config

    return make


@pytest.fixture(scope="module")
def finetuned(settings, pretrained, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "finetuned"
    return finetune.run(settings(), workdir, pretrained), workdir


def test_a_run_learns_and_leaves_its_results(finetuned):
    result, workdir = finetuned
    stored = json.loads((workdir / "results.json").read_text())
    assert stored["metrics"] == result.metrics
    assert set(result.metrics) == {"validation", "test"}
    assert result.metrics["test"]["accuracy"] > 0.9
    epochs = [m for m in read_metrics(workdir) if "validation_accuracy" in m]
    assert [m["step"] for m in epochs] == list(range(16, 97, 16))
    best = max(epochs, key=lambda m: (m["validation_accuracy"], -m["step"]))
    assert stored["best_step"] == best["step"]
    assert result.metrics["validation"]["accuracy"] == best["validation_accuracy"]
    steps = [m for m in read_metrics(workdir) if "task_loss" in m]
    for m in steps:
        assert m["loss"] == pytest.approx(m["task_loss"] + 0.5 * m["lm_loss"], rel=1e-5)
    assert steps[0]["learning_rate"] == 0


def test_predictions_cover_every_example_once(finetuned, corpus):
    result, workdir = finetuned
    predictions = read_predictions(workdir / "predictions" / "test.jsonl")
    assert [p.id for p in predictions] == [f"test.csv:{i}" for i in range(2, 21)]
    lines = (corpus / "test.csv").read_text().splitlines()[1:]
    right = sum(line.endswith("," + p.label) for line, p in zip(lines, predictions, strict=True))
    assert right / 19 == pytest.approx(result.metrics["test"]["accuracy"])
    assert all(line.endswith("," + p.gold) for line, p in zip(lines, predictions, strict=True))
    assert {path.name for path in (workdir / "predictions").iterdir()} == {"validation.jsonl", "test.jsonl"}
    assert {path.name for path in workdir.iterdir()} - {"config.json", ".lock"} <= {*OUTPUTS}
    assert len(list((workdir / "reports").glob("*.png"))) == 4


def test_predict_and_evaluate_agree_with_the_run(finetuned, corpus, tmp_path):
    result, workdir = finetuned
    model, params, tokenizer = load_pretrained(workdir)
    texts = [line.rsplit(",", 1)[0].strip('"') for line in (corpus / "test.csv").read_text().splitlines()[1:]]
    labels, probabilities = predict(model, params, tokenizer, texts)
    with pytest.raises(InputError, match="is a single example"):
        predict(model, params, tokenizer, "a text that is no list")
    with pytest.raises(InputError, match="is a generator; give a list of examples"):
        predict(model, params, tokenizer, (text for text in texts))
    stored = read_predictions(workdir / "predictions" / "test.jsonl")
    assert labels == [p.label for p in stored]
    np.testing.assert_allclose(probabilities[:, 0], [p.probabilities["negative"] for p in stored], atol=1e-5)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    assert set(evaluate.run(workdir, {"batch_size": 8})) == {"validation"}
    again = evaluate.run(workdir, {"splits": ("test",), "batch_size": 16})
    assert again["test"] == pytest.approx(result.metrics["test"], abs=1e-5)
    other = evaluate.run(workdir, {"data": (str(corpus / "test.csv"),), "batch_size": 8})
    assert other["test"]["accuracy"] == again["test"]["accuracy"]


def test_a_text_that_is_cut_is_told(finetuned, caplog):
    model, params, tokenizer = load_pretrained(finetuned[1])
    predict(model, params, tokenizer, ["a warm film ."])
    assert not caplog.records
    text = "a warm film and a dull one . " * 50
    n_cut = len(tokenizer.encode(text)) - (model.config.n_ctx - 2)
    predict(model, params, tokenizer, ["a warm film .", text])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    expected = f"1 of 2 examples did not fit into n_ctx={model.config.n_ctx}: cut, {n_cut} tokens lost"
    assert record.getMessage() == expected


@pytest.mark.parametrize("workdir", ["", " ", None, 5])
def test_what_is_no_path_is_refused(settings, workdir, pretrained):
    with pytest.raises(InputError, match=r"^workdir( is empty|=(None|5) must be a path)"):
        finetune.run(settings(), workdir, pretrained)
    with pytest.raises(InputError, match=r"^path( is empty|=(None|5) must be a path)"):
        load_pretrained(workdir)


def test_the_special_rows_are_appended_and_the_rest_is_the_pretrained_model(settings, pretrained, tmp_path):
    config = settings(epochs=1, optimizer={"learning_rate": 0.0})
    result = finetune.run(config, tmp_path / "run", pretrained)
    base, base_params, _ = load_pretrained(pretrained)
    v = base.config.vocab_size
    table = np.asarray(result.params["tokens_embed"]["embedding"])
    np.testing.assert_array_equal(table[:v], np.asarray(base_params["tokens_embed"]["embedding"])[:v])
    expected = np.random.RandomState(0).randn(3, base.config.n_embd) * 0.02
    np.testing.assert_array_equal(table[v : v + 3], expected.astype(np.float32))
    assert not table[v + 3 :].any()
    jax.tree.map(np.testing.assert_array_equal, dict(result.params)["h_0"], dict(base_params)["h_0"])
    assert result.model.config.n_special == 3


def test_fine_tuning_a_fine_tuned_model_keeps_its_special_rows(settings, finetuned, tmp_path):
    result = finetune.run(settings(epochs=1, optimizer={"learning_rate": 0.0}), tmp_path / "run", finetuned[1])
    v = result.model.config.vocab_size
    for params in (result.params, finetuned[0].params):
        assert np.asarray(params["tokens_embed"]["embedding"])[v : v + 3].any()
    np.testing.assert_array_equal(
        np.asarray(result.params["tokens_embed"]["embedding"]),
        np.asarray(finetuned[0].params["tokens_embed"]["embedding"]),
    )


def test_stopped_in_an_epoch_and_continued_is_the_same_run(settings, pretrained, finetuned, tmp_path):
    """Killed in the second epoch, it goes on from the end of the first: same losses, same parameters, no gap."""

    class Stop(Exception):
        pass

    from gpt1_jax import train

    original = train.TrainingProgress.advance

    def stop_at_13(self, step, **kwargs):
        original(self, step, **kwargs)
        if step == 21:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.TrainingProgress, "advance", stop_at_13)
        with pytest.raises(Stop):
            finetune.run(settings(), tmp_path / "run", pretrained)
    with Checkpointer(tmp_path / "run" / "checkpoints", read_only=True) as checkpointer:
        assert checkpointer.latest_step() == 16
    result = finetune.run(settings(), tmp_path / "run", pretrained)

    def curve(workdir):
        return [(m["step"], m.get("loss"), m.get("validation_loss")) for m in read_metrics(workdir)]

    assert curve(tmp_path / "run") == curve(finetuned[1])
    jax.tree.map(np.testing.assert_array_equal, result.params, finetuned[0].params)
    assert result.metrics == finetuned[0].metrics


@pytest.mark.slow
def test_overfits_sixteen_sentences(settings, corpus, tmp_path, pretrained):
    """Any labels can be learned by heart."""
    rows = (corpus / "train.csv").read_text().splitlines()[:17]
    labels = np.random.default_rng(0).permutation(["negative", "positive"] * 8)
    texts = [row.rsplit(",", 1)[0] for row in rows[1:]]
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "".join(f"{t},{label}\n" for t, label in zip(texts, labels, strict=True)))
    no_dropout = {f"{site}_pdrop": 0.0 for site in ("embd", "attn", "resid", "clf")}
    config = settings(
        task={"train": [str(path)], "validation": [str(path)], "test": []},
        model=no_dropout,
        epochs=40,
        lm_coef=0.0,
        log_every=10,
    )
    result = finetune.run(config, tmp_path / "run", pretrained)
    assert result.metrics["validation"]["accuracy"] == 1.0


@pytest.mark.slow  # finetune_recipes_test has one
def test_from_scratch_needs_a_tokenizer_and_takes_any_size(settings, pretrained, tmp_path):
    with pytest.raises(InputError, match=r"config\.tokenizer"):
        finetune.run(settings(), tmp_path / "none")
    small = {"n_ctx": 24, "n_embd": 16, "n_head": 2, "n_layer": 1}
    result = finetune.run(settings(tokenizer=str(pretrained), model=small, epochs=1), tmp_path / "scratch")
    assert result.model.config.n_ctx == 24
    assert result.model.config.n_special == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": {"train": ["/nowhere/train.csv"]}}, "/nowhere"),
        ({"task": {"train": []}}, "train"),
        ({"task": {"label": "sentiment"}}, "sentiment"),
        ({"task": {"fields": {"text": "review"}}}, "review"),
        ({"task": {"labels": ["negative", "neutral"]}}, "positive"),
        ({"task": {"name": "sst"}}, "sst"),
        ({"task": {"metrics": ["accuracy", "rouge"]}}, "rouge"),
        ({"task": {"splt_seed": 1}}, "split_seed"),
        ({"model": {"n_layer": 3}}, "n_layer=3 contradicts"),
        ({"model": {"n_ctx": 64}}, "n_ctx=64"),
        ({"batch_size": 12}, "batch_size=12"),
        ({"epochs": 0}, "epochs=0"),
        ({"lm_coef": -1.0}, "lm_coef"),
        ({"class_weights": ["positive=2"]}, "'negative' has none; give one for each label"),
        ({"adapt": {"source": "text:/nowhere/*.txt"}}, "^adapt\\.source='text:/nowhere"),
        ({"buckets": [8]}, "buckets"),
        ({"tokenizer": "other"}, "config.tokenizer='other' contradicts"),
        ({"task": {"quoting": "sometimes"}}, "quoting='sometimes'"),
    ],
)
@pytest.mark.usefixtures("all_devices")
def test_bad_input_is_refused_before_anything_is_trained(settings, pretrained, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        finetune.run(settings(**changes), tmp_path / "run", pretrained)
    assert not (tmp_path / "run" / "config.json").exists()  # the corrected command may use the same workdir


def test_the_tokenizer_of_the_checkpoints_has_to_be_the_models(finetuned, settings, pretrained, tmp_path):
    """As it is not where the model was pre-trained again, with other text, in the same workdir."""
    workdir = shutil.copytree(finetuned[1], tmp_path / "run")
    marker = workdir / "tokenizer" / MARKER
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"fingerprint": "f" * 64}))
    before = (workdir / "results.json").read_bytes()
    with pytest.raises(
        InputError, match=r"its tokenizer is not the one .*, was ffffffffffff\), so that .* another workdir"
    ):
        finetune.run(settings(), workdir, pretrained)
    assert (workdir / "results.json").read_bytes() == before


def test_other_rows_are_evaluated_whatever_the_run_held_out(settings, pretrained, corpus, tmp_path):
    task = {"validation": [], "test": [], "validation_fraction": 0.2, "test_fraction": 0.1}
    finetune.run(settings(task=task, epochs=1, n_buckets=1), tmp_path / "run", pretrained)
    results = evaluate.run(tmp_path / "run", {"data": (str(corpus / "test.csv"),), "batch_size": 8})
    assert set(results) == {"test"}

    # Other columns, as a zero-shot heuristic would be told them.
    (tmp_path / "other.csv").write_text((corpus / "test.csv").read_text().replace("text,label", "body,stars", 1))
    config = {"data": (str(tmp_path / "other.csv"),), "batch_size": 8}
    with pytest.raises(InputError, match=r"no column 'text'.*--field=text=COLUMN"):
        evaluate.run(tmp_path / "run", config)
    assert evaluate.run(tmp_path / "run", {**config, "task": {"fields": {"text": "body"}, "label": "stars"}}) == results


def test_a_run_from_before_there_were_scores_is_loaded_and_continued(settings, pretrained, finetuned, tmp_path):
    result, workdir = finetuned
    shutil.copytree(workdir, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    for name in ("score_range", "score_points"):
        del record["readout"][name]
    for name in ("class_weights", "predict_train"):
        del record["config"][name]
    for name in ("score_range", "score_loss", "score_points"):
        del record["config"]["task"][name]
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    assert load_pretrained(tmp_path / "run")[0].readout == result.model.readout
    assert evaluate.run(tmp_path / "run", {"batch_size": 8})["validation"] == pytest.approx(
        result.metrics["validation"], abs=1e-5
    )
    assert finetune.run(settings(), tmp_path / "run", pretrained).metrics == result.metrics


def test_a_class_of_great_weight_is_all_that_is_learned(settings, pretrained, tmp_path):
    weights = ["negative=1", "positive=10000"]
    finetune.run(settings(class_weights=weights, epochs=1, n_buckets=1), tmp_path / "run", pretrained)
    predictions = read_predictions(tmp_path / "run" / "predictions" / "validation.jsonl")
    assert {p.gold for p in predictions} == {"negative", "positive"}
    assert {p.label for p in predictions} == {"positive"}


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_a_seed_that_numpy_would_not_take_is_refused(settings, tmp_path, seed):
    with pytest.raises(InputError, match=f"seed={seed}"):
        finetune.run(settings(seed=seed), tmp_path / "run")
