"""A task of scores from a CSV to its predictions: similarity of pairs, some of them without scores."""

import csv
import json

import numpy as np
import pytest
from helpers import on_all_devices

from gpt1_jax import InputError, evaluate, finetune, load_pretrained, predict, save_pretrained
from gpt1_jax.metrics import read_metrics
from gpt1_jax.model import ReadOut
from gpt1_jax.tasks.predictions import read_predictions

WORDS = ["wonderful", "moving", "clever", "warm", "boring", "dull", "clumsy", "cold", "film", "story", "music", "cast"]


def pairs(n, seed):
    """`n` rows (one, two, similarity): how many of three words the texts share, from 0.2 to 1 as people would say."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        words = rng.permutation(WORDS)
        shared = rng.integers(0, 4)
        one, two = list(words[:3]), [*words[:shared], *words[3 : 6 - shared]]
        score = min(max(0.2 + 0.25 * shared + rng.choice([-0.05, 0, 0.05]), 0.2), 1.0)
        rows.append((" ".join(rng.permutation(one)), " ".join(rng.permutation(two)), f"{score:.2f}"))
    return rows


def write(path, rows, header=("one", "two", "similarity")):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    return {
        "task": {
            "train": [write(folder / "train.csv", pairs(40, 0))],
            "validation": [write(folder / "dev.csv", pairs(13, 1))],
            "test": [write(folder / "test.csv", [row[:2] for row in pairs(9, 2)], ("one", "two"))],
            "unlabelled": ["test"],
            "kind": "similarity",
            "fields": {"text_a": "one", "text_b": "two"},
            "label": "similarity",
            "score_range": [0.2, 1.0],
            "score_points": 5,
        },
        "batch_size": 8,
        "epochs": 2,
        "optimizer": {"learning_rate": 3e-3, "schedule": "warmup_linear", "warmup_steps": None},
        "n_buckets": 1,
        "log_every": 1,
    }


@pytest.fixture(scope="module")
def finetuned(settings, pretrained, tmp_path_factory):
    """On all devices, over which 13 examples do not divide."""
    workdir = tmp_path_factory.mktemp("runs") / "scores"
    with on_all_devices():
        return finetune.run(settings, workdir, pretrained), workdir


def test_a_run_reports_correlations_and_leaves_scores(finetuned, settings):
    result, workdir = finetuned
    assert result.model.readout == ReadOut("similarity", score_range=(0.2, 1.0), score_points=5)
    assert set(result.metrics) == {"validation"}
    assert list(result.metrics["validation"]) == ["pearson", "spearman", "loss"]
    results = json.loads((workdir / "results.json").read_text())
    assert results["metrics"] == result.metrics
    assert results["reports"] == {}
    assert not (workdir / "reports").exists()

    lines = read_metrics(workdir)
    assert all(line["squared_error"] > 0 for line in lines if "task_loss" in line)
    by_epoch = [line["validation_pearson"] for line in lines if "validation_pearson" in line]
    assert result.metrics["validation"]["pearson"] == max(by_epoch)

    validation = read_predictions(workdir / "predictions" / "validation.jsonl")
    assert [p.gold for p in validation] == [float(row[2]) for row in pairs(13, 1)]
    scores = np.array([p.score for p in validation])
    assert ((scores >= 0.2) & (scores <= 1)).all()
    assert np.corrcoef(scores, [p.gold for p in validation])[0, 1] == pytest.approx(max(by_epoch), abs=1e-6)
    test = read_predictions(workdir / "predictions" / "test.jsonl")
    assert len(test) == 9
    assert {p.gold for p in test} == {None}


def test_scores_are_predicted_in_python_alike_for_both_orders(finetuned):
    _, workdir = finetuned
    model, params, tokenizer = load_pretrained(workdir)
    texts = [row[:2] for row in pairs(13, 1)]
    scores, probabilities = predict(model, params, tokenizer, [{"text_a": a, "text_b": b} for a, b in texts])
    assert all(type(score) is float for score in scores)
    assert probabilities.shape == (13, 0)
    stored = read_predictions(workdir / "predictions" / "validation.jsonl")
    np.testing.assert_allclose(scores, [p.score for p in stored], atol=1e-5)
    swapped, _ = predict(model, params, tokenizer, [{"text_a": b, "text_b": a} for a, b in texts])
    assert swapped == scores


def test_evaluation_of_the_run_and_of_other_rows(finetuned, settings, tmp_path):
    result, workdir = finetuned
    again = evaluate.run(workdir, {"batch_size": 16})
    assert again["validation"] == pytest.approx(result.metrics["validation"], abs=1e-5)

    with pytest.raises(InputError, match="'test' has no labels, so there are no metrics; give a folder"):
        evaluate.run(workdir, {"splits": ("test",)})
    later = evaluate.run(
        workdir, {"splits": ("train", "test"), "predictions": str(tmp_path / "later"), "batch_size": 8}
    )
    assert set(later) == {"train"}
    assert len(read_predictions(tmp_path / "later" / "predictions" / "train.jsonl")) == 40
    files = [folder / "predictions" / "test.jsonl" for folder in (workdir, tmp_path / "later")]
    at_once, after = ([p.score for p in read_predictions(file)] for file in files)
    np.testing.assert_allclose(after, at_once, atol=1e-5)

    other = write(tmp_path / "new.csv", [row[:2] for row in pairs(5, 3)], ("one", "two"))
    with pytest.raises(InputError, match=r"new\.csv:1: no column 'similarity'"):
        evaluate.run(workdir, {"data": (other,), "batch_size": 8})
    config = {"data": (other,), "unlabelled": True, "predictions": str(tmp_path / "out"), "batch_size": 8}
    assert evaluate.run(workdir, config) == {}
    predictions = read_predictions(tmp_path / "out" / "predictions" / "test.jsonl")
    assert [p.id for p in predictions] == [f"new.csv:{i}" for i in range(2, 7)]
    assert all(0.2 <= p.score <= 1 for p in predictions)


def test_a_score_read_out_is_saved_and_loaded(finetuned, tmp_path):
    model, params, tokenizer = load_pretrained(finetuned[1])
    save_pretrained(tmp_path / "saved", model, params, tokenizer)
    assert load_pretrained(tmp_path / "saved")[0].readout == model.readout
    with pytest.raises(InputError, match="use format='gpt1_jax'"):
        save_pretrained(tmp_path / "theirs", model, params, tokenizer, format="huggingface")


@pytest.mark.slow
def test_squared_error_goes_the_same_way(settings, pretrained, tmp_path):
    task = {**settings["task"], "score_loss": "squared", "score_points": None, "test": [], "unlabelled": []}
    result = finetune.run({**settings, "task": task, "epochs": 1, "predict_train": True}, tmp_path / "run", pretrained)
    assert result.params["clf"]["kernel"].shape[1] == 1
    assert set(result.metrics) == {"train", "validation"}
    train = read_predictions(tmp_path / "run" / "predictions" / "train.jsonl")
    assert [p.gold for p in train] == [float(row[2]) for row in pairs(40, 0)]
    assert np.mean([(p.score - p.gold) ** 2 for p in train]) / 0.8**2 == pytest.approx(
        result.metrics["train"]["loss"], rel=1e-4
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": {"score_range": [0.0, 0.5]}}, r"\.csv:\d+: .*not a number from 0 to 0\.5"),
        ({"task": {"score_loss": "hinge"}}, "score_loss: 'hinge' is not one of"),
        ({"task": {"score_range": []}}, "the task has classes"),
        ({"class_weights": ["balanced"]}, "the task has scores, not classes"),
    ],
)
def test_bad_input_is_refused(settings, pretrained, tmp_path, changes, message):
    config = {**settings, **changes, "task": {**settings["task"], **changes.get("task", {})}}
    with pytest.raises(InputError, match=message):
        finetune.run(config, tmp_path / "run", pretrained)
    assert not (tmp_path / "run" / "config.json").exists()
