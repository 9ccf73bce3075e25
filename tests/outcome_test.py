"""What a finished run leaves: predictions with gold labels, results.json, pictures, submission files."""

import dataclasses
import json

import numpy as np
import pytest

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.model import ReadOut
from gpt1_jax.outcome import paper_scores, write_outcome
from gpt1_jax.tasks.predictions import read_predictions
from gpt1_jax.tasks.spec import Source, Submission, TaskSpec


def encoded(name, labels, n_streams=1):
    n = len(labels)
    n_streams = np.broadcast_to(n_streams, n)
    starts = np.concatenate([[0], np.cumsum(n_streams)])
    return EncodedSplit(
        name=name,
        tokens=np.zeros(starts[-1], np.int32),
        stream_starts=np.arange(starts[-1] + 1),
        example_starts=starts,
        labels=np.array(labels, np.int32),
        ids=tuple(str(i) for i in range(n)),
        n_ctx=8,
        n_truncated=1,
        n_cut=3,
    )


PAIRS = TaskSpec(
    name="pairs",
    kind="entailment",
    sources={
        "train": Source(("train.tsv",)),
        "validation": Source(("dev.tsv",)),
        "test": Source(("test.tsv",), labelled=False),
    },
    fields={"premise": "a", "hypothesis": "b"},
    labels=("no", "yes"),
    metrics=("accuracy", "f1"),
    submission=Submission({"test": "RTE.tsv"}, ("not_entailment", "entailment")),
    paper={"test": {"accuracy": 56.0}, "validation": {"accuracy": 61.5}},
)
PROBABILITIES = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.6, 0.4]])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    metrics = write_outcome(
        workdir,
        PAIRS,
        ReadOut("entailment", ("no", "yes")),
        {"validation": encoded("validation", [0, 1, 0, 0]), "test": encoded("test", [-1] * 4)},
        {"validation": (PROBABILITIES, 0.5), "test": (PROBABILITIES, float("nan"))},
        best_step=7,
    )
    return metrics, workdir


def test_every_split_has_predictions_and_the_labelled_ones_their_gold_labels(pairs):
    _, workdir = pairs
    validation = read_predictions(workdir / "predictions" / "validation.jsonl")
    assert [(p.id, p.label, p.gold) for p in validation] == [
        ("0", "no", "no"),
        ("1", "yes", "yes"),
        ("2", "yes", "no"),
        ("3", "no", "no"),
    ]
    assert validation[0].probabilities == {"no": 0.9, "yes": 0.1}
    assert {p.gold for p in read_predictions(workdir / "predictions" / "test.jsonl")} == {None}


def test_results_are_metrics_the_papers_scores_and_a_report(pairs):
    metrics, workdir = pairs
    assert metrics == {"validation": {"accuracy": 0.75, "f1": pytest.approx(2 / 3), "loss": 0.5}}
    results = json.loads((workdir / "results.json").read_text(), parse_constant=pytest.fail)
    assert results["best_step"] == 7
    assert results["metrics"] == metrics
    assert results["paper"] == {
        "test": {"accuracy": {"paper": 56.0, "ours": None}},  # labels are secret
        "validation": {"accuracy": {"paper": 61.5, "ours": 75.0}},
    }
    assert results["splits"]["test"] == {"examples": 4, "truncated_examples": 1, "truncated_tokens": 3}
    assert set(results["reports"]) == {"validation"}
    assert results["reports"]["validation"]["confusion"] == [[2, 1], [0, 1]]
    assert results["reports"]["validation"]["per_class"]["no"]["support"] == 3


def test_pictures_are_of_labelled_splits_and_the_submission_of_the_test_set(pairs):
    _, workdir = pairs
    assert {path.name for path in (workdir / "reports").iterdir()} == {
        "classes_validation.txt",
        "confusion_validation.png",
        "reliability_validation.png",
    }
    content = (workdir / "submission" / "RTE.tsv").read_text()
    words = ("not_entailment", "entailment", "entailment", "not_entailment")
    assert content == "index\tprediction\n" + "".join(f"{i}\t{word}\n" for i, word in enumerate(words))


def test_constant_predictions_are_warned_of_by_name_unless_they_have_been(tmp_path, caplog):
    predicted = {"validation": (np.array([[0.9, 0.1]] * 2), 0.5)}
    split = dataclasses.replace(encoded("validation", [0, 1]), label_names=("no", "yes"))
    arguments = (tmp_path, PAIRS, ReadOut("entailment", ("no", "yes")), {"validation": split}, predicted)
    write_outcome(*arguments, warned=("validation",))
    assert "every prediction" not in caplog.text
    write_outcome(*arguments)
    assert "split validation: metrics of 2 examples: every prediction is 'no'" in caplog.text


def test_examples_with_fewer_answers_have_fewer_probabilities(tmp_path):
    spec = TaskSpec(
        name="choice",
        kind="multiple_choice",
        sources={"validation": Source(("dev.jsonl",))},
        fields={"question": "q", "answers": "a"},
        labels=("A", "B", "C", "D"),
    )
    # No example has a fourth answer.
    probabilities = np.array([[0.2, 0.8, 0.0], [0.1, 0.2, 0.7]])
    write_outcome(
        tmp_path,
        spec,
        ReadOut("multiple_choice", spec.labels),
        {"validation": encoded("validation", [1, 0], n_streams=[2, 3])},
        {"validation": (probabilities, 0.1)},
    )
    first, second = read_predictions(tmp_path / "predictions" / "validation.jsonl")
    assert first.probabilities == {"A": 0.2, "B": 0.8}
    assert second.probabilities == {"A": 0.1, "B": 0.2, "C": 0.7}
    assert (first.gold, second.gold) == ("B", "A")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["metrics"]["validation"] == {"accuracy": 0.5, "loss": 0.1}
    assert "paper" not in results
    assert not (tmp_path / "submission").exists()


def test_the_log_has_our_scores_beside_the_papers(tmp_path, caplog):
    readout, splits = ReadOut("entailment", ("no", "yes")), {"validation": encoded("validation", [0, 1, 0, 0])}
    with caplog.at_level("INFO", logger="absl"):
        write_outcome(tmp_path, PAIRS, readout, splits, {"validation": (PROBABILITIES, 0.5)})
    assert "split validation, accuracy: 75.0 %; the paper has 61.5 %" in caplog.text
    assert "split test, accuracy: not known; the paper has 56.0 %" in caplog.text


def test_a_split_that_was_not_predicted_has_no_score_of_ours():
    assert paper_scores(PAIRS, {})["validation"] == {"accuracy": {"paper": 61.5, "ours": None}}
