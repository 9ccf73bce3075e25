"""Table 5 and the two sides of figure 2 as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt1_jax.plots.style import INK, MARKERS, MUTED, PALETTE, new_figure, printable, styled
from gpt1_jax.reproduce import paper
from gpt1_jax.reproduce.config import ReproduceConfig
from gpt1_jax.reproduce.scores import Scores, Spread
from gpt1_jax.reproduce.series import Curve, curves, layer_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figures(config: ReproduceConfig, scores: Scores) -> dict[str, Figure]:
    """Name to picture, of the parts that were asked for and have something to draw."""
    drawn = {}
    if "table5" in config.parts:
        drawn["table5"] = _table5(config, scores)
    if "figure2_left" in config.parts:
        drawn["figure2_left"] = _layers(config, scores)
    if "figure2_right" in config.parts:
        drawn["figure2_right"] = _zero_shot(curves(config, scores))
    return {name: figure for name, figure in drawn.items() if figure is not None}


@styled
def _table5(config: ReproduceConfig, scores: Scores) -> Figure | None:
    """Every run as a dot, the median as a bar: a panel for each task and, where there are several, the average."""
    names = [n for n, entry in config.tasks.items() if entry.ablated and n in scores.plan.scored]
    panels = {config.title(name): {v: Spread.of(scores.task(name, v)) for v in paper.VARIANTS} for name in names}
    if len(names) > 1:
        average = {v: Spread.of(scores.average(names, v)) for v in paper.VARIANTS}
        panels = {f"Average of {len(names)} tasks": average, **panels}
    panels = {title: sides for title, sides in panels.items() if any(sides.values())}
    if not panels:
        return None
    n_columns = min(3, len(panels))
    n_rows = -(-len(panels) // n_columns)
    figure = new_figure(2.2 + 2.2 * n_columns, 0.5 + 1.5 * n_rows)
    axes = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True)
    for i, axis in enumerate(axes.flat):
        if i >= len(panels):
            axis.set_visible(False)
            continue
        title = list(panels)[i]
        _dots(axis, list(panels[title].values()))
        axis.set_title(printable(title))
        axis.set_yticks(range(len(paper.VARIANTS)), list(paper.VARIANTS.values()))
        if i >= len(panels) - n_columns:
            axis.set_xlabel("score (%)")
    axes.flat[0].invert_yaxis()
    return figure


def _dots(axis: Axes, sides: Sequence[Spread | None]) -> None:
    for y, spread in enumerate(sides):
        if spread is None:
            continue
        n = len(spread.values)
        ys = [y + 0.16 * (i - (n - 1) / 2) for i in range(n)]
        axis.plot([spread.median] * 2, [y - 0.36, y + 0.36], color=PALETTE[y], linewidth=2.5, solid_capstyle="butt")
        axis.plot(
            spread.values,
            ys,
            linestyle="none",
            marker=MARKERS[y],
            markersize=6,
            color=PALETTE[y],
            markeredgecolor="white",
        )
        axis.annotate(
            f"{spread.median:.1f}", (spread.high, y), (8, 0), textcoords="offset points", va="center", size=9, color=INK
        )
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)
    axis.margins(x=0.2, y=0.2)


@styled
def _layers(config: ReproduceConfig, scores: Scores) -> Figure | None:
    """Score over layers transferred: the median, and the range over the seeds as a band."""
    names = [n for n, entry in config.tasks.items() if entry.layers and layer_points(scores, n)]
    if not names:
        return None
    figure = new_figure(6.4, 3.6)
    axis = figure.add_subplot()
    n_layer = scores.plan.n_layer
    for i, name in enumerate(names):
        color, marker = _look(i)
        for train in (False, True):
            points = layer_points(scores, name, train=train)
            if not points:
                continue
            xs, spreads = [*points], [*points.values()]
            split = "train" if train else scores.plan.scored[name][0].split
            axis.plot(
                xs,
                [spread.median for spread in spreads],
                color=color,
                marker=marker,
                markersize=6,
                markeredgecolor="white",
                linestyle="--" if train else "-",
                label=printable(f"{config.title(name)}, {split}"),
            )
            low, high = [spread.low for spread in spreads], [spread.high for spread in spreads]
            axis.fill_between(xs, low, high, color=color, alpha=0.08 if train else 0.2, linewidth=0)
    ticks = [-1, 0, *_whole(n_layer)]
    axis.set_xticks(ticks, ["nothing", "embed-\ndings", *map(str, ticks[2:])])
    axis.set(xlabel="layers transferred (with the embeddings)", ylabel="score (%)")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _look(i: int) -> tuple[str, str]:
    """Colour and marker of task number i: colours begin again with other markers, so that the pairs stay apart."""
    return PALETTE[i % len(PALETTE)], MARKERS[(i + i // len(PALETTE)) % len(MARKERS)]


def _whole(n_layer: int) -> list[int]:
    step = max(1, n_layer // 12)
    return [*range(step, n_layer, step), n_layer]


@styled
def _zero_shot(drawn: Sequence[Curve]) -> Figure | None:
    """Relative zero-shot performance over the updates: lines for the Transformer, dashes for the LSTM."""
    drawn = [c for c in drawn if None not in (c.chance, c.ceiling) and any(step for step, _ in c.points)]
    if not drawn:
        return None
    figure = new_figure(6.4, 3.6)
    axis = figure.add_subplot()
    tasks = list(dict.fromkeys(curve.task for curve in drawn))
    for curve in drawn:
        color, marker = _look(tasks.index(curve.task))
        points = [(step, curve.relative(value)) for step, value in curve.points if step]
        lstm = curve.trunk == "lstm"
        axis.plot(
            *zip(*points, strict=True),
            color=color,
            marker=marker,
            markersize=5,
            markerfacecolor="white" if lstm else color,
            markeredgecolor=color if lstm else "white",
            linestyle="--" if lstm else "-",
            label=printable(f"{curve.title}, {'LSTM' if lstm else 'Transformer'}"),
        )
    steps = [step for curve in drawn for step, _ in curve.points if step]
    if max(steps) >= 100 * min(steps):
        axis.set_xscale("log")
    axis.axhline(0, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    axis.set(xlabel="updates of pre-training", ylabel="relative performance\n(0: random guess, 1: best)")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
