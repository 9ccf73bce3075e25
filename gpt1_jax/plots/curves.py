"""Curves over the updates of a run: any number of points, with gaps, and values that are no numbers.

The records are the lines of `metrics.jsonl` (`gpt1_jax.metrics.read_metrics`). A figure is None where there is nothing
to draw in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpt1_jax.plots.style import BLUE, INK, MUTED, VERMILLION, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
"""(update, value), in the order of the updates."""

MAX_POINTS = 600
"""Of a curve as it is drawn; a longer one shows the mean of its stretches, and their range as a band."""
_MAX_MARKED = 40
TRAINING = {"color": MUTED, "linewidth": 1.3}
HELDOUT = {"color": BLUE, "linewidth": 1.6, "marker": "D", "markersize": 5, "markeredgecolor": "white"}


def points_of(records: Iterable[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    """The values of a metric, the last one of every step, in the order of the steps."""
    found = {
        record["step"]: float(record[name])
        for record in records
        if "step" in record and isinstance(record.get(name), int | float) and not isinstance(record[name], bool)
    }
    return sorted(found.items())


def exponentials(losses: Points) -> list[tuple[float, float]]:
    """Perplexities of losses in nats; infinite where a loss is no number any more."""
    with np.errstate(over="ignore"):
        return [(step, float(np.exp(value))) for step, value in losses]


@styled
def loss_figure(training: Points, heldout: Points = (), rates: Points = (), *, width: float = 6.4) -> Figure | None:
    """Training and held-out loss over the updates, the learning rate small below."""
    if not training and not heldout:
        return None
    figure, axes, below = _panels(width, small=bool(rates))
    draw_curve(axes, training, "training", **TRAINING)
    draw_curve(axes, heldout, "held-out", **HELDOUT)
    axes.set(ylabel="loss (nats per token)", xlim=(0, None))
    if training and heldout:
        axes.legend(loc=_legend_place(training))
    if below:
        draw_rates(below, rates)
    return figure


@styled
def perplexity_figure(
    heldout: Points, bits_per_byte: Points = (), training: Points = (), *, width: float = 6.4
) -> Figure | None:
    """Held-out perplexity over the updates, with that of training where it is given, bits per byte small below."""
    if not heldout and not training:
        return None
    figure, axes, below = _panels(width, small=bool(bits_per_byte))
    draw_curve(axes, training, "training", **TRAINING)
    _draw_last(axes, heldout, "held-out", digits=1)
    log_if_wide(axes, [*_values(heldout), *_values(training)])
    axes.set(ylabel="perplexity" if training else "held-out perplexity", xlim=(0, None))
    if training and heldout:
        axes.legend(loc=_legend_place(training))
    if below:
        _draw_last(below, bits_per_byte, "bits per byte", digits=2)
        below.set(ylabel="bits per\nbyte")
    return figure


@styled
def gradient_norm_figure(norms: Points, *, width: float = 6.4) -> Figure | None:
    """The norm of the gradient, before clipping."""
    if not norms:
        return None
    figure, axes, _ = _panels(width, small=False, height=2.6)
    draw_curve(axes, norms, "norm", **TRAINING)
    axes.set(ylabel="gradient norm", xlim=(0, None))
    log_if_wide(axes, _values(norms), factor=20)
    return figure


@styled
def speed_figure(tokens_per_second: Points, mfu: Points = (), *, width: float = 6.4) -> Figure | None:
    """Tokens per second, the share of the devices' peak (MFU) small below."""
    if not tokens_per_second:
        return None
    from matplotlib.ticker import EngFormatter, PercentFormatter

    figure, axes, below = _panels(width, small=bool(mfu), height=2.6)
    draw_curve(axes, tokens_per_second, "tokens per second", **TRAINING)
    axes.set(ylabel="tokens per second", xlim=(0, None), ylim=(0, None))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    if below:
        draw_curve(below, mfu, "MFU", **TRAINING)
        below.set(ylabel="MFU", ylim=(0, None))
        below.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def draw_rates(axes: Axes, rates: Points) -> None:
    """The learning rate, in a panel of its own."""
    from matplotlib.ticker import FuncFormatter

    draw_curve(axes, rates, "learning rate", **TRAINING)
    axes.set(ylabel="learning\nrate", ylim=(0, None))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def draw_curve(axes: Axes, points: Points, label: str, **line: Any) -> None:
    """Draws a curve: a long one as the mean and range of its stretches, values that are no numbers as crosses below."""
    if not points:
        return
    steps, values = (np.asarray(x, float) for x in zip(*points, strict=True))
    finite = np.isfinite(values)
    if not finite.all():
        at = steps[~finite][:: max(1, int((~finite).sum()) // MAX_POINTS)]
        axes.plot(
            at,
            np.zeros_like(at),
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            linestyle="none",
            marker="x",
            color=VERMILLION,
            label=f"{label}: no number ({(~finite).sum():,} of {len(values):,})",
            zorder=3,
        )
        axes.legend(loc="upper right")
    if not finite.any():
        return
    if len(values) > MAX_POINTS:
        steps, values, low, high = _thinned(steps, values)
        axes.fill_between(steps, low, high, color=line.get("color"), alpha=0.25, linewidth=0)
    else:
        values = np.where(finite, values, np.nan)
    if "marker" in line and len(values) > _MAX_MARKED:
        line = {name: value for name, value in line.items() if not name.startswith("marker")}
    if "marker" not in line and (alone := _alone(values)).any():  # a line of one point shows nothing
        axes.plot(steps[alone], values[alone], linestyle="none", marker="o", markersize=4, color=line.get("color"))
    axes.plot(steps, values, label=label, **line)


def log_if_wide(axes: Axes, values: Sequence[float], *, factor: float = 4) -> None:
    """A logarithmic axis with plain numbers, where the values are positive and `factor` apart."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or min(finite) <= 0 or max(finite) <= factor * min(finite):
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    few = max(finite) < 1000 * min(finite)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:.0e}"))


def over_updates(axes: Axes) -> None:
    """The horizontal axis of a run: whole numbers with separators."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel("updates")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _legend_place(points: Points) -> Literal["upper right", "best"]:
    return "upper right" if len(points) > _MAX_MARKED else "best"  # which looks at every point


def _values(points: Points) -> list[float]:
    return [value for _, value in points]


def _alone(values: np.ndarray) -> np.ndarray:
    """Where a value has no neighbour: bool [N]."""
    there = np.isfinite(values)
    before, after = np.r_[False, there[:-1]], np.r_[there[1:], False]
    return there & ~before & ~after


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Middle, mean, lowest and highest of `MAX_POINTS` stretches of as many points each; NaN where none is a number."""
    parts = []
    for at, part in zip(np.array_split(steps, MAX_POINTS), np.array_split(values, MAX_POINTS), strict=True):
        part = part[np.isfinite(part)]
        parts.append((at.mean(), part.mean(), part.min(), part.max()) if len(part) else (at.mean(), *[np.nan] * 3))
    return tuple(np.asarray(x) for x in zip(*parts, strict=True))


def _draw_last(axes: Axes, points: Points, label: str, digits: int) -> None:
    """A curve with its last value written out."""
    if not points:
        return
    draw_curve(axes, points, label, **HELDOUT)
    step, value = points[-1]
    if math.isfinite(value):
        text = f"{value:,.{digits}f}"
        axes.annotate(text, (step, value), (0, 7), textcoords="offset points", ha="center", weight="bold", color=INK)
    axes.margins(x=0.08, y=0.25)
    axes.set(xlim=(0, None))


def _panels(width: float, *, small: bool, height: float = 2.9) -> tuple[Figure, Axes, Axes | None]:
    """A large panel over the updates and, if asked for, a small one below it."""
    figure = new_figure(width, height + 0.6 if small else height)
    panels = figure.subplots(1 + small, 1, sharex=True, squeeze=False, height_ratios=(3, 1)[: 1 + small])[:, 0]
    over_updates(panels[-1])
    return figure, panels[0], panels[1] if small else None
