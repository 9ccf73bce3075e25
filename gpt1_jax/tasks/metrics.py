"""Task metrics, computed by scikit-learn and scipy from labels and class probabilities.

Every metric is a function `(labels int [N], probabilities float [N, K]) -> float`. The predicted class is the most
probable one; the predicted score of a correlation is the expected class index, sum_k k p_k.

| name | what |
|---|---|
| accuracy | share of predictions that are right |
| f1 | two classes: F1 of the positive class, which is the *last* label; more: the classes' unweighted mean (macro) |
| matthews | Matthews correlation of predicted and true class |
| pearson, spearman | correlation of predicted score and true class index |

Where a metric is undefined (a correlation with something constant, F1 of a class that neither occurs nor is
predicted) it is 0. The log has a warning wherever all labels or all predictions are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from absl import logging

from gpt1_jax.errors import InputError, quoted

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Share of predictions that are right."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, probabilities.argmax(axis=1)))


def f1(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """F1 of the last of two classes, or the mean over more than two."""
    from sklearn.metrics import f1_score

    n_classes = probabilities.shape[1]
    which = (
        {"pos_label": 1, "average": "binary"} if n_classes == 2 else {"labels": range(n_classes), "average": "macro"}
    )
    return float(f1_score(labels, probabilities.argmax(axis=1), zero_division=0.0, **which))


def matthews(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Matthews correlation coefficient."""
    from sklearn.metrics import matthews_corrcoef

    predictions = probabilities.argmax(axis=1)
    if _undefined("matthews", labels, predictions):
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson correlation of the expected class index with the true one."""
    from scipy.stats import pearsonr

    scores = _expected(probabilities)
    return 0.0 if _undefined("pearson", labels, scores) else float(pearsonr(labels, scores).statistic)


def spearman(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Spearman rank correlation of the expected class index with the true one."""
    from scipy.stats import spearmanr

    scores = _expected(probabilities)
    return 0.0 if _undefined("spearman", labels, scores) else float(spearmanr(labels, scores).statistic)


METRICS: Mapping[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def evaluate_predictions(metrics: Sequence[str], labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Computes metrics by name, in the order given.

    Args:
      metrics: names in `METRICS`.
      labels: int [N], each in 0..K-1.
      probabilities: float [N, K]; 0 for answers an example does not have.

    Raises:
      InputError: for an unknown metric, unlabelled or no examples, shapes that do not fit, or values not finite.
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities, np.float64)
    for name in metrics:
        if name not in METRICS:
            raise InputError(f"metrics: {name!r} is not one of {quoted(METRICS)}")
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or probabilities.shape[1] < 2:
        raise InputError(
            f"labels {labels.shape} and probabilities {probabilities.shape}: [N] and [N, K] with K >= 2 are needed"
        )
    if not len(labels):
        raise InputError("labels: no examples; a metric needs at least one")
    if (labels < 0).any():
        raise InputError(
            f"labels: {(labels < 0).sum()} of {len(labels)} examples have none; an unlabelled split gives "
            "predictions, not metrics"
        )
    if labels.max() >= probabilities.shape[1]:
        raise InputError(f"labels: class {labels.max()} with probabilities for {probabilities.shape[1]} classes")
    if not np.isfinite(probabilities).all():
        bad = (~np.isfinite(probabilities).all(axis=1)).sum()
        raise InputError(f"probabilities: {bad} of {len(labels)} rows are not finite; the model has diverged")
    for what, values in (("label", labels), ("prediction", probabilities.argmax(axis=1))):
        if (values == values[0]).all():
            logging.warning(
                "metrics: every %s of %d is class %d; read the figures accordingly", what, len(values), values[0]
            )
    return {name: METRICS[name](labels, probabilities) for name in metrics}


def _expected(probabilities: np.ndarray) -> np.ndarray:
    return probabilities @ np.arange(probabilities.shape[1])


def _undefined(name: str, labels: np.ndarray, predictions: np.ndarray) -> bool:
    constant = [what for what, values in (("labels", labels), ("predictions", predictions)) if np.ptp(values) < 1e-12]
    if constant:
        logging.warning("metrics: %s is undefined for constant %s; reported as 0", name, " and ".join(constant))
    return bool(constant)
