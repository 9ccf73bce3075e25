"""Pictures of attention, next tokens and embeddings: what they show, of any size and text."""

import numpy as np
import pytest

from gpt1_jax.introspection import NextTokens
from gpt1_jax.plots.attention import attention_figure, attention_layers, attention_overview
from gpt1_jax.plots.embeddings import cosines, norm_figure, position_figure, token_map_figure
from gpt1_jax.plots.next_tokens import ROWS, next_tokens_figures
from gpt1_jax.plots.style import png


def random_maps(*shape):
    weights = np.tril(np.random.default_rng(0).random(shape) + 0.1)
    return weights / weights.sum(-1, keepdims=True)


class Letters:
    """A tokenizer of 26 letters."""

    vocab_size = 26
    document_separator = ()

    def decode(self, ids):
        return "".join(chr(ord("a") + i) for i in ids)


def maps_of(figure):
    return [axes for axes in figure.axes if axes.get_visible() and axes.images and axes.get_label() != "<colorbar>"]


def test_the_overview_has_every_layer_and_head_and_nothing_of_the_future():
    maps = random_maps(3, 4, 7, 7)
    panels = maps_of(attention_overview(maps))
    assert len(panels) == 12
    shown = panels[4 * 1 + 2].images[0].get_array()
    np.testing.assert_array_equal(shown.filled(0), maps[1, 2])
    assert shown.mask.tolist() == np.triu(np.ones((7, 7), bool), 1).tolist()
    assert [axes.get_title() for axes in panels[:4]] == ["head 1", "head 2", "head 3", "head 4"]
    assert panels[8].get_ylabel() == "layer 3"
    assert attention_overview(np.zeros((0, 4, 7, 7))) is None


@pytest.mark.parametrize(("n_tokens", "n_named"), [(1, 1), (48, 48), (49, 25), (512, 47)])
def test_of_many_tokens_some_are_named(n_tokens, n_named):
    texts = [f" {i}" for i in range(n_tokens)]
    axes = attention_figure(random_maps(n_tokens, n_tokens), texts, "layer 2, head 1").axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == n_named
    assert labels == [f"␣{int(at)}" for at in axes.get_yticks()]


def test_layers_are_means_over_the_heads():
    maps = random_maps(5, 3, 4, 4)
    figure = attention_layers(maps, ["<start>", "$x$", "\n", "\x00"])
    panels = maps_of(figure)
    assert [axes.get_title() for axes in panels] == [f"layer {i}" for i in range(1, 6)]
    np.testing.assert_allclose(panels[4].images[0].get_array().filled(0), maps[4].mean(0))
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["<start>", "$x$", "⏎", "U+0000"]
    assert png(figure)


def test_next_tokens_are_framed_where_they_came():
    ids = np.array([[[1, 2], [3, 4], [5, 6]]])
    expected = NextTokens(
        ids,
        np.array([[[0.9, 0.04], [0.5, 0.2], [0.0004, 0.0003]]]),
        np.array([[0.04, 0.00001]]),
        np.array([[2, 12345]]),
    )
    (figure,) = next_tokens_figures(Letters(), [0, 2, 9], expected)
    axes = figure.axes[0]
    (frame,) = axes.patches
    assert (frame.get_x(), frame.get_y()) == pytest.approx((1 - 0.49, 0 - 0.47))
    texts = [text.get_text() for text in axes.texts]
    assert texts[:4] == ["b", "90 %", "c", "4.0 %"]
    assert texts[-6:] == ["c", "4.0 %", "2", "j", "<0.1 %", "12,345"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "c", "j"]


def test_a_long_text_has_several_pages():
    n = 2 * ROWS + 3
    rng = np.random.default_rng(0)
    expected = NextTokens(
        rng.integers(0, 26, (1, n, 3)), rng.random((1, n, 3)), rng.random((1, n - 1)), rng.integers(1, 27, (1, n - 1))
    )
    figures = next_tokens_figures(Letters(), [i % 26 for i in range(n)], expected)
    assert [len(figure.axes[0].get_yticks()) for figure in figures] == [ROWS, ROWS, 3]


def test_cosines_and_positions():
    vectors = np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.0, 0.0]])
    half = np.sqrt(0.5)
    np.testing.assert_allclose(cosines(vectors), [[1, 0, half, 0], [0, 1, half, 0], [half, half, 1, 0], [0] * 4])
    axes, beside = position_figure(vectors[:3]).axes[:2]
    np.testing.assert_allclose(axes.images[0].get_array(), cosines(vectors[:3]))
    np.testing.assert_allclose(beside.lines[0].get_ydata(), [1, (0 + half) / 2, half])


@pytest.mark.parametrize("n_embd", [1, 8])
@pytest.mark.parametrize("n_tokens", [2, 60])
def test_the_map_of_tokens_has_every_token_and_no_overlapping_names(n_tokens, n_embd):
    vectors = np.random.default_rng(0).normal(size=(n_tokens, n_embd))
    figure = token_map_figure(vectors, [f" word{i}" for i in range(n_tokens)], np.arange(n_tokens)[::-1])
    axes = figure.axes[0]
    assert len(axes.collections[0].get_offsets()) == n_tokens
    assert axes.texts[0].get_text() == "␣word0"
    assert 1 <= len(axes.texts) <= n_tokens
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_norms_over_counts():
    counts = np.array([1000, 10, 10, 1, 0, 0])
    axes = norm_figure(np.arange(1.0, 7.0), counts).axes[0]
    seen, unseen = axes.collections
    assert seen.get_offsets().tolist() == [[1000, 1], [10, 2], [10, 3], [1, 4]]
    assert unseen.get_offsets()[:, 1].tolist() == [5, 6]
    assert unseen.get_label() == "never (2)"
    assert png(norm_figure(np.ones(4)))
    assert png(norm_figure(np.ones(4), np.zeros(4, int)))
    assert png(norm_figure(np.ones(4), np.full(4, 7)))
