"""Learning curves of fine-tuning: one run, or one config with several seeds.

`runs` maps a run's name to its lines of `metrics.jsonl`. Of several runs each is a thin line, the median a thick one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.plots.curves import Points, draw_curve, draw_rates, over_updates, points_of
from gpt1_jax.plots.style import BLUE, INK, MUTED, VERMILLION, WIDTH, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = Mapping[str, Sequence[Mapping[str, Any]]]

_LOSSES = {"task_loss": "task loss L2", "lm_loss": "language-model\nloss L1 (nats per token)"}
_TRAINING = ("loss", "learning_rate")  # what lines of training have, and those of an evaluation do not


@styled
def loss_figure(runs: Runs) -> Figure | None:
    """The two losses of training over the updates (paper, section 3.2), and the learning rate small below."""
    curves = {name: [points_of(records, name) for records in runs.values()] for name in _LOSSES}
    drawn = [name for name, found in curves.items() if any(found)]
    if not drawn:
        return None
    figure = new_figure(WIDTH, 2.3 * len(drawn) + 1.1)
    panels = figure.subplots(len(drawn) + 1, 1, sharex=True, height_ratios=(*[3] * len(drawn), 1))
    for axes, name in zip(panels, drawn, strict=False):
        _draw_runs(axes, curves[name], marked=False)
        axes.set(ylabel=_LOSSES[name], xlim=(0, None))
    rates = next((points for records in runs.values() if (points := points_of(records, "learning_rate"))), [])
    draw_rates(panels[-1], rates)
    over_updates(panels[-1])
    figure.align_ylabels()
    return figure


@styled
def validation_figure(runs: Runs, *, best_step: int | None = None) -> Figure | None:
    """The validation metrics after every epoch, a panel for each, and the step whose parameters were kept."""
    names = evaluated(record for records in runs.values() for record in records)
    if not names:
        return None
    figure = new_figure(WIDTH, 2.2 * len(names) + 0.7)
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        found = [points_of(records, name) for records in runs.values()]
        _draw_runs(axes, found, marked=True)
        if best_step is not None:
            axes.axvline(best_step, color=VERMILLION, linewidth=1, linestyle=(0, (3, 2)), zorder=0)
        axes.set(ylabel=name.replace("_", " "), xlim=(0, None))
        axes.margins(y=0.2)
    if best_step is not None:
        panels[0].annotate(
            "kept",
            (best_step, 1),
            (0, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            color=VERMILLION,
            size=9,
        )
    over_updates(panels[-1])
    figure.align_ylabels()
    return figure


def evaluated(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the metrics of evaluations, in their order."""
    names: dict[str, None] = {}
    for record in records:
        if not any(name in record for name in _TRAINING):
            names |= dict.fromkeys(name for name in record if name != "step" and points_of([record], name))
    return list(names)


def _draw_runs(axes: Axes, runs: Sequence[Points], *, marked: bool) -> None:
    """One run as a line; of several each as a thin one, and their median at the steps that all have."""
    there = [points for points in runs if points]
    mark = {"marker": "o", "markersize": 4, "markeredgecolor": "white"} if marked else {}
    if len(there) == 1:
        draw_curve(axes, there[0], "", color=BLUE, **mark)
        if marked:
            _write_last(axes, there[0])
        return
    for points in there:
        draw_curve(axes, points, "", color=MUTED, linewidth=0.8, alpha=0.7)
    common = set.intersection(*({step for step, _ in points} for points in there)) if there else set()
    median = [(step, statistics.median(dict(points)[step] for points in there)) for step in sorted(common)]
    draw_curve(axes, median, f"median of {len(there)}", color=BLUE, linewidth=2.2, **mark)
    if marked and median:
        _write_last(axes, median)
    if median and len(there) > 1:
        axes.plot([], [], color=MUTED, linewidth=0.8, label="each seed")
        axes.legend(loc="best")


def _write_last(axes: Axes, points: Points) -> None:
    step, value = points[-1]
    axes.annotate(
        f"{value:.3g}", (step, value), (0, 6), textcoords="offset points", ha="right", weight="bold", color=INK
    )
