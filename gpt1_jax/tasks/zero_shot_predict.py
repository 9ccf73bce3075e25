"""Zero-shot predictions: labels and metrics from what `tasks.zero_shot_scoring` gives. Works with any checkpoint.

examples -> candidates in words -> token ids -> log-probabilities -> scores [N, K] -> labels and metrics
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from absl import logging
from jax.sharding import Mesh

from gpt1_jax.errors import InputError, quoted
from gpt1_jax.model import GPT1
from gpt1_jax.tasks.examples import Example, label_index, label_names, load_examples, make_examples
from gpt1_jax.tasks.metrics import evaluate_predictions
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.tasks.zero_shot import Heuristic, Score, make_heuristic
from gpt1_jax.tasks.zero_shot_scoring import ScoredTokens, encode_candidates, score_candidates
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.tokenizers.protocol import check_tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class ZeroShotResult:
    """What a heuristic says about N examples.

    Attributes:
      labels: predicted label names; for multiple choice without names the answers' numbers.
      probabilities: float64 [N, K], softmax of the scores (0 for answers an example does not have), or the logistic
        function of score - threshold. Their order means something, their size is not calibrated.
      scores: float64 [N, K], log-probabilities, -inf for answers an example does not have; K=1 with a threshold.
      threshold: what the scores were compared with, if they were.
      metrics: of labelled examples; else empty.
      ids: the examples' identifiers.
      names: the label names in class order; for multiple choice without names none.
      classes: int [N], the true classes, -1 where they are not known.
      n_choices: int [N], how many labels or answers each example has.
    """

    labels: list[str]
    probabilities: np.ndarray
    scores: np.ndarray
    threshold: float | None
    metrics: dict[str, float]
    ids: tuple[str, ...]
    names: tuple[str, ...]
    classes: np.ndarray
    n_choices: np.ndarray

    @property
    def summary(self) -> dict[str, float]:
        """The metrics, and the threshold if there is one."""
        return self.metrics | ({} if self.threshold is None else {"threshold": self.threshold})


def zero_shot(
    model: GPT1,
    params: Any,
    tokenizer: Tokenizer,
    examples: Sequence[Example | str | Mapping[str, Any]],
    heuristic: Heuristic | str,
    *,
    labels: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    train: Sequence[Example] | None = None,
    threshold: float | None = None,
    batch_size: int = 32,
    mesh: Mesh | None = None,
) -> ZeroShotResult:
    """Labels examples by a heuristic, with a model that was never trained for it.

    Args:
      model: any GPT1, fine-tuned or not.
      params: its parameters.
      tokenizer: the one the model was trained with.
      examples: `Example`s, or Python values without labels as `evaluate.predict` takes them.
      heuristic: a name in `ZERO_SHOT`, a template, or what `prompt` gives.
      labels: names in class order; default the heuristic's own, for multiple choice none.
      metrics: for labelled examples; default the heuristic's own. The first one decides a threshold.
      train: labelled examples that decide the threshold of a heuristic that has one ("cola").
      threshold: or the threshold itself.
      batch_size: candidates worked off at a time.
      mesh: where the model runs; default one device.

    Raises:
      InputError: an argument, or an example that does not fit the heuristic or the model.
    """
    heuristic = make_heuristic(heuristic) if isinstance(heuristic, str) else heuristic
    if isinstance(examples, str | Mapping):
        raise InputError(f"examples={examples!r:.80} is a single example; give a list of them, such as [example]")
    rows = examples if _are_examples(examples) else make_examples(heuristic.kind, examples)
    if labels is None:
        labels = () if heuristic.kind == "multiple_choice" else heuristic.labels
    metrics = heuristic.metrics if metrics is None else tuple(metrics)
    pick = heuristic.by_threshold and threshold is None
    if pick and not train:
        raise InputError(f"zero_shot={heuristic.name!r} needs training examples with labels, or the threshold itself")
    splits: dict[str, Sequence[Example]] = {"examples": rows}
    if pick and train:
        splits["train"] = train
    return _results(
        *(model, params, tokenizer, splits, heuristic),
        labels=labels,
        metrics=metrics,
        threshold=threshold,
        batch_size=batch_size,
        mesh=mesh,
    )["examples"]


def _are_examples(values: Sequence[Example | str | Mapping[str, Any]]) -> TypeGuard[Sequence[Example]]:
    return all(isinstance(value, Example) for value in values)


def zero_shot_task(
    model: GPT1,
    params: Any,
    tokenizer: Tokenizer,
    spec: TaskSpec,
    heuristic: Heuristic | str,
    splits: Sequence[str],
    *,
    batch_size: int = 32,
    mesh: Mesh | None = None,
) -> dict[str, ZeroShotResult]:
    """`zero_shot` for the splits of a task; the training split is read where the threshold or the label names need it.

    Raises:
      InputError: the task is of another kind than the heuristic, lacks a training split that is needed, or its files
        cannot be used.
    """
    heuristic = make_heuristic(heuristic) if isinstance(heuristic, str) else heuristic
    if spec.kind != heuristic.kind:
        raise InputError(
            f"zero_shot={heuristic.name!r} is for the kind {heuristic.kind!r}, and the task {spec.name!r} is "
            f"{spec.kind!r}; choose another heuristic, or give data of that kind"
        )
    if spec.score_range is not None:
        raise InputError(
            f"zero_shot={heuristic.name!r} gives classes; the task {spec.name!r} has scores: choose another"
        )
    if heuristic.by_threshold and "train" not in spec.splits:
        raise InputError(
            f"zero_shot={heuristic.name!r} chooses its threshold on training rows and the task {spec.name!r} has none; "
            "name their files in task.train"
        )
    if spec.labels is not None:
        heuristic.check_labels(spec.labels)
    needed = heuristic.by_threshold or (spec.labels is None and "train" in spec.splits)
    loaded = load_examples(spec, tuple(dict.fromkeys((*splits, *(["train"] if needed else [])))))
    labels = label_names(spec, loaded.get("train"))
    if not heuristic.by_threshold:
        loaded = {split: loaded[split] for split in splits}
    results = _results(
        *(model, params, tokenizer, loaded, heuristic),
        labels=labels,
        metrics=spec.metrics,
        threshold=None,
        batch_size=batch_size,
        mesh=mesh,
    )
    return {split: results[split] for split in splits}


def _results(
    model: GPT1,
    params: Any,
    tokenizer: Tokenizer,
    splits: Mapping[str, Sequence[Example]],
    heuristic: Heuristic,
    *,
    labels: Sequence[str],
    metrics: Sequence[str],
    threshold: float | None,
    batch_size: int,
    mesh: Mesh | None,
) -> dict[str, ZeroShotResult]:
    """The result of each split; a threshold that is not given is chosen on "train"."""
    check_tokenizer(tokenizer, model.config.vocab_size, "tokenizer")
    heuristic.check_labels(labels)
    pick = heuristic.by_threshold and threshold is None
    if pick and (not metrics or metrics[0] not in _BY_COUNTS):
        raise InputError(f"metrics={list(metrics)}: a threshold maximises the first, which may be {quoted(_BY_COUNTS)}")
    # Everything is encoded, and so checked, before anything is scored; all splits share batches and compilations.
    classes = {
        split: np.array([label_index(example, labels) for example in examples], np.int32)
        for split, examples in splits.items()
    }
    encoded = {
        split: encode_candidates(examples, heuristic, labels, tokenizer, model.config.n_ctx, split)
        for split, examples in splits.items()
    }
    flat = [candidate for groups in encoded.values() for group in groups for candidate in group]
    totals = iter(score_candidates(model, params, flat, batch_size=batch_size, mesh=mesh).tolist())
    scores = {split: _matrix(groups, totals, heuristic.score) for split, groups in encoded.items()}
    if pick:
        threshold = choose_threshold(scores["train"][:, 0], classes["train"], metrics[0])
    results = {}
    for split, matrix in scores.items():
        probabilities = _logistic(matrix - threshold) if heuristic.by_threshold else _softmax(matrix)
        best = probabilities.argmax(axis=1)
        labelled = (classes[split] >= 0).all()
        n_choices = (scores[split] > -np.inf).sum(axis=1)
        results[split] = ZeroShotResult(
            labels=[labels[i] if labels else str(i) for i in best],
            probabilities=probabilities,
            scores=matrix,
            threshold=threshold if heuristic.by_threshold else None,
            metrics=evaluate_predictions(metrics, classes[split], probabilities, names=labels, split=split)
            if labelled
            else {},
            ids=tuple(example.id for example in splits[split]),
            names=tuple(labels),
            classes=classes[split],
            n_choices=np.full(len(best), 2) if heuristic.by_threshold else n_choices,
        )
    return results


def _matrix(encoded: Sequence[Sequence[ScoredTokens]], totals: Iterator[float], score: Score) -> np.ndarray:
    """The next totals as scores [N, K], -inf where an example has fewer than K candidates."""
    result = np.full((len(encoded), max(map(len, encoded))), -np.inf)
    for row, group in zip(result, encoded, strict=True):
        for k, candidate in enumerate(group):
            row[k] = next(totals) / (candidate.n_scored if score == "mean" else 1)
    return result


def _softmax(scores: np.ndarray) -> np.ndarray:
    from scipy.special import softmax

    return softmax(scores, axis=1)


def _logistic(margin: np.ndarray) -> np.ndarray:
    """[N, 1] -> the probabilities of two classes [N, 2]; a margin of 0 is the first class's."""
    from scipy.special import expit

    return np.concatenate([expit(-margin), expit(margin)], axis=1)


def _matthews(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, tn: np.ndarray) -> np.ndarray:
    return _ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


# The metrics of two classes from counts, for all thresholds at once; 0 where undefined, as in `tasks.metrics`.
_BY_COUNTS: Mapping[str, Callable[..., np.ndarray]] = {
    "matthews": _matthews,
    "accuracy": lambda tp, fp, fn, tn: (tp + tn) / (tp + fp + fn + tn),
    "f1": lambda tp, fp, fn, tn: _ratio(2 * tp, 2 * tp + fp + fn),
}


def choose_threshold(scores: np.ndarray, labels: np.ndarray, metric: str = "matthews") -> float:
    """The threshold that maximises a metric, where a score above it means class 1 and any other class 0.

    A threshold lies half-way between two neighbouring scores, or 1 below the lowest or above the highest. Of those that
    are equally good the lowest is taken.

    Args:
      scores: float [N].
      labels: int [N], 0 or 1.
      metric: "matthews", "accuracy" or "f1".

    Raises:
      InputError: no scores, a label that is neither 0 nor 1, or another metric.
    """
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if metric not in _BY_COUNTS:
        raise InputError(f"metric={metric!r}: a threshold can maximise {quoted(_BY_COUNTS)}")
    if not len(scores) or not np.isin(labels, (0, 1)).all():
        raise InputError("a threshold is chosen on labelled examples of two classes; there are none, or others")
    if (labels == labels[0]).all():
        logging.warning(
            "zero-shot: all %d training examples are class %d; no threshold is best", len(labels), labels[0]
        )
    order = np.argsort(scores, kind="stable")
    ordered, positive = scores[order], labels[order].astype(np.float64)
    below = np.flatnonzero(np.diff(ordered, prepend=-np.inf, append=np.inf))  # how many scores a threshold exceeds
    n, n_positive = len(scores), positive.sum()
    fn = np.concatenate([[0.0], np.cumsum(positive)])[below]
    tn = below - fn
    values = _BY_COUNTS[metric](n_positive - fn, n - n_positive - tn, fn, tn)
    best = int(np.flatnonzero(values >= values.max() - 1e-12)[0])
    candidates = np.concatenate([[ordered[0] - 1], ordered, [ordered[-1] + 1]])
    k = int(below[best])
    threshold = candidates[0] if k == 0 else candidates[-1] if k == n else (ordered[k - 1] + ordered[k]) / 2
    logging.info("zero-shot: threshold %.6g, %s %.4f on %d training examples", threshold, metric, values[best], n)
    return float(threshold)
