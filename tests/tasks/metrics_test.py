"""Metrics against values worked out by hand, and their defined values where the formula has none."""

import numpy as np
import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.metrics import METRICS, evaluate_predictions


def one_hot(classes, n_classes):
    return np.eye(n_classes)[classes]


def test_two_classes_by_hand():
    # Confusion: 2 true positives, 1 false positive, 2 false negatives, 3 true negatives.
    labels = [1, 1, 1, 1, 0, 0, 0, 0]
    probabilities = one_hot([1, 1, 0, 0, 1, 0, 0, 0], 2)
    result = evaluate_predictions(["f1", "accuracy", "matthews"], labels, probabilities)
    assert list(result) == ["f1", "accuracy", "matthews"]
    assert result["accuracy"] == pytest.approx(5 / 8)
    assert result["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 2))
    assert result["matthews"] == pytest.approx((2 * 3 - 1 * 2) / np.sqrt(3 * 4 * 4 * 5))


def test_more_classes_take_the_mean_f1_over_all_of_them():
    # Class 3 neither occurs nor is predicted: its F1 is 0, and it counts.
    result = evaluate_predictions(["f1"], [0, 0, 1, 2], one_hot([0, 1, 1, 2], 4))
    assert result["f1"] == pytest.approx((2 / 3 + 2 / 3 + 1 + 0) / 4)


def test_correlations_use_the_expected_class():
    labels = np.array([0, 1, 2, 3])
    probabilities = np.array([[0.9, 0.1, 0, 0], [0, 1, 0, 0], [0, 0.5, 0, 0.5], [0, 0, 0, 1]])
    scores = np.array([0.1, 1, 2, 3])
    result = evaluate_predictions(["pearson", "spearman"], labels, probabilities)
    assert result["pearson"] == pytest.approx(np.corrcoef(labels, scores)[0, 1])
    assert result["spearman"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("labels", "predictions", "expected"),
    [
        ([0, 1, 1], [1, 1, 1], {"accuracy": 2 / 3, "f1": 0.8}),
        ([0, 0, 0], [0, 0, 0], {"accuracy": 1, "f1": 0}),
        ([1], [1], {"accuracy": 1, "f1": 1}),
        ([0, 0], [0, 1], {"accuracy": 0.5, "f1": 0}),
    ],
)
@pytest.mark.filterwarnings("error")
def test_constant_labels_or_predictions_have_a_value_and_a_warning(labels, predictions, expected, caplog):
    result = evaluate_predictions(list(METRICS), labels, one_hot(predictions, 2))
    assert result == pytest.approx({"matthews": 0, "pearson": 0, "spearman": 0, **expected})
    assert "read the figures accordingly" in caplog.text
    assert "pearson is undefined for constant" in caplog.text


@pytest.mark.parametrize(
    ("labels", "probabilities", "message"),
    [
        ([0, -1], one_hot([0, 1], 2), "1 of 2 examples have none"),
        ([], np.zeros((0, 2)), "no examples"),
        ([0, 1], one_hot([0], 2), r"labels \(2,\) and probabilities \(1, 2\)"),
        ([0, 1], np.zeros((2, 1)), r"\[N\] and \[N, K\]"),
        ([0, 2], one_hot([0, 1], 2), "class 2 with probabilities for 2 classes"),
        ([0, 1], [[0.5, 0.5], [np.nan, 0]], "1 of 2 rows are not finite"),
    ],
)
def test_what_cannot_be_scored(labels, probabilities, message):
    with pytest.raises(InputError, match=message):
        evaluate_predictions(["accuracy"], labels, probabilities)


def test_an_unknown_metric():
    with pytest.raises(InputError, match="'bleu' is not one of 'accuracy'"):
        evaluate_predictions(["bleu"], [0], one_hot([0], 2))
