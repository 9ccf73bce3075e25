"""Attention as heat maps, of what `gpt1_jax.introspection.attention_maps` gives.

Shapes: H heads, L length. Layers and heads are counted from 1, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpt1_jax.plots.style import MUTED, new_figure, styled, token_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_MAX_LABELS = 48  # tokens of an axis that are named; of more, every second, third, ...


@styled
def attention_overview(maps: np.ndarray) -> Figure | None:
    """Every layer and head, small: a row of maps for each layer. None where there are no layers.

    Args:
      maps: float [n_layer, H, L, L].
    """
    n_layer, n_head = maps.shape[:2]
    if not n_layer:
        return None
    cell = min(1.2, max(0.55, 7.2 / n_head))
    figure = new_figure(n_head * cell + 1.3, n_layer * cell + 0.8)
    panels = figure.subplots(n_layer, n_head, squeeze=False)
    for (layer, head), axes in np.ndenumerate(panels):
        image = _heat_map(axes, maps[layer, head])
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(visible=True, color=MUTED, linewidth=0.5)
        if layer == 0:
            axes.set_title(f"head {head + 1}", size=8, loc="center")
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}", size=8, rotation=0, ha="right", va="center")
    figure.set_layout_engine("constrained", w_pad=0.01, h_pad=0.01, wspace=0.02, hspace=0.02)
    figure.supxlabel("in each map: the token that is looked at", size=9)
    figure.supylabel("in each map: the token that looks", size=9)
    _colour_bar(figure, image, panels, shrink=min(1.0, 3.0 / (n_layer * cell)))
    return figure


@styled
def attention_layers(maps: np.ndarray, texts: Sequence[str]) -> Figure | None:
    """The mean over the heads of every layer, with the tokens named. None where there are no layers.

    Args:
      maps: float [n_layer, H, L, L].
      texts: of the L tokens.
    """
    n_layer = len(maps)
    if not n_layer:
        return None
    columns = min(n_layer, 2 if n_layer <= 4 else 3)
    rows = math.ceil(n_layer / columns)
    side = min(3.6, max(1.8, 0.15 * len(texts)))  # inches
    figure = new_figure(columns * (side + 0.9) + 0.8, rows * (side + 1.1))
    panels = figure.subplots(rows, columns, squeeze=False)
    for layer, axes in enumerate(panels.flat):
        if layer >= n_layer:
            axes.set_visible(False)
            continue
        image = _heat_map(axes, maps[layer].mean(axis=0))
        _name(axes, texts)
        axes.set_title(f"layer {layer + 1}", loc="center")
    figure.supxlabel("the token that is looked at", size=10)
    figure.supylabel("the token that looks", size=10)
    _colour_bar(figure, image, panels, shrink=min(0.9, 3.0 / (rows * side)), label="mean over the heads")
    return figure


@styled
def attention_figure(attention: np.ndarray, texts: Sequence[str], title: str = "") -> Figure:
    """One map with the tokens named.

    Args:
      attention: float [L, L], a row for each token that looks.
      texts: of the L tokens.
      title: which layer and head.
    """
    side = min(8.0, max(1.8, 0.2 * len(texts)))
    figure = new_figure(side + 2.2, side + 1.4)
    axes = figure.add_subplot()
    image = _heat_map(axes, attention)
    _name(axes, texts)
    axes.set(xlabel="the token that is looked at", ylabel="the token that looks")
    axes.set_title(title, loc="center")
    _colour_bar(figure, image, axes, shrink=min(0.9, 3.0 / side))
    return figure


def _heat_map(axes: Axes, attention: np.ndarray) -> AxesImage:
    from matplotlib.colors import PowerNorm

    axes.grid(visible=False)
    axes.spines[:].set(visible=True, color=MUTED, linewidth=0.5)
    later = np.triu(np.ones(attention.shape, bool), 1)
    # A power shows what is small: over many tokens, most of it is.
    norm = PowerNorm(0.5 if len(attention) <= 64 else 0.3, vmin=0, vmax=1)
    return axes.imshow(np.ma.array(attention, mask=later), norm=norm, interpolation="auto")


def _name(axes: Axes, texts: Sequence[str]) -> None:
    step = math.ceil(len(texts) / _MAX_LABELS)
    at = range(0, len(texts), step)
    labels = [token_label(texts[i]) for i in at]
    size = 8 if len(labels) <= 24 else 6
    axes.set_xticks(at, labels, rotation=90, size=size)
    axes.set_yticks(at, labels, size=size)
    axes.tick_params(length=0 if step == 1 else 2)


def _colour_bar(
    figure: Figure, image: AxesImage, axes: Axes | np.ndarray, *, shrink: float, label: str = "attention"
) -> None:
    bar = figure.colorbar(image, ax=axes, shrink=shrink, aspect=18, ticks=[0, 0.1, 0.25, 0.5, 1], label=label)
    bar.ax.set_yticklabels(["0", "0.1", "0.25", "0.5", "1"])
    bar.outline.set_visible(False)
