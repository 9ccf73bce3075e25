"""What a model expects after every token of a text, as a table of colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpt1_jax.introspection import NextTokens, text_after, token_texts
from gpt1_jax.plots.style import INK, MUTED, VERMILLION, new_figure, styled, token_label
from gpt1_jax.tokenizers import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

ROWS = 40
"""Tokens of one figure; a longer text gets several."""
_CELL = 1.3  # inches


def next_tokens_figures(tokenizer: Tokenizer, tokens: Sequence[int], expected: NextTokens) -> list[Figure]:
    """Row by row: a token, the likeliest ones after it with their probabilities, and the one that came.

    Args:
      tokenizer: of the model.
      tokens: a text of L tokens.
      expected: what `introspection.next_tokens` gives for [tokens], the only row of its batch.
    """
    return [
        _figure(tokenizer, tokens, expected, first, min(first + ROWS, len(tokens)))
        for first in range(0, len(tokens), ROWS)
    ]


@styled
def _figure(tokenizer: Tokenizer, tokens: Sequence[int], expected: NextTokens, first: int, end: int) -> Figure:
    ids, probabilities = expected.ids[0, first:end], expected.probabilities[0, first:end]
    n_rows, k = ids.shape
    figure = new_figure((k + 2) * _CELL + 2.0, 0.27 * n_rows + 0.9)
    axes = figure.add_subplot()
    image = axes.imshow(probabilities, vmin=0, vmax=1, aspect="auto")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    for (row, column), token in np.ndenumerate(ids):
        probability = float(probabilities[row, column])
        label = token_label(text_after(tokenizer, tokens[: first + row + 1], int(token)))
        came = first + row + 1 < len(tokens) and tokens[first + row + 1] == token
        axes.text(
            column - 0.46,
            row,
            label if len(label) <= 10 else f"{label[:9]}…",
            ha="left",
            va="center",
            size=8,
            weight="bold" if came else "normal",
            color="white" if probability > 0.6 else INK,
        )
        colour = "white" if probability > 0.6 else INK
        axes.text(column + 0.47, row, _percent(probability), ha="right", va="center", size=7, color=colour)
        if came:
            axes.add_patch(_frame(column, row))
    texts = [token_label(text) for text in token_texts(tokenizer, tokens)]
    axes.set_yticks(range(n_rows), texts[first:end], size=8)
    axes.set_xticks(range(k), [f"{i + 1}" for i in range(k)], size=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xlabel("the likeliest next tokens, the likeliest first; framed the one that came, if among them")
    axes.set_ylabel("after")
    places = ((k - 0.35, "left"), (k + 0.95, "right"), (k + 1.45, "right"))
    for (x, side), text in zip(places, ("came", "", "rank"), strict=True):
        axes.text(x, -0.62, text, ha=side, va="bottom", size=8)
    for row in range(min(n_rows, len(tokens) - 1 - first)):
        probability, rank = expected.probability[0, first + row], expected.rank[0, first + row]
        came = (
            (texts[first + row + 1], _percent(probability), f"{rank:,}") if rank else (texts[first + row + 1], "", "")
        )
        for (x, side), text in zip(places, came, strict=True):
            axes.text(x, row, text, ha=side, va="center", size=8, color=MUTED if side == "right" else INK)
    axes.set_xlim(-0.5, k + 1.5)
    bar = figure.colorbar(image, ax=axes, shrink=min(0.9, 2 / (0.27 * n_rows + 0.5)), ticks=[0, 0.5, 1], aspect=12)
    bar.ax.set_yticklabels(["0 %", "50 %", "100 %"], size=8)
    bar.set_label("probability", size=8)
    bar.outline.set_visible(False)
    return figure


def _percent(probability: float) -> str:
    percent = 100 * probability
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %" if percent >= 0.095 else "<0.1 %"


def _frame(column: int, row: int) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.49, row - 0.47), 0.98, 0.94, fill=False, edgecolor=VERMILLION, linewidth=1.6)
