"""Scores: soft targets as in Tai et al. by hand, both losses and their gradients in NumPy, what is read out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.errors import InputError
from gpt1_jax.model_config import ReadOut
from gpt1_jax.scores import predicted_scores, score_loss, soft_targets
from gpt1_jax.tasks.readout import default_points, make_readout

STSB = ReadOut("similarity", score_range=(0.0, 5.0), score_points=6)
LEE = ReadOut("similarity", score_range=(0.2, 1.0), score_points=5)
SQUARED = ReadOut("similarity", score_range=(1.0, 5.0))


@pytest.mark.parametrize(
    ("score", "target"),
    [
        (0.0, [1, 0, 0, 0, 0, 0]),
        (5.0, [0, 0, 0, 0, 0, 1]),
        (3.0, [0, 0, 0, 1, 0, 0]),
        (3.75, [0, 0, 0, 0.25, 0.75, 0]),
        (0.25, [0.75, 0.25, 0, 0, 0, 0]),
        (4.5, [0, 0, 0, 0, 0.5, 0.5]),
    ],
)
def test_a_score_is_shared_between_the_whole_numbers_next_to_it(score, target):
    np.testing.assert_array_equal(soft_targets(jnp.array([score]), STSB)[0], np.float32(target))


def test_the_points_of_another_range():
    """0.2, 0.4, 0.6, 0.8 and 1: both ends are points, exactly."""
    targets = soft_targets(jnp.array([0.2, 1.0, 0.25, 0.4, 0.9]), LEE)
    np.testing.assert_array_equal(targets[:2], [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    expected = [[0.75, 0.25, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0.5, 0.5]]
    np.testing.assert_allclose(targets[2:], expected, atol=1e-6)


@settings(deadline=None)
@given(
    low=st.floats(-100, 100),
    width=st.floats(0.1, 100),
    points=st.integers(2, 30),
    place=st.floats(0, 1),
)
def test_a_target_is_a_distribution_whose_expected_value_is_the_score(low, width, points, place):
    readout = ReadOut("similarity", score_range=(low, low + width), score_points=points)
    score = low + place * width
    target = np.float64(soft_targets(jnp.array([score]), readout)[0])
    assert target.min() >= 0
    assert (target > 1e-3).sum() <= 2
    assert target.sum() == pytest.approx(1, abs=1e-5)
    rounding = 1e-5 * (abs(low) + width) * points
    assert target @ np.linspace(low, low + width, points) == pytest.approx(score, abs=rounding)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


SCORES = np.array([0.0, 5.0, 3.0, 3.8, 1.25], np.float32)
OUTPUTS = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


def test_the_soft_loss_is_the_divergence_from_the_target():
    target = np.zeros((5, 6))
    for row, y in enumerate(np.float64(SCORES)):
        floor = int(np.floor(y))
        target[row, floor] = floor - y + 1
        if y > floor:
            target[row, floor + 1] = y - floor
    log_p = log_softmax(np.float64(OUTPUTS))
    expected = np.sum(target * (np.log(np.where(target > 0, target, 1)) - log_p), axis=-1)
    np.testing.assert_allclose(score_loss(OUTPUTS, SCORES, STSB), expected, rtol=1e-5)
    gradient = jax.grad(lambda x: score_loss(x, SCORES, STSB).sum())(OUTPUTS)
    np.testing.assert_allclose(gradient, np.exp(log_p) - target, atol=1e-6)


def test_the_soft_loss_is_zero_at_the_target_and_finite_far_from_it():
    with np.errstate(divide="ignore"):
        perfect = np.maximum(np.log(soft_targets(SCORES, STSB)), -60)
    np.testing.assert_allclose(score_loss(perfect, SCORES, STSB), 0, atol=1e-6)
    np.testing.assert_allclose(predicted_scores(perfect, STSB), SCORES, atol=1e-5)
    wrong = 1e4 * np.eye(6, dtype=np.float32)[[5, 0, 0, 0, 5]]
    loss, gradient = jax.value_and_grad(lambda x: score_loss(x, SCORES, STSB).sum())(wrong)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_the_squared_error_is_that_of_the_place_in_the_range():
    outputs = np.array([[0.0], [1.0], [0.5], [-0.25]], np.float32)
    scores = np.array([1.0, 1.0, 4.0, 5.0], np.float32)
    np.testing.assert_allclose(score_loss(outputs, scores, SQUARED), [0, 1, 0.25**2, 1.25**2])
    gradient = jax.grad(lambda x: score_loss(x, scores, SQUARED).sum())(outputs)
    np.testing.assert_allclose(gradient[:, 0], [0, 2, -0.5, -2.5])
    np.testing.assert_allclose(predicted_scores(outputs, SQUARED), [1, 5, 3, 0])  # the last is outside


def test_the_expected_value_is_predicted():
    p = np.exp(log_softmax(np.float64(OUTPUTS)))
    np.testing.assert_allclose(predicted_scores(OUTPUTS, STSB), p @ np.arange(6), rtol=1e-5)
    np.testing.assert_allclose(predicted_scores(OUTPUTS[:, :5], LEE)[0], softmax_mean(OUTPUTS[0, :5]), rtol=1e-5)


def softmax_mean(x):
    return np.exp(log_softmax(np.float64(x))) @ np.array([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize(
    ("score_range", "points"),
    [((0, 5), 6), ((1, 5), 5), ((-1, 1), 3), ((0, 20), 21), ((0, 21), 6), ((0, 1), 6), ((0.2, 1.0), 6), ((0, 100), 6)],
)
def test_points_by_default(score_range, points):
    assert default_points(score_range) == points


def test_a_task_says_how_its_scores_are_read_out(custom):
    def readout(**settings):
        return make_readout(custom(train="a.csv", kind="similarity", score_range=(0, 5), **settings))

    assert readout() == STSB
    assert readout(score_points=11).n_outputs == 11
    squared = readout(score_loss="squared")
    assert (squared.score_points, squared.n_outputs, squared.score_range) == (0, 1, (0.0, 5.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score_loss": "hinge"}, "score_loss: 'hinge' is not one of 'soft', 'squared'"),
        ({"score_points": 1}, "score_points=1 .*at least 2"),
        ({"score_points": 6, "score_loss": "squared"}, "score_points=6 with score_loss='squared'"),
        ({"score_range": (), "score_points": 6}, "the task has classes"),
        ({"score_range": (), "score_loss": "squared"}, "the task has classes"),
    ],
)
def test_what_a_task_cannot_say(custom, changes, message):
    with pytest.raises(InputError, match=message):
        custom(train="a.csv", kind="similarity", **{"score_range": (0, 5), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "multiple_choice"}, "kind='multiple_choice' with labels=.* has classes"),
        ({"labels": ("a", "b")}, r"labels=\['a', 'b'\] has classes"),
        ({"score_range": (5, 0)}, r"score_range=\(5.0, 0.0\): two numbers"),
        ({"score_range": (0, float("inf"))}, r"score_range\[1\]=inf must be a finite number"),
        ({"score_range": (0, 1, 2)}, "two numbers"),
        ({"score_points": 1}, "score_points=1 must be at least 2"),
        ({"score_points": -1}, "score_points=-1 must be at least 2"),
        ({"score_range": None}, "score_points=6: there is no score_range"),
    ],
)
def test_read_outs_that_do_not_fit(changes, message):
    with pytest.raises(InputError, match=message):
        ReadOut(**{"kind": "similarity", "score_range": (0, 5), "score_points": 6, **changes})
