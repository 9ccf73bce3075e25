"""The figures of the quick start's report, as SVG for an HTML page.

Every colour is a CSS variable of the page (`gpt1_jax/report/page.css`), so that one drawing serves light, dark and
paper, and text stays text. Figures are made without pyplot: a notebook's backend is not touched.
"""

from __future__ import annotations

import html
import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outcome import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.8  # inches of 72 pt; a page shows a figure at most that large, and scales it down on a phone
COLOURS = {  # CSS variable -> what the drawing is made with: one value for each
    "ink": "#1b2430",
    "muted": "#596474",
    "rule": "#dbe0e7",
    "page": "#ffffff",
    "scratch": "#b34e00",
    "pretrained": "#0069ad",
}
MARKERS = {"scratch": "o", "pretrained": "D"}  # told apart by shape as well
_COIN = 50.0
_LINE = {"color": COLOURS["muted"], "linewidth": 1.3}
_HELDOUT_LINE = {
    "color": COLOURS["pretrained"],
    "linewidth": 1.6,
    "marker": MARKERS["pretrained"],
    "markersize": 5,
    "markeredgecolor": COLOURS["page"],
}
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 11.0,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["muted"],
    "axes.facecolor": "none",
    "axes.labelcolor": COLOURS["ink"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "xtick.color": COLOURS["muted"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.color": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["ink"],
}


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
    with _style():
        figure = _figure(0.4 * rows + 0.8)
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


def loss_plot(
    training: Sequence[tuple[int, float]], heldout: Sequence[tuple[int, float]], rates: Sequence[tuple[int, float]]
) -> str:
    """Training and held-out loss over the updates, the learning rate small below."""
    if not training and not heldout:
        return ""
    with _style():
        figure, axes, below = _panels(small=bool(rates))
        if training:
            axes.plot(*zip(*training, strict=True), label="training", **_LINE)
        if heldout:
            axes.plot(*zip(*heldout, strict=True), label="held-out", **_HELDOUT_LINE)
        axes.set(ylabel="loss (nats per token)", xlim=(0, None))
        axes.legend(loc="upper right")
        if below:
            below.plot(*zip(*rates, strict=True), **_LINE)
            below.set(ylabel="learning\nrate", ylim=(0, None))
        return _svg(figure, "loss", "Training and held-out loss over the updates, and the learning rate")


def perplexity_plot(perplexity: Sequence[tuple[int, float]], bits_per_byte: Sequence[tuple[int, float]]) -> str:
    """Held-out perplexity over the updates, bits per byte small below."""
    if not perplexity:
        return ""
    values = [value for _, value in perplexity]
    with _style():
        figure, axes, below = _panels(small=bool(bits_per_byte))
        if min(values) > 0 and max(values) > 4 * min(values):
            from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        _draw_heldout(axes, perplexity, "held-out perplexity", digits=1)
        if below:
            _draw_heldout(below, bits_per_byte, "bits per\nbyte", digits=2)
        return _svg(figure, "perplexity", "Held-out perplexity and bits per byte over the updates")


def _draw_heldout(axes: Axes, points: Sequence[tuple[int, float]], y_label: str, digits: int) -> None:
    """A curve with its last value written out."""
    axes.plot(*zip(*points, strict=True), **_HELDOUT_LINE)
    last = f"{points[-1][1]:,.{digits}f}"
    axes.annotate(last, points[-1], (0, 7), textcoords="offset points", ha="center", weight="bold")
    axes.margins(x=0.08, y=0.25)
    axes.set(ylabel=y_label, xlim=(0, None))


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


def _style() -> Any:
    """A context in which drawings look the same whatever the user's matplotlibrc says."""
    import matplotlib

    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    return matplotlib.rc_context({**defaults, **_STYLE})


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def _panels(*, small: bool) -> tuple[Figure, Axes, Axes | None]:
    """A large panel over the updates and, if asked for, a small one below it."""
    figure = _figure(3.5 if small else 2.9)
    panels = figure.subplots(1 + small, 1, sharex=True, squeeze=False, height_ratios=(3, 1)[: 1 + small])[:, 0]
    panels[-1].set_xlabel("updates")
    return figure, panels[0], panels[1] if small else None


def _svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an `<svg>` element whose ids begin with `name`, since a page's ids must differ."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    text = text[text.index("<svg") :]
    width = math.ceil(WIDTH * 96)
    label = html.escape(description)
    text = re.sub(r"^<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{label}">', text)
    text = text.replace("<svg ", f'<svg style="max-width: {width}px" ', 1).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    for variable, colour in COLOURS.items():
        text = text.replace(f": {colour}", f": var(--{variable})")
    return text.strip()
