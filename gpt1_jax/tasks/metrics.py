"""Task metrics, as their benchmarks define them; the arithmetic is scikit-learn's and scipy's.

| name | what |
|---|---|
| accuracy | share of predictions that are right |
| f1 | two classes: F1 of the positive class, which is the *last* label (MRPC, QQP); more: the classes' mean (macro) |
| matthews | Matthews correlation of predicted and true class (CoLA) |
| pearson, spearman | correlation of predicted and true score (STS-B); ranks of ties are averaged |
| calibration_error | expected calibration error; the smaller the better, so it cannot choose a checkpoint |

A task of classes is measured on `(labels int [N], probabilities float [N, K])`: the predicted class is the most
probable one (the first on a tie), and a correlation takes the class index as the true score and the expected index,
sum_k k p_k, as the predicted one. A task of scores is measured on `(gold float [N], scores float [N])`.

A metric that is undefined is 0: a correlation where one side is constant, F1 of a class that neither occurs nor is
predicted. One warning in the log says so, and also where all labels or all predictions are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from absl import logging

from gpt1_jax.errors import InputError, quoted

ClassMetric = Callable[[np.ndarray, np.ndarray], float]
ScoreMetric = Callable[[np.ndarray, np.ndarray], float]

N_BINS = 15
"""Of the calibration error, as in Guo et al., "On Calibration of Modern Neural Networks" (2017)."""

_CORRELATIONS = ("matthews", "pearson", "spearman")


def accuracy(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Share of predictions that are right."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, probabilities.argmax(axis=1)))


def f1(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """F1 of the last of two classes, or the mean over all of more than two."""
    from sklearn.metrics import f1_score

    n_classes = probabilities.shape[1]
    which = (
        {"pos_label": 1, "average": "binary"} if n_classes == 2 else {"labels": range(n_classes), "average": "macro"}
    )
    return float(f1_score(labels, probabilities.argmax(axis=1), zero_division=0.0, **which))


def matthews(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Matthews correlation coefficient; for more than two classes Gorodkin's R_K."""
    from sklearn.metrics import matthews_corrcoef

    predictions = probabilities.argmax(axis=1)
    if _constant(labels) or _constant(predictions):
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


def pearson(gold: np.ndarray, scores: np.ndarray) -> float:
    """Pearson correlation of two [N]."""
    from scipy.stats import pearsonr

    return 0.0 if _constant(gold) or _constant(scores) else float(pearsonr(gold, scores).statistic)


def spearman(gold: np.ndarray, scores: np.ndarray) -> float:
    """Spearman rank correlation of two [N]."""
    from scipy.stats import spearmanr

    return 0.0 if _constant(gold) or _constant(scores) else float(spearmanr(gold, scores).statistic)


@dataclasses.dataclass(frozen=True)
class Reliability:
    """The predictions by their confidence, the probability of the predicted class.

    Attributes:
      count: int [N_BINS], predictions whose confidence is in (i / N_BINS, (i + 1) / N_BINS].
      confidence: float [N_BINS], their mean confidence; 0 in an empty bin.
      accuracy: float [N_BINS], the share of them that is right; 0 in an empty bin.
    """

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def reliability(labels: np.ndarray, probabilities: np.ndarray) -> Reliability:
    """Sorts predictions into `N_BINS` bins of equal width.

    Raises:
      InputError: `probabilities` are none.
    """
    if probabilities.min() < 0 or probabilities.max() > 1 + 1e-4:
        raise InputError(
            f"probabilities: values from {probabilities.min():g} to {probabilities.max():g}; calibration is defined "
            "for probabilities, from 0 to 1"
        )
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    bins = np.searchsorted(np.linspace(0, 1, N_BINS + 1), confidence, side="left") - 1
    bins = bins.clip(0, N_BINS - 1)
    count, sum_confidence, n_right = (
        np.bincount(bins, weights=weights, minlength=N_BINS) for weights in (None, confidence, right)
    )
    full = np.maximum(count, 1)
    return Reliability(count, sum_confidence / full, n_right / full)


def calibration_error(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Expected calibration error, sum_b n_b / N |accuracy_b - confidence_b| over the bins of `reliability`."""
    bins = reliability(labels, probabilities)
    return float(bins.count @ np.abs(bins.accuracy - bins.confidence) / bins.count.sum())


def _of_classes(metric: ScoreMetric) -> ClassMetric:
    return lambda labels, probabilities: metric(labels, expected_class(probabilities))


METRICS: Mapping[str, ClassMetric] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": _of_classes(pearson),
    "spearman": _of_classes(spearman),
    "calibration_error": calibration_error,
}
"""Of tasks of classes."""

SCORE_METRICS: Mapping[str, ScoreMetric] = {"pearson": pearson, "spearman": spearman}
"""Of tasks of scores."""

LOWER_IS_BETTER = frozenset({"calibration_error"})


def evaluate_predictions(
    metrics: Sequence[str],
    labels: np.ndarray,
    probabilities: np.ndarray,
    *,
    names: Sequence[str] = (),
    split: str = "",
    warn: bool = True,
) -> dict[str, float]:
    """Computes metrics of a task of classes by name, in the order given.

    Args:
      metrics: names in `METRICS`.
      labels: int [N], each in 0..K-1.
      probabilities: float [N, K]; 0 for answers an example does not have.
      names: of the classes, for warnings; none: their numbers.
      split: what the examples are called in warnings.
      warn: False where the same has been warned of before.

    Raises:
      InputError: for an unknown metric, unlabelled or no examples, shapes that do not fit, or values not finite.
    """
    _check_names(metrics, METRICS)
    labels, probabilities = check_predictions(labels, probabilities)
    if warn:
        _warn_of_classes(metrics, labels, probabilities, names, split)
    return {name: METRICS[name](labels, probabilities) for name in metrics}


def evaluate_scores(
    metrics: Sequence[str], gold: np.ndarray, scores: np.ndarray, *, split: str = "", warn: bool = True
) -> dict[str, float]:
    """Computes metrics of a task of scores by name, in the order given.

    Args:
      metrics: names in `SCORE_METRICS`.
      gold: float [N]; NaN where it is not known, which is an error here.
      scores: float [N].
      split: what the examples are called in warnings.
      warn: False where the same has been warned of before.

    Raises:
      InputError: for an unknown metric, unlabelled or no examples, shapes that do not fit, or values not finite.
    """
    _check_names(metrics, SCORE_METRICS)
    gold, scores = np.asarray(gold, np.float64), np.asarray(scores, np.float64)
    if gold.ndim != 1 or gold.shape != scores.shape:
        raise InputError(f"gold {gold.shape} and scores {scores.shape}: [N] and [N] are needed")
    _check_some(len(gold))
    _check_labelled(~np.isfinite(gold))
    _check_finite("scores", scores)
    constant = [what for what, values in (("gold", gold), ("predicted", scores)) if _constant(values)]
    if constant and metrics and warn:
        logging.warning(
            "%smetrics of %d examples: all %s scores are the same; undefined and reported as 0: %s",
            split and f"split {split}: ",
            len(gold),
            " and all ".join(constant),
            ", ".join(metrics),
        )
    return {name: SCORE_METRICS[name](gold, scores) for name in metrics}


def per_class(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and support (the number of examples) of every class.

    Args:
      labels: int [N].
      probabilities: float [N, K].
      names: the K label names in class order.

    Returns:
      name to {"precision", "recall", "f1", "support"}; a quotient without a denominator is 0.

    Raises:
      InputError: as `evaluate_predictions`.
    """
    from sklearn.metrics import precision_recall_fscore_support

    labels, probabilities = check_predictions(labels, probabilities)
    if len(names) != probabilities.shape[1]:
        raise InputError(f"names: {len(names)} given for {probabilities.shape[1]} classes")
    *scores, counts = precision_recall_fscore_support(
        labels, probabilities.argmax(axis=1), labels=range(len(names)), average=None, zero_division=0.0
    )
    # The counts are floats where no answer is right.
    rows = zip(*(column.tolist() for column in (*scores, counts.astype(int))), strict=True)
    keys = ("precision", "recall", "f1", "support")
    return {name: dict(zip(keys, row, strict=True)) for name, row in zip(names, rows, strict=True)}


def confusion_matrix(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Counts, int [K, K]: entry (i, j) is the number of examples of class i that were taken for class j.

    Raises:
      InputError: as `evaluate_predictions`.
    """
    from sklearn.metrics import confusion_matrix

    labels, probabilities = check_predictions(labels, probabilities)
    return confusion_matrix(labels, probabilities.argmax(axis=1), labels=range(probabilities.shape[1]))


def expected_class(probabilities: np.ndarray) -> np.ndarray:
    """The expected class index sum_k k p_k, float [N]."""
    return probabilities @ np.arange(probabilities.shape[1])


def check_predictions(labels: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities as arrays.

    Raises:
      InputError: for unlabelled or no examples, shapes that do not fit, or values not finite.
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities, np.float64)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or probabilities.shape[1] < 2:
        raise InputError(
            f"labels {labels.shape} and probabilities {probabilities.shape}: [N] and [N, K] with K >= 2 are needed"
        )
    _check_some(len(labels))
    _check_labelled(labels < 0)
    if labels.max() >= probabilities.shape[1]:
        raise InputError(f"labels: class {labels.max()} with probabilities for {probabilities.shape[1]} classes")
    _check_finite("probabilities", probabilities)
    return labels, probabilities


def _check_names(metrics: Sequence[str], known: Mapping[str, object]) -> None:
    for name in metrics:
        if name not in known:
            what = "metrics of scores" if known is SCORE_METRICS else "metrics"
            raise InputError(f"{what}: {name!r} is not one of {quoted(known)}")


def _check_some(n_examples: int) -> None:
    if not n_examples:
        raise InputError("labels: no examples; a metric needs at least one")


def _check_labelled(missing: np.ndarray) -> None:
    if missing.any():
        raise InputError(
            f"labels: {missing.sum()} of {len(missing)} examples have none; an unlabelled split gives "
            "predictions, not metrics"
        )


def _check_finite(what: str, values: np.ndarray) -> None:
    bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if bad.any():
        raise InputError(f"{what}: {bad.sum()} of {len(values)} rows are not finite; the model has diverged")


def _constant(values: np.ndarray) -> bool:
    """Whether values differ by no more than float32 rounds them."""
    return bool(np.ptp(values) <= np.finfo(np.float32).eps * np.abs(values).max())


def _warn_of_classes(
    metrics: Sequence[str], labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str], split: str
) -> None:
    """One warning with all there is to know before reading the figures."""
    predictions, n_classes = probabilities.argmax(axis=1), probabilities.shape[1]
    called = [repr(name) for name in names] or [f"class {k}" for k in range(n_classes)]
    notes = [
        f"every {what} is {called[values[0]]}"
        for what, values in (("label", labels), ("prediction", predictions))
        if _constant(values)
    ]
    if _constant(predictions) and not _constant(labels):
        notes.append("a higher optimizer.learning_rate, more epochs or longer pre-training may help")
    scores = {"matthews": predictions, "pearson": expected_class(probabilities)}
    scores["spearman"] = scores["pearson"]
    undefined = [name for name in metrics if name in _CORRELATIONS and (_constant(labels) or _constant(scores[name]))]
    if undefined:
        notes.append(f"undefined and reported as 0: {', '.join(undefined)}")
    counted = (1,) if n_classes == 2 else range(n_classes)
    absent = [k for k in counted if not ((labels == k).any() or (predictions == k).any())]
    if "f1" in metrics and absent:
        notes.append(f"F1 counts as 0 for what neither occurs nor is predicted: {', '.join(called[k] for k in absent)}")
    if notes:
        logging.warning("%smetrics of %d examples: %s", split and f"split {split}: ", len(labels), "; ".join(notes))
