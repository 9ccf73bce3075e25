"""What a classifier gets right and wrong: per-class figures, the confusion matrix and calibration, as data, text, PNG.

`class_report` gives plain values for `results.json`; the other functions show them.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory, write_atomically
from gpt1_jax.tasks.metrics import N_BINS, confusion_matrix, per_class, reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_WIDTH = 100  # of a text table whose columns have names rather than numbers
_MAX_NUMBERED = 40  # classes; the cells of a larger matrix are too small for text
_NAME_WIDTH = 22  # characters of a line of a label in a picture
_STYLE = {
    "font.size": 10.0,
    "text.parse_math": False,  # a label with two dollar signs is no formula
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}
_BLUE, _ORANGE = "#0069ad", "#b34e00"  # told apart by all kinds of colour vision, and as grey


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
        "reliability": {key: value.tolist() for key, value in reliability(labels, probabilities)._asdict().items()},
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


def plot_confusion(path: str | os.PathLike[str], report: Mapping[str, Any], title: str = "") -> None:
    """Writes the confusion matrix as a PNG.

    Rows are true classes, shaded by the share of the class, so that rare classes are seen as well as common ones; the
    numbers are counts. One hue from light to dark reads the same with any colour vision and in grey.

    Raises:
      InputError: the path does not end in `.png`, or its folder cannot be made.
    """
    counts = np.array(report["confusion"])
    n_classes = len(counts)
    support = counts.sum(axis=1)
    shares = counts / np.maximum(support, 1)[:, None]
    cell = 1.15 if n_classes <= 4 else 0.7 if n_classes <= 10 else 0.5 if n_classes <= _MAX_NUMBERED else 20 / n_classes
    side = n_classes * cell  # inches
    names = [_wrapped(name) for name in report["labels"]]
    small = max(4.0, min(10.0, 16 * cell))
    with _style():
        figure = _figure(side + 2.9, side + 1.9)
        axes = figure.add_subplot()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if n_classes <= _MAX_NUMBERED:
            largest = len(str(counts.max()))
            size = min(10.0 if n_classes <= 10 else 8.0, 105 * cell / max(largest, 4))
            for (i, j), count in np.ndenumerate(counts):
                text = f"{count}" if n_classes > 4 or not support[i] else f"{count}\n{100 * shares[i, j]:.1f} %"
                colour = "white" if shares[i, j] > 0.65 else "#1b2430" if count else "#8a94a3"
                axes.text(j, i, text, ha="center", va="center", color=colour, size=size)
        long = max(len(line) for name in names for line in name.split("\n")) * 0.085 > cell
        axes.set_xticks(
            range(n_classes), names, rotation=45 if long else 0, ha="right" if long else "center", size=small
        )
        if long:
            for label in axes.get_xticklabels():
                label.set_rotation_mode("anchor")
        axes.set_yticks(range(n_classes), names, size=small)
        axes.set_xticks(np.arange(n_classes + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(n_classes + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="predicted", ylabel="true")
        n_right, n_all = int(counts.trace()), int(counts.sum())
        axes.set_title(_title(title, f"{n_right} of {n_all} right ({100 * n_right / n_all:.1f} %)"), size=11, pad=10)
        bar = figure.colorbar(
            image, ax=axes, shrink=min(0.7, 3 / side), aspect=18, ticks=[0, 0.5, 1], label="share of the true class"
        )
        bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
        bar.outline.set_visible(False)
        _save(path, figure)


def plot_reliability(path: str | os.PathLike[str], report: Mapping[str, Any], title: str = "") -> None:
    """Writes the reliability diagram as a PNG: accuracy over confidence, and how many predictions there are of each.

    Raises:
      InputError: the path does not end in `.png`, or its folder cannot be made.
    """
    count, confidence, accuracy = (np.array(report["reliability"][key]) for key in ("count", "confidence", "accuracy"))
    full = count > 0
    left = np.arange(N_BINS) / N_BINS
    error = float(count @ np.abs(accuracy - confidence) / count.sum())
    with _style():
        figure = _figure(4.8, 5.8)
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        axes.bar(left, accuracy, 1 / N_BINS, align="edge", color=_BLUE, edgecolor="white", label="share that is right")
        axes.plot([0, 1], [0, 1], color="#596474", linestyle="--", linewidth=1.2, label="perfect calibration")
        axes.plot(
            confidence[full],
            confidence[full],
            linestyle="none",
            marker="D",
            markersize=5,
            color=_ORANGE,
            markeredgecolor="white",
            label="mean confidence of the bin",
        )
        axes.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
        below.bar(left, count, 1 / N_BINS, align="edge", color="#596474", edgecolor="white")
        below.set(xlabel="confidence: probability of the predicted label", ylabel="predictions")
        below.yaxis.get_major_locator().set_params(integer=True, nbins=4)
        figure.suptitle(_title(title, f"expected calibration error {100 * error:.1f} %"), size=11)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=9)
        figure.align_ylabels()
        _save(path, figure)


def write_report(folder: str | os.PathLike[str], split: str, report: Mapping[str, Any]) -> None:
    """Writes a report as text, `classes_<split>.txt`, and as `confusion_<split>.png` and `reliability_<split>.png`.

    Raises:
      InputError: the folder cannot be made.
    """
    folder = Path(folder)
    make_directory(folder, "folder")
    text = f"{per_class_table(report)}\n\n{confusion_table(report)}\n"
    write_atomically(folder / f"classes_{split}.txt", text.encode("utf-8"))
    plot_confusion(folder / f"confusion_{split}.png", report, split)
    plot_reliability(folder / f"reliability_{split}.png", report, split)


def _wrapped(name: str) -> str:
    """A label in at most two lines; what is left out of a longer one shows as dots."""
    name = _printable(name)
    return "\n".join(textwrap.wrap(name, _NAME_WIDTH, max_lines=2, placeholder=" …")) or name


def _printable(name: str) -> str:
    """A label on one line."""
    return "".join(character if character.isprintable() else " " for character in name)


def _title(title: str, summary: str) -> str:
    return f"{title}: {summary}" if title else summary


def _style() -> Any:
    """A context in which pictures look the same whatever the user's matplotlibrc says."""
    import matplotlib

    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    return matplotlib.rc_context({**defaults, **_STYLE})


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # without pyplot: a notebook's backend is not touched

    return Figure(figsize=(width, height), layout="constrained")


def _save(path: str | os.PathLike[str], figure: Figure) -> None:
    path = Path(path)
    if path.suffix != ".png":
        raise InputError(f"{path}: pictures are written as .png; change the suffix")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    make_directory(path.parent, "path")
    write_atomically(path, file.getvalue())
