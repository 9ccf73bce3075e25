"""The figures of the quick start's report, as SVG for an HTML page.

They are drawn by `gpt1_jax.plots`. Every colour is a CSS variable of the page (`gpt1_jax/report/page.css`), so that one
drawing serves light, dark and paper, and text stays text.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from outcome import NAMES

from gpt1_jax.plots.curves import Points, loss_figure, perplexity_figure
from gpt1_jax.plots.style import BLUE, VERMILLION, new_figure
from gpt1_jax.plots.svg import PAGE, page_look, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.8  # inches of 72 pt; a page shows a figure at most that large, and scales it down on a phone
COLOURS = PAGE | {"scratch": VERMILLION, "pretrained": BLUE}
MARKERS = {"scratch": "o", "pretrained": "D"}  # told apart by shape as well
_COIN = 50.0


def accuracy_plot(groups: Sequence[tuple[str, str, Mapping[str, Sequence[float]]]], x_label: str) -> str:
    """Every run as a dot, the median of a side as a bar.

    Args:
      groups: from top to bottom, each a title, a remark for its right end, and start -> accuracies in percent.
      x_label: what is measured, on what.
    """
    groups = [(*words, {start: values for start, values in sides.items() if values}) for *words, sides in groups]
    accuracies = [value for _, _, sides in groups for values in sides.values() for value in values]
    if not accuracies:
        return ""
    low, high = min(accuracies), max(accuracies)
    with_coin = low < _COIN + 15  # further away it would only squeeze the dots
    low = min(low, _COIN) if with_coin else low
    room = max(high - low, 2.0)
    rows = sum(1 + len(sides) for _, _, sides in groups)
    with page_look():
        figure = new_figure(WIDTH, 0.4 * rows + 0.8)
        axes = figure.add_subplot()
        ticks: list[tuple[float, str]] = []
        y = 0.0
        for title, remark, sides in groups:
            axes.axhline(y + 0.75, color=COLOURS["rule"], linewidth=0.8)
            axes.annotate(remark, (1, y), xycoords=("axes fraction", "data"), ha="right", va="center", weight="bold")
            ticks.append((y, title))
            for start, values in sides.items():
                y -= 1
                ticks.append((y, NAMES[start]))
                _draw_side(axes, y, start, values, gid=f"runs-{len(ticks)}")
            y -= 1.35
        axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
        for label, (_, text) in zip(axes.get_yticklabels(), ticks, strict=True):
            label.set_weight("normal" if text in NAMES.values() else "bold")
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set(xlim=(low - 0.06 * room, high + 0.26 * room), ylim=(y + 0.75, 0.75), xlabel=x_label)
        if with_coin:
            axes.axvline(_COIN, color=COLOURS["muted"], linewidth=1, linestyle=(0, (2, 2)))
            axes.annotate(
                "coin toss",
                (_COIN, 1),
                (3, 2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                color=COLOURS["muted"],
                size=10,
            )
        return _svg(figure, "accuracy", "Test accuracy of every run, with and without pre-training")


def loss_plot(training: Points, heldout: Points, rates: Points) -> str:
    """Training and held-out loss over the updates, the learning rate small below."""
    with page_look():
        figure = loss_figure(training, heldout, rates, width=WIDTH)
        return _svg(figure, "loss", "Training and held-out loss over the updates, and the learning rate")


def perplexity_plot(perplexity: Points, bits_per_byte: Points) -> str:
    """Held-out perplexity over the updates, bits per byte small below."""
    with page_look():
        figure = perplexity_figure(perplexity, bits_per_byte, width=WIDTH)
        return _svg(figure, "perplexity", "Held-out perplexity and bits per byte over the updates")


def _draw_side(axes: Axes, y: float, start: str, values: Sequence[float], gid: str) -> None:
    """One row of dots: spread over the row's height, so that equal runs do not hide each other."""
    median = statistics.median(values)
    step = min(0.26, 0.7 / len(values))
    offsets = [(i - (len(values) - 1) / 2) * step for i in range(len(values))]
    axes.plot([median, median], [y - 0.45, y + 0.45], color=COLOURS[start], linewidth=2.5, solid_capstyle="butt")
    axes.plot(
        values,
        [y - offset for offset in offsets],
        linestyle="none",
        marker=MARKERS[start],
        markersize=7 if start == "scratch" else 6,
        color=COLOURS[start],
        markeredgecolor=COLOURS["page"],
        gid=gid,
    )
    axes.annotate(f"{median:.1f} %", (max(values), y), (9, 0), textcoords="offset points", va="center")


def _svg(figure: Figure | None, name: str, description: str) -> str:
    return "" if figure is None else svg(figure, name, description, COLOURS)
