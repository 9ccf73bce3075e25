"""What comes of a task's splits once a model has predicted them: predictions, metrics, reports, a submission.

::

    predictions/<split>.jsonl     see `tasks.predictions`; of every split that was predicted, labelled or not
    predictions/<split>.partial.jsonl   in its place while the split is being predicted, in the order of the batches
    results.json                  {"metrics": {split: {name: value}}, "paper": ..., "splits": ..., "reports": ...}
    submission/<file>             what a benchmark's server takes, for a task that has one
    reports/<kind>_<split>.png    confusion matrix and reliability of the labelled splits of classes
    reports/classes_<split>.txt   their precision, recall and F1 by class, and the confusion matrix, as text
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.files import write_json
from gpt1_jax.model_config import ReadOut
from gpt1_jax.task_evaluator import task_metrics
from gpt1_jax.tasks import submission
from gpt1_jax.tasks.predictions import Line, append_lines, prediction_lines, score_lines, write_lines
from gpt1_jax.tasks.report import class_report, write_report
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.tasks.zero_shot_predict import ZeroShotResult


class PartialPredictions:
    """Puts the predictions of each batch on the disk, for `TaskEvaluator` to call (process 0 only; all may call it).

    What was predicted when a run is killed can be read in predictions/<split>.partial.jsonl. The next evaluation begins
    that file anew, and `write_outcome` replaces it by the whole one, in the order of the split.

    Args:
      workdir: where; see the module.
      readout: the read-out of the model that predicts.
      split: the examples.

    Raises:
      InputError: from a call, for predictions that are not finite.
    """

    def __init__(self, workdir: Path, readout: ReadOut, split: EncodedSplit) -> None:
        self._path = _partial(predictions_path(workdir, split.name))
        self._readout, self._split = readout, split
        self._writes = jax.process_index() == 0
        if self._writes:
            self._path.unlink(missing_ok=True)

    def __call__(self, index: np.ndarray, predicted: np.ndarray) -> None:
        if self._writes:
            append_lines(self._path, _lines(self._readout, self._split, predicted, index))


def predictions_path(workdir: Path, split: str) -> Path:
    """Where the predictions of a split are."""
    return workdir / "predictions" / f"{split}.jsonl"


def _partial(path: Path) -> Path:
    return path.with_suffix(".partial.jsonl")


def write_outcome(
    workdir: Path,
    spec: TaskSpec,
    readout: ReadOut,
    splits: Mapping[str, EncodedSplit],
    predicted: Mapping[str, tuple[np.ndarray, float]],
    *,
    warned: Collection[str] = (),
    **results: Any,
) -> dict[str, dict[str, float]]:
    """Writes everything there is to say about the predicted splits (process 0 only; all processes may call it).

    What is measured is on the disk before what is drawn.

    Args:
      workdir: where; see the module.
      spec: the task.
      readout: the read-out of the model that predicted.
      splits: the encoded examples by split.
      predicted: split to what a `TaskEvaluator` gives; splits that are not in it are left out.
      warned: splits whose constant labels or predictions have been warned of before.
      **results: what else results.json is to hold, at its top.

    Returns:
      the metrics of the labelled splits.
    """
    labelled = [name for name in predicted if spec.is_labelled(name)]
    for name in predicted:
        if name not in labelled:
            logging.info("split %s: predictions, but no metrics, for it has no labels", name)
    metrics = {name: task_metrics(spec, splits[name], *predicted[name], warn=name not in warned) for name in labelled}
    if jax.process_index() != 0:
        return metrics
    for name, (values, _) in predicted.items():
        path = predictions_path(workdir, name)
        write_lines(path, _lines(readout, splits[name], values, np.arange(len(values))))
        _partial(path).unlink(missing_ok=True)
    reports = {
        name: class_report(splits[name].labels, predicted[name][0], readout.labels)
        for name in labelled
        if readout.score_range is None
    }
    results = {
        **results,
        "metrics": metrics,
        **({"paper": paper_scores(spec, metrics)} if spec.paper else {}),
        "splits": {name: _facts(splits[name]) for name in predicted},
        "reports": reports,
    }
    _write_results(workdir, spec, results)
    for split, scores in results.get("paper", {}).items():
        for metric, both in scores.items():
            ours = "not known" if both["ours"] is None else f"{both['ours']:.1f} %"
            logging.info("split %s, %s: %s; the paper has %.1f %%", split, metric, ours, both["paper"])
    return metrics


def write_zero_shot(
    workdir: Path, spec: TaskSpec, found: Mapping[str, ZeroShotResult], **results: Any
) -> dict[str, dict[str, float]]:
    """`write_outcome` for a heuristic that was asked (process 0 only; all processes may call it).

    Args:
      workdir: where; see the module.
      spec: the task.
      found: split to what the heuristic says.
      **results: what else results.json is to hold, at its top.

    Returns:
      the metrics of the labelled splits, and thresholds.
    """
    metrics = {name: result.summary for name, result in found.items() if result.metrics}
    if jax.process_index() != 0:
        return metrics
    reports = {}
    for name, result in found.items():
        names = result.names[: result.probabilities.shape[1]]  # no example may have as many answers as there are names
        lines = prediction_lines(result.ids, names, result.probabilities, result.n_choices, result.classes)
        write_lines(predictions_path(workdir, name), lines)
        if name in metrics:
            reports[name] = class_report(result.classes, result.probabilities, names)
    splits = {name: {"examples": len(result.ids)} for name, result in found.items()}
    _write_results(workdir, spec, {**results, "metrics": metrics, "splits": splits, "reports": reports})
    return metrics


def _write_results(workdir: Path, spec: TaskSpec, results: Mapping[str, Any]) -> None:
    """results.json, and what is made of it and of the predictions beside it."""
    write_json(workdir / "results.json", results)
    submission.write(spec, workdir)
    for name, report in results["reports"].items():
        write_report(workdir / "reports", name, report)


def paper_scores(
    spec: TaskSpec, metrics: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, dict[str, float | None]]]:
    """The paper's scores beside ours, in percent: split -> metric -> {"paper", "ours"}.

    Ours is None where the split was not predicted or its labels are secret, as those of GLUE's test sets.
    """
    result: dict[str, dict[str, dict[str, float | None]]] = {}
    for split, scores in spec.paper.items():
        for metric, score in scores.items():
            ours = metrics.get(split, {}).get(metric)
            both = {"paper": score, "ours": None if ours is None else 100 * ours}
            result.setdefault(split, {})[metric] = both
    return result


def _facts(split: EncodedSplit) -> dict[str, int]:
    return {"examples": len(split), "truncated_examples": split.n_truncated, "truncated_tokens": split.n_cut}


def _lines(readout: ReadOut, split: EncodedSplit, predicted: np.ndarray, index: np.ndarray) -> Iterator[Line]:
    """What is predicted of the examples `index` of a split."""
    ids, gold = [split.ids[i] for i in index], split.labels[index]
    if readout.score_range is not None:
        return score_lines(ids, predicted, gold)
    labels = readout.labels[: predicted.shape[1]]  # no example may have as many answers as there are names
    ragged = split.n_streams[index] if readout.kind == "multiple_choice" else None
    return prediction_lines(ids, labels, predicted, ragged, gold)
