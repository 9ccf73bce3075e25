"""Curves over the updates: what is drawn of any number of points, with gaps, and of values that are no numbers."""

import math

import numpy as np
import pytest

from gpt1_jax.plots.curves import (
    MAX_POINTS,
    gradient_norm_figure,
    loss_figure,
    perplexity_figure,
    points_of,
    speed_figure,
)
from gpt1_jax.plots.style import png


def lines(axes):
    """The lines of a panel by their labels, as lists of points."""
    return {line.get_label(): np.asarray(line.get_xydata()) for line in axes.lines}


def test_points_are_in_order_with_the_last_value_of_a_step():
    records = [
        {"step": 20, "loss": 3.0},
        {"step": 10, "loss": 4.0},
        {"step": 10, "heldout_loss": 9.0},
        {"step": 20, "loss": 2.0},
        {"step": 30, "loss": math.nan},
        {"step": 40, "loss": None},
        {"step": 50, "loss": "text"},
        {"step": 60, "loss": True},
        {"loss": 7.0},
        {},
    ]
    found = points_of(records, "loss")
    assert found[:2] == [(10, 4.0), (20, 2.0)]
    assert found[2][0] == 30
    assert math.isnan(found[2][1])
    assert len(found) == 3


def test_a_short_curve_shows_every_point():
    training = [(i, 5 - i / 100) for i in range(1, 101)]
    figure = loss_figure(training, training[9::10], [(i, i * 1e-5) for i in range(1, 101)])
    axes, below = figure.axes
    np.testing.assert_array_equal(lines(axes)["training"], training)
    np.testing.assert_array_equal(lines(axes)["held-out"], training[9::10])
    assert (axes.get_ylabel(), below.get_ylabel()) == ("loss (nats per token)", "learning\nrate")
    assert below.get_xlabel() == "updates"


def test_a_long_curve_shows_the_mean_and_the_range_of_its_stretches():
    rng = np.random.default_rng(0)
    values = 5 + rng.normal(size=100_000)
    values[50_123] = 40.0  # a spike may not vanish
    axes = loss_figure(list(enumerate(values, 1))).axes[0]
    (band,) = axes.collections
    means = lines(axes)["training"]
    assert len(means) == MAX_POINTS
    assert means[:, 1].mean() == pytest.approx(values.mean(), abs=1e-3)
    assert band.get_datalim(axes.transData).ymax == 40.0
    assert band.get_datalim(axes.transData).ymin == values.min()
    assert png(axes.figure)


def test_values_that_are_no_numbers_are_gaps_with_marks():
    values = [5.0, 4.0, math.nan, math.nan, 3.0, math.inf, 2.0, 1.5]
    axes = loss_figure(list(enumerate(values, 1))).axes[0]
    marks = lines(axes)["training: no number (3 of 8)"]
    assert marks[:, 0].tolist() == [3, 4, 6]
    np.testing.assert_array_equal(np.isnan(lines(axes)["training"][:, 1]), ~np.isfinite(values))
    assert any(np.array_equal(line.get_xydata(), [[5, 3.0]]) for line in axes.lines)  # alone between two gaps
    assert png(axes.figure)


def test_nothing_but_values_that_are_no_numbers():
    axes = loss_figure([(1, math.nan), (2, math.inf)]).axes[0]
    assert list(lines(axes)) == ["training: no number (2 of 2)"]
    assert png(axes.figure)


def test_one_point_is_a_mark():
    axes = loss_figure([(7, 3.0)]).axes[0]
    assert any(line.get_marker() == "o" and line.get_xydata().tolist() == [[7, 3.0]] for line in axes.lines)
    assert png(axes.figure)


def test_what_is_missing_has_no_panel():
    points = [(1, 4.0), (2, 3.0)]
    assert len(loss_figure(points).axes) == 1
    assert len(loss_figure([], points, points).axes) == 2
    assert len(perplexity_figure(points).axes) == 1
    assert len(perplexity_figure([], training=points).axes) == 1
    assert len(speed_figure(points).axes) == 1
    assert len(speed_figure(points, points).axes) == 2
    assert loss_figure([]) is perplexity_figure([]) is gradient_norm_figure([]) is speed_figure([]) is None


def test_the_last_heldout_values_are_written_out():
    axes, below = perplexity_figure([(1, 250.0), (2, 43.21)], [(1, 3.0), (2, 2.345)]).axes
    assert [text.get_text() for text in (*axes.texts, *below.texts)] == ["43.2", "2.35"]
    assert (axes.get_yscale(), below.get_yscale()) == ("log", "linear")


@pytest.mark.parametrize(("values", "scale"), [((0.0, 1.0, 50.0), "linear"), ((1, 15), "linear"), ((0.1, 50), "log")])
def test_norms_far_apart_have_a_logarithmic_axis(values, scale):
    assert gradient_norm_figure(list(enumerate(values))).axes[0].get_yscale() == scale
