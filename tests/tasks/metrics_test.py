"""Metrics against values worked out by hand, and their defined values where the formula has none."""

import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.metrics import (
    LOWER_IS_BETTER,
    METRICS,
    N_BINS,
    SCORE_METRICS,
    confusion_matrix,
    evaluate_predictions,
    evaluate_scores,
    per_class,
    reliability,
)


def one_hot(classes, n_classes):
    return np.eye(n_classes)[classes]


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_two_classes_by_hand():
    # Confusion: 2 true positives, 1 false positive, 2 false negatives, 3 true negatives.
    labels = [1, 1, 1, 1, 0, 0, 0, 0]
    probabilities = one_hot([1, 1, 0, 0, 1, 0, 0, 0], 2)
    result = evaluate_predictions(["f1", "accuracy", "matthews"], labels, probabilities)
    assert list(result) == ["f1", "accuracy", "matthews"]
    assert result["accuracy"] == pytest.approx(5 / 8)
    assert result["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 2))
    assert result["matthews"] == pytest.approx((2 * 3 - 1 * 2) / np.sqrt(3 * 4 * 4 * 5))
    assert confusion_matrix(labels, probabilities).tolist() == [[3, 1], [2, 2]]
    assert per_class(labels, probabilities, ["no", "yes"]) == {
        "no": pytest.approx({"precision": 3 / 5, "recall": 3 / 4, "f1": 2 / 3, "support": 4}),
        "yes": pytest.approx({"precision": 2 / 3, "recall": 2 / 4, "f1": 4 / 7, "support": 4}),
    }


def test_more_classes_take_the_mean_f1_over_all_of_them(caplog):
    # Class 3 neither occurs nor is predicted: its F1 is 0, and it counts.
    result = evaluate_predictions(["f1"], [0, 0, 1, 2], one_hot([0, 1, 1, 2], 4))
    assert result["f1"] == pytest.approx((2 / 3 + 2 / 3 + 1 + 0) / 4)
    assert [record.getMessage() for record in caplog.records] == [
        "metrics of 4 examples: F1 counts as 0 for what neither occurs nor is predicted: class 3"
    ]


def test_correlations_use_the_expected_class():
    labels = np.array([0, 1, 2, 3])
    probabilities = np.array([[0.9, 0.1, 0, 0], [0, 1, 0, 0], [0, 0.5, 0, 0.5], [0, 0, 0, 1]])
    scores = np.array([0.1, 1, 2, 3])
    result = evaluate_predictions(["pearson", "spearman"], labels, probabilities)
    assert result["pearson"] == pytest.approx(np.corrcoef(labels, scores)[0, 1])
    assert result["spearman"] == pytest.approx(1)


def test_scores_by_hand():
    gold, scores = [0.0, 5.0, 2.5, 2.5], [1.0, 3.0, 2.0, 4.0]
    result = evaluate_scores(["spearman", "pearson"], gold, scores)
    assert list(result) == ["spearman", "pearson"]
    # Deviations from the means: (-2.5, 2.5, 0, 0) and (-1.5, 0.5, -0.5, 1.5); ranks: (1, 4, 2.5, 2.5) and (1, 3, 2, 4).
    assert result["pearson"] == pytest.approx((3.75 + 1.25) / np.sqrt(12.5 * 5))
    assert result["spearman"] == pytest.approx((2.25 + 0.75) / np.sqrt(4.5 * 5))


def test_calibration_error_by_hand():
    # Four predictions of confidence 0.9, two of them right; one of confidence 0.6, right; one of exactly 1, wrong.
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.6, 1.0])
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    labels = np.array([0, 0, 1, 1, 0, 1])
    result = evaluate_predictions(["calibration_error"], labels, probabilities)
    assert result["calibration_error"] == pytest.approx((4 * 0.4 + 1 * 0.4 + 1 * 1.0) / 6)
    assert {"calibration_error"} == LOWER_IS_BETTER < set(METRICS)
    bins = reliability(labels, probabilities)
    assert bins.count.tolist() == [0] * 8 + [1] + [0] * 4 + [4, 1]  # 0.6 belongs to the bin that ends there
    assert bins.accuracy[13] == 0.5
    assert bins.confidence[13] == pytest.approx(0.9)


def test_calibration_is_of_probabilities():
    with pytest.raises(InputError, match=r"values from -3 to 2; calibration"):
        evaluate_predictions(["accuracy", "calibration_error"], [0, 1], [[2, -3], [0, 1]])


@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.filterwarnings("error")
def test_against_the_libraries_on_random_predictions(n_classes):
    rng = np.random.default_rng(n_classes)
    labels = rng.integers(n_classes, size=200)
    probabilities = softmax(rng.normal(size=(200, n_classes)) + one_hot(labels, n_classes))
    predictions = probabilities.argmax(axis=1)
    expected = probabilities @ np.arange(n_classes)
    result = evaluate_predictions(list(METRICS), labels, probabilities)
    assert result["accuracy"] == sklearn.metrics.accuracy_score(labels, predictions)
    average = "binary" if n_classes == 2 else "macro"
    assert result["f1"] == pytest.approx(sklearn.metrics.f1_score(labels, predictions, average=average))
    assert result["matthews"] == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predictions))
    assert result["pearson"] == pytest.approx(scipy.stats.pearsonr(labels, expected).statistic)
    assert result["spearman"] == pytest.approx(scipy.stats.spearmanr(labels, expected).statistic)
    names = [f"class {k}" for k in range(n_classes)]
    report = sklearn.metrics.classification_report(labels, predictions, target_names=names, output_dict=True)
    for name, row in per_class(labels, probabilities, names).items():
        assert row == pytest.approx({"f1" if key == "f1-score" else key: value for key, value in report[name].items()})
    assert np.array_equal(
        confusion_matrix(labels, probabilities), sklearn.metrics.confusion_matrix(labels, predictions)
    )
    gold = labels + rng.normal(size=200)
    assert evaluate_scores(list(SCORE_METRICS), gold, expected) == pytest.approx(
        {"pearson": np.corrcoef(gold, expected)[0, 1], "spearman": scipy.stats.spearmanr(gold, expected).statistic}
    )


@pytest.mark.parametrize(
    ("labels", "predictions", "expected"),
    [
        ([0, 1, 1], [1, 1, 1], {"accuracy": 2 / 3, "f1": 0.8, "calibration_error": 1 / 3}),
        ([0, 0, 0], [0, 0, 0], {"accuracy": 1, "f1": 0, "calibration_error": 0}),
        ([1], [1], {"accuracy": 1, "f1": 1, "calibration_error": 0}),
        ([0, 0], [0, 1], {"accuracy": 0.5, "f1": 0, "calibration_error": 0.5}),
    ],
)
@pytest.mark.filterwarnings("error")
def test_constant_labels_or_predictions_have_a_value_and_one_warning(labels, predictions, expected, caplog):
    result = evaluate_predictions(list(METRICS), labels, one_hot(predictions, 2))
    assert result == pytest.approx({"matthews": 0, "pearson": 0, "spearman": 0, **expected})
    assert len(caplog.records) == 1
    assert f"of {len(labels)} examples: every " in caplog.text
    assert "undefined and reported as 0: matthews, pearson, spearman" in caplog.text
    assert ("F1 counts as 0" in caplog.text) == (1 not in labels + predictions)


def test_a_warning_names_the_classes_and_the_split_and_can_be_left_out(caplog):
    arguments = (["accuracy", "f1"], [0, 0], one_hot([0, 0], 2))
    evaluate_predictions(*arguments, names=("bad", "good"), split="dev")
    assert "split dev: metrics of 2 examples: every label is 'bad'; every prediction is 'bad'; " in caplog.text
    assert caplog.text.rstrip().endswith("neither occurs nor is predicted: 'good'")
    caplog.clear()
    evaluate_predictions(*arguments, warn=False)
    evaluate_scores(["pearson"], [1.0, 1.0], [2.0, 3.0], warn=False)
    assert not caplog.records


@pytest.mark.filterwarnings("error")
def test_a_class_without_examples_has_a_row_of_zeros():
    row = per_class([0, 0, 1], one_hot([0, 1, 1], 3), ["a", "b", "never"])["never"]
    assert row == {"precision": 0, "recall": 0, "f1": 0, "support": 0}


@pytest.mark.parametrize(
    ("gold", "scores", "message"),
    [
        ([3.0, 3.0], [1.0, 2.0], "all gold scores are the same"),
        ([1.0, 2.0], [2.5, 2.5000001], "all predicted scores are the same"),  # as far as float32 can tell
        ([1.0], [2.0], "all gold and all predicted scores are the same"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_constant_scores_have_a_value_and_one_warning(gold, scores, message, caplog):
    assert evaluate_scores(["pearson", "spearman"], gold, scores) == {"pearson": 0, "spearman": 0}
    assert len(caplog.records) == 1
    assert f"metrics of {len(gold)} examples: {message}; undefined and reported as 0: pearson, spearman" in caplog.text


def test_good_predictions_give_no_warning(caplog):
    evaluate_predictions(list(METRICS), [0, 1, 2], one_hot([0, 1, 2], 3))
    evaluate_scores(list(SCORE_METRICS), [0, 1.5], [0.1, 0.2])
    assert not caplog.records


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
    for function in (
        lambda: evaluate_predictions(["accuracy"], labels, probabilities),
        lambda: per_class(labels, probabilities, ["a", "b"]),
        lambda: confusion_matrix(labels, probabilities),
    ):
        with pytest.raises(InputError, match=message):
            function()


@pytest.mark.parametrize(
    ("gold", "scores", "message"),
    [
        ([1.0, np.nan], [1.0, 2.0], "1 of 2 examples have none"),
        ([], [], "no examples"),
        ([1.0], [1.0, 2.0], r"gold \(1,\) and scores \(2,\)"),
        ([1.0, 2.0], [np.inf, 2.0], "1 of 2 rows are not finite"),
    ],
)
def test_scores_that_cannot_be_measured(gold, scores, message):
    with pytest.raises(InputError, match=message):
        evaluate_scores(["pearson"], gold, scores)


def test_an_unknown_metric():
    with pytest.raises(InputError, match="'bleu' is not one of 'accuracy'"):
        evaluate_predictions(["bleu"], [0], one_hot([0], 2))
    with pytest.raises(InputError, match="metrics of scores: 'accuracy' is not one of 'pearson', 'spearman'"):
        evaluate_scores(["accuracy"], [0.0], [0.0])


def test_names_for_every_class():
    with pytest.raises(InputError, match="1 given for 2 classes"):
        per_class([0], one_hot([0], 2), ["a"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_order_of_examples_changes_nothing_and_values_are_in_range(data):
    n_classes = data.draw(st.integers(2, 5))
    n = data.draw(st.integers(1, 30))
    labels = np.array(data.draw(st.lists(st.integers(0, n_classes - 1), min_size=n, max_size=n)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    probabilities = softmax(rng.normal(size=(n, n_classes)) * rng.choice([0, 1, 30]))
    order = rng.permutation(n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = evaluate_predictions(list(METRICS), labels, probabilities)
        again = evaluate_predictions(list(METRICS), labels[order], probabilities[order])
    assert again == pytest.approx(result, abs=1e-9)
    for name, value in result.items():
        assert (-1 - 1e-9 if name in ("matthews", "pearson", "spearman") else 0) <= value <= 1 + 1e-9
    assert np.array_equal(
        confusion_matrix(labels, probabilities), confusion_matrix(labels[order], probabilities[order])
    )
    assert np.trace(confusion_matrix(labels, probabilities)) == pytest.approx(result["accuracy"] * n)
    bins = reliability(labels, probabilities)
    assert bins.count.sum() == n
    assert bins.count.shape == (N_BINS,)
    assert bins.accuracy @ bins.count == pytest.approx(result["accuracy"] * n)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), min_size=2, max_size=30))
def test_correlations_ignore_order_shift_and_scale(pairs):
    gold, scores = np.array(pairs, np.float64).T / 5
    result = evaluate_scores(["pearson", "spearman"], gold, scores)
    assert evaluate_scores(["pearson", "spearman"], gold[::-1], 3 * scores[::-1] + 7) == pytest.approx(result, abs=1e-6)
