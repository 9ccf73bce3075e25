"""What comes of a task's splits once a model has predicted them: predictions, metrics, reports, a submission.

::

    predictions/<split>.jsonl     see `tasks.predictions`; of every split that was predicted, labelled or not
    results.json                  {"metrics": {split: {name: value}}, "paper": ..., "splits": ..., "reports": ...}
    submission/<file>             what a benchmark's server takes, for a task that has one
    reports/<kind>_<split>.png    confusion matrix and reliability of the labelled splits of classes
    reports/classes_<split>.txt   their precision, recall and F1 by class, and the confusion matrix, as text
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
from gpt1_jax.tasks.predictions import write_predictions, write_scores
from gpt1_jax.tasks.report import class_report, write_report
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.tasks.zero_shot_predict import ZeroShotResult


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
        _write_predictions(workdir / "predictions" / f"{name}.jsonl", readout, splits[name], values)
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
        path = workdir / "predictions" / f"{name}.jsonl"
        write_predictions(path, result.ids, names, result.probabilities, result.n_choices, result.classes)
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


def _write_predictions(path: Path, readout: ReadOut, split: EncodedSplit, predicted: np.ndarray) -> None:
    if readout.score_range is not None:
        write_scores(path, split.ids, predicted, split.labels)
        return
    labels = readout.labels[: predicted.shape[1]]  # no example may have as many answers as there are names
    ragged = split.n_streams if readout.kind == "multiple_choice" else None
    write_predictions(path, split.ids, labels, predicted, ragged, split.labels)
