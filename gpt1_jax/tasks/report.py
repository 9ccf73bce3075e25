"""What a classifier gets right and wrong: per-class figures, the confusion matrix and calibration, as data and text.

`class_report` gives plain values for `results.json`; the other functions show them, and `gpt1_jax.plots.classes` draws
them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.files import make_directory, write_atomically
from gpt1_jax.plots import style
from gpt1_jax.plots.classes import confusion_figure, reliability_figure
from gpt1_jax.tasks.metrics import confusion_matrix, per_class, reliability

_MAX_WIDTH = 100  # of a text table whose columns have names rather than numbers


def class_report(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Everything that the other functions here show, as values that JSON can hold.

    Args:
      labels: int [N], true classes.
      probabilities: float [N, K].
      names: at least K label names in class order; more are ignored, since no example of a split may have as many
        answers as there are names.

    Returns:
      {"labels": the K names, "per_class": see `metrics.per_class`, "confusion": K lists of K counts, see
      `metrics.confusion_matrix`, "reliability": {"count", "confidence", "accuracy"}: lists, see `metrics.Reliability`}.

    Raises:
      InputError: for unlabelled examples, shapes that do not fit or values that are no probabilities.
    """
    probabilities = np.asarray(probabilities)
    names = list(names[: probabilities.shape[-1]])
    return {
        "labels": names,
        "per_class": per_class(labels, probabilities, names),
        "confusion": confusion_matrix(labels, probabilities).tolist(),
        "reliability": {
            key: value.tolist() for key, value in dataclasses.asdict(reliability(labels, probabilities)).items()
        },
    }


def per_class_table(report: Mapping[str, Any]) -> str:
    """A line for each class, and their unweighted mean."""
    rows = [(_printable(name), row) for name, row in report["per_class"].items()]
    mean = {key: float(np.mean([row[key] for _, row in rows])) for key in ("precision", "recall", "f1")}
    rows.append(("mean", {**mean, "support": sum(row["support"] for _, row in rows)}))
    width = max(len(name) for name, _ in rows)
    lines = [f"{'':{width}}  precision  recall      f1  support"]
    for name, row in rows:
        lines.append(
            f"{name:{width}}  {row['precision']:9.4f}  {row['recall']:6.4f}  {row['f1']:6.4f}  {row['support']:7d}"
        )
    return "\n".join(lines)


def confusion_table(report: Mapping[str, Any]) -> str:
    """The confusion matrix: a row for each true class, a column for each predicted one.

    Where the names make the table too wide, columns have numbers and the names of the rows begin with them.
    """
    names, matrix = list(map(_printable, report["labels"])), report["confusion"]
    heads = names
    if sum(len(name) + 2 for name in names) + max(map(len, names)) > _MAX_WIDTH:
        heads = [str(i) for i in range(1, len(names) + 1)]
        names = [f"{i:>{len(heads[-1])}} {name}" for i, name in enumerate(names, 1)]
    corner = "true \\ predicted"
    width = max(len(corner), *map(len, names))
    columns = [max(len(head), *(len(str(row[j])) for row in matrix)) for j, head in enumerate(heads)]
    lines = [f"{corner:{width}}" + "".join(f"  {head:>{columns[j]}}" for j, head in enumerate(heads))]
    for name, row in zip(names, matrix, strict=True):
        lines.append(f"{name:{width}}" + "".join(f"  {count:{columns[j]}d}" for j, count in enumerate(row)))
    return "\n".join(lines)


def write_report(folder: str | os.PathLike[str], split: str, report: Mapping[str, Any]) -> None:
    """Writes a report as text, `classes_<split>.txt`, and as `confusion_<split>.png` and `reliability_<split>.png`.

    Raises:
      InputError: the folder cannot be made.
    """
    folder = Path(folder)
    make_directory(folder, "folder")
    text = f"{per_class_table(report)}\n\n{confusion_table(report)}\n"
    write_atomically(folder / f"classes_{split}.txt", text.encode("utf-8"))
    style.save(folder / f"confusion_{split}.png", confusion_figure(report, split))
    style.save(folder / f"reliability_{split}.png", reliability_figure(report, split))


def _printable(name: str) -> str:
    """A label on one line."""
    return "".join(character if character.isprintable() else " " for character in name)
