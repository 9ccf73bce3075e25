"""The drawing rules against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.drawing import draw, restrict


def kept(scores: np.ndarray, top_k: int | None, top_p: float) -> list[int]:
    """The ids that may be drawn, likeliest first."""
    ids = np.argsort(-scores, kind="stable")[:top_k]
    p = np.exp(scores[ids].astype(np.float64) - scores.max())
    mass = np.cumsum(p / p.sum())
    return ids[: 1 + int(np.sum(mass < top_p))].tolist() if top_p < 1 else ids.tolist()


def test_restrict_keeps_exactly_the_sets():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(6, 97)).astype(np.float32) * 2
    scores[3] = np.round(scores[3])  # many ties
    scores[4] = -1e6 * np.abs(scores[4])
    scores[5] = 0.25
    scores[2, ::2] = -np.inf
    run = jax.jit(restrict)
    for top_k in (1, 2, 7, 40, 97):
        for top_p in (1e-40, 1e-6, 0.123, 0.517, 0.931, 1.0):
            result = np.asarray(run(scores, jnp.int32(top_k), jnp.float32(top_p)))
            for before, after in zip(scores, result, strict=True):
                ids = [t for t in kept(before, top_k, top_p) if before[t] > -np.inf]
                assert np.flatnonzero(after > -np.inf).tolist() == sorted(ids), (top_k, top_p)
                assert np.array_equal(after[ids], before[ids])


def test_top_p_by_hand():
    scores = jnp.log(jnp.asarray([[0.1, 0.4, 0.05, 0.25, 0.2]]))
    for top_k, top_p, ids in (
        (5, 0.39, [1]),
        (5, 0.41, [1, 3]),
        (5, 0.9, [0, 1, 3, 4]),
        (3, 0.7, [1, 3]),
        (3, 0.8, [1, 3, 4]),
    ):
        result = jax.jit(restrict)(scores, jnp.int32(top_k), jnp.float32(top_p))[0]
        assert np.flatnonzero(result > -np.inf).tolist() == ids


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 8, 1.0), (0.6, 8, 1.0), (1.0, 5, 0.8), (2.0, 3, 1.0)]
)
def test_draws_follow_the_distribution(temperature, top_k, top_p):
    logits = np.asarray([0.3, 2.0, -1.0, 1.1, 0.0, -3.0, 0.9, -0.2], np.float32)
    n = 20_000
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(n))
    args = (jnp.float32(temperature), jnp.int32(top_k), jnp.float32(top_p))
    drawn = np.asarray(jax.jit(draw)(jnp.tile(logits, (n, 1)), keys, *args))
    ids = kept(logits / temperature, top_k, top_p)
    p = np.exp(logits[ids] / temperature)
    expected = n * p / p.sum()
    counts = np.bincount(drawn, minlength=8)
    assert counts[ids].sum() == n
    chi_square = np.sum((counts[ids] - expected) ** 2 / expected)
    assert chi_square < 24.3  # 0.1 % of the chi-square distribution with 7 degrees of freedom


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drawn_as_argmax_and_categorical_do(temperature):
    logits = jnp.round(jax.random.normal(jax.random.key(1), (16, 3000)), 1)  # hundreds of equals
    keys = jax.random.split(jax.random.key(0), 16)
    args = (jnp.float32(temperature), jnp.int32(3000), jnp.float32(1))
    scores = (logits - logits.max(axis=-1, keepdims=True)) / np.float32(temperature or 1)
    expected = jax.vmap(jax.random.categorical)(keys, scores) if temperature else jnp.argmax(logits, axis=-1)
    assert jax.jit(draw)(logits, keys, *args).tolist() == expected.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-30])
def test_no_temperature_is_too_cold(temperature):
    logits = jnp.asarray([[1e30, -1e30, 3e30], [1.0, 2.0, -jnp.inf]])
    keys = jax.random.split(jax.random.key(0))
    drawn = jax.jit(draw)(logits, keys, jnp.float32(temperature), jnp.int32(3), jnp.float32(1))
    assert drawn.tolist() == [2, 1]
