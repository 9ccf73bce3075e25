"""What the embedding tables have learned: W_p by the likeness of its positions, W_e by directions and norms.

Shapes: D n_embd, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_jax.plots.style import BLUE, INK, MUTED, VERMILLION, new_figure, styled, token_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Cosine similarity of all pairs: float [N, D] -> [N, N]; 0 with a vector that is 0."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1)
    return unit @ unit.T


@styled
def position_figure(positions: np.ndarray) -> Figure:
    """The cosine similarity of all pairs of positions, and its mean at every distance.

    Args:
      positions: W_p, float [n_ctx, D].
    """
    from matplotlib.ticker import MaxNLocator

    similarity = cosines(np.asarray(positions, np.float64))
    n_ctx = len(similarity)
    figure = new_figure(9.2, 4.2)
    axes, beside = figure.subplots(1, 2, width_ratios=(1.1, 1))
    image = axes.imshow(similarity, cmap="RdBu_r", vmin=-1, vmax=1)
    axes.grid(visible=False)
    axes.set(xlabel="position", ylabel="position", title="cosine similarity of position embeddings")
    bar = figure.colorbar(image, ax=axes, shrink=0.85, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.outline.set_visible(False)
    means = [np.diagonal(similarity, distance).mean() for distance in range(n_ctx)]
    marks = {"marker": "o", "markersize": 3} if n_ctx <= 40 else {}
    beside.plot(range(n_ctx), means, color=BLUE, **marks)
    beside.axhline(0, color=MUTED, linewidth=0.8)
    beside.set(xlabel="distance between two positions", ylabel="mean cosine similarity")
    beside.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return figure


@styled
def token_map_figure(
    vectors: np.ndarray, texts: Sequence[str], counts: np.ndarray | None = None, text: str = "the training text"
) -> Figure:
    """Tokens on the two directions in which they differ most (PCA); names where there is room, the first come first.

    Args:
      vectors: rows of W_e, float [N, D], the most frequent ones first.
      texts: of the N tokens.
      counts: how often each occurs, which decides its colour; None where nobody knows.
      text: in what was counted.
    """
    import matplotlib
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.ticker import EngFormatter
    from sklearn.decomposition import PCA

    found = PCA(2 if min(vectors.shape) > 1 else 1, svd_solver="full").fit(vectors)
    xy = found.transform(vectors)
    xy = np.pad(xy, ((0, 0), (0, 2 - xy.shape[1])))
    x, y = xy.T
    shares = [*(100 * np.nan_to_num(found.explained_variance_ratio_)), 0.0]
    figure = new_figure(8.0, 6.4)
    axes = figure.add_subplot()
    axes.grid(visible=False)
    if counts is None:
        axes.scatter(x, y, s=10, color=BLUE, linewidths=0)
    else:
        blues = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.35, 1, 256)))  # all of them show on white
        points = axes.scatter(x, y, s=10, c=np.maximum(counts, 1), cmap=blues, norm=LogNorm(), linewidths=0)
        bar = figure.colorbar(points, ax=axes, shrink=0.6, label=f"occurrences in {text}", format=EngFormatter(sep=""))
        bar.ax.minorticks_off()
        bar.outline.set_visible(False)
    axes.set(
        xlabel=f"first principal component ({shares[0]:.0f} % of the variance)",
        ylabel=f"second ({shares[1]:.0f} %)",
        title=f"{len(vectors):,} token embeddings",
    )
    axes.margins(0.12, 0.08)
    _label(figure, axes, xy, [token_label(text) for text in texts])
    return figure


@styled
def norm_figure(norms: np.ndarray, counts: np.ndarray | None = None, text: str = "the training text") -> Figure:
    """The norm of every token's embedding over how often it occurs, or over its id where nobody knows.

    Args:
      norms: float [V].
      counts: int [V], or None.
      text: in what was counted.
    """
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    size, alpha = (8, 0.8) if len(norms) < 2000 else (3, 0.35)
    mark: dict[str, Any] = {"s": size, "alpha": alpha, "linewidths": 0, "rasterized": True}
    axes.set(ylabel="norm of the token's embedding", ylim=(0, 1.08 * max(norms.max(), 1e-9)))
    if counts is None:
        axes.scatter(range(len(norms)), norms, color=BLUE, **mark)
        axes.set_xlabel("id of the token")
        return figure
    from matplotlib.ticker import EngFormatter, NullLocator

    seen = counts > 0
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_locator(NullLocator())
    if seen.any():
        axes.scatter(counts[seen], norms[seen], color=BLUE, label="occurs", **mark)
        axes.plot(*_medians(counts[seen], norms[seen]), color=INK, linewidth=1.4, label="median")
    if not seen.all():
        n_unseen = int((~seen).sum())
        mark |= {"s": 40, "linewidths": 1, "marker": "_"}
        axes.scatter(np.full(n_unseen, 0.5), norms[~seen], color=VERMILLION, label=f"never ({n_unseen:,})", **mark)
    axes.set_xlabel(f"occurrences in {text}")
    axes.legend(loc="lower right", markerscale=2)
    return figure


def _medians(counts: np.ndarray, norms: np.ndarray) -> tuple[list[float], list[float]]:
    """Middle counts and median norms of tokens that occur about equally often."""
    edges = np.unique(np.geomspace(1, counts.max() + 1, 13))
    inside = [(counts >= low) & (counts < high) for low, high in itertools.pairwise(edges)]
    inside = [part for part in inside if part.any()]
    middles = [float(np.exp(np.log(counts[part]).mean())) for part in inside]
    return middles, [float(np.median(norms[part])) for part in inside]


def _label(figure: Figure, axes: Axes, xy: np.ndarray, labels: Sequence[str]) -> None:
    """Writes labels beside their points, in their order, where they cover no other label."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # places are final: a name would move the others
    taken: list[Bbox] = []
    for (x, y), label in zip(xy, labels, strict=True):
        text = axes.annotate(label, (x, y), (3, 2), textcoords="offset points", size=7, color=INK)
        box = text.get_window_extent()
        if any(box.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(box)
