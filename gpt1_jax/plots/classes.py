"""What a classifier gets right and wrong, as pictures of a report (`gpt1_jax.tasks.report.class_report`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_jax.plots.style import BLUE, INK, MUTED, VERMILLION, new_figure, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_NUMBERED = 40  # classes; the cells of a larger matrix are too small for text


@styled
def confusion_figure(report: Mapping[str, Any], title: str = "") -> Figure:
    """The confusion matrix.

    Rows are true classes, shaded by the share of the class, so that rare classes are seen as well as common ones; the
    numbers are counts.

    Args:
      report: "labels", K names, and "confusion", K lists of K counts.
      title: what the examples are.
    """
    counts = np.array(report["confusion"])
    n_classes = len(counts)
    support = counts.sum(axis=1)
    shares = counts / np.maximum(support, 1)[:, None]
    cell = 1.15 if n_classes <= 4 else 0.7 if n_classes <= 10 else 0.5 if n_classes <= _MAX_NUMBERED else 20 / n_classes
    side = n_classes * cell  # inches
    names = [wrapped(name) for name in report["labels"]]
    small = max(4.0, min(10.0, 16 * cell))
    figure = new_figure(side + 2.9, side + 1.9)
    axes = figure.add_subplot()
    image = axes.imshow(shares, vmin=0, vmax=1)
    if n_classes <= _MAX_NUMBERED:
        largest = len(str(counts.max()))
        size = min(10.0 if n_classes <= 10 else 8.0, 105 * cell / max(largest, 4))
        for (i, j), count in np.ndenumerate(counts):
            text = f"{count}" if n_classes > 4 or not support[i] else f"{count}\n{100 * shares[i, j]:.1f} %"
            colour = "white" if shares[i, j] > 0.65 else INK if count else "#8a94a3"
            axes.text(j, i, text, ha="center", va="center", color=colour, size=size)
    long = max(len(line) for name in names for line in name.split("\n")) * 0.085 > cell
    axes.set_xticks(range(n_classes), names, rotation=45 if long else 0, ha="right" if long else "center", size=small)
    if long:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.set_yticks(range(n_classes), names, size=small)
    axes.set_xticks(np.arange(n_classes + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(n_classes + 1) - 0.5, minor=True)
    axes.grid(visible=False)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="predicted", ylabel="true")
    n_right, n_all = int(counts.trace()), int(counts.sum())
    summary = f"{n_right} of {n_all} right ({100 * n_right / max(n_all, 1):.1f} %)"
    axes.set_title(_title(title, summary), pad=10, loc="center")
    bar = figure.colorbar(
        image, ax=axes, shrink=min(0.7, 3 / side), aspect=18, ticks=[0, 0.5, 1], label="share of the true class"
    )
    bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
    bar.outline.set_visible(False)
    return figure


@styled
def reliability_figure(report: Mapping[str, Any], title: str = "") -> Figure:
    """The reliability diagram: accuracy over confidence, and how many predictions there are of each.

    Args:
      report: "reliability", "count", "confidence" and "accuracy" of bins of equal width.
      title: what the examples are.
    """
    count, confidence, accuracy = (np.array(report["reliability"][key]) for key in ("count", "confidence", "accuracy"))
    full = count > 0
    n_bins = len(count)
    left = np.arange(n_bins) / n_bins
    error = float(count @ np.abs(accuracy - confidence) / count.sum())
    figure = new_figure(4.8, 5.8)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.bar(left, accuracy, 1 / n_bins, align="edge", color=BLUE, edgecolor="white", label="share that is right")
    axes.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1.2, label="perfect calibration")
    axes.plot(
        confidence[full],
        confidence[full],
        linestyle="none",
        marker="D",
        markersize=5,
        color=VERMILLION,
        markeredgecolor="white",
        label="mean confidence of the bin",
    )
    axes.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    below.bar(left, count, 1 / n_bins, align="edge", color=MUTED, edgecolor="white")
    below.set(xlabel="confidence: probability of the predicted label", ylabel="predictions")
    below.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    figure.suptitle(_title(title, f"expected calibration error {100 * error:.1f} %"), size=11)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center")
    figure.align_ylabels()
    return figure


def _title(title: str, summary: str) -> str:
    return f"{title}: {summary}" if title else summary
