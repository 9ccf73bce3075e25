"""Attention over a cache against attention over everything at once: other blocks, the same result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.kernels import cached
from gpt1_jax.kernels.cached import cached_attention
from gpt1_jax.kernels.xla import xla_attention


def arrays(n_new, n_slots, dtype=np.float32):
    """q, k and v [3, n_new, 2, 8], and a cache [3, 2, n_slots, 8] that is full of something."""
    rng = np.random.default_rng(0)
    new = [jnp.asarray(rng.normal(size=(3, n_new, 2, 8)), dtype) for _ in range(3)]
    return new, tuple(jnp.asarray(100 * rng.normal(size=(3, 2, n_slots, 8)), dtype) for _ in range(2))


def whole(q, k, v, cache, start):
    """What is wanted, from the written cache and one softmax over all its slots."""
    keys, values = ([np.array(x) for x in cache][i] for i in range(2))
    for slots, new in ((keys, k), (values, v)):
        for b, at in enumerate(start):
            slots[b, :, at : at + new.shape[1]] = np.swapaxes(new[b], 0, 1)
    q_slots = np.asarray(start)[:, None] + np.arange(q.shape[1])
    k, v = (jnp.swapaxes(jnp.asarray(slots), 1, 2) for slots in (keys, values))
    return xla_attention(q, k, v, jnp.asarray(q_slots), None, None), (keys, values)


@pytest.mark.parametrize("n_new", [1, 7])
@pytest.mark.parametrize("n_slots", [8, 16, 30])  # a block; two; the last begins in the one before
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_blocks_are_one_softmax(n_new, n_slots, dtype, atol, monkeypatch):
    monkeypatch.setattr(cached, "BLOCK", 8)
    new, cache = arrays(n_new, n_slots, dtype)
    cache = jax.tree.map(lambda x: x / 100, cache)
    attention = jax.jit(cached_attention)
    for start in ([0, 1, 0], [n_slots - n_new, 0, 1], [min(n_slots // 2 - 1, n_slots - n_new), 1, n_slots - n_new]):
        start = np.array(start, np.int32)
        out, written = attention(*new, cache, start)
        expected, (keys, values) = whole(*new, cache, start)
        assert out.dtype == expected.dtype == dtype
        np.testing.assert_allclose(np.float32(out), np.float32(expected), rtol=0, atol=atol)
        assert np.array_equal(written[0], keys)
        assert np.array_equal(written[1], values)


def test_blocks_that_nothing_fills_are_not_read(monkeypatch):
    monkeypatch.setattr(cached, "BLOCK", 8)
    new, cache = arrays(1, 32)
    spoilt = jax.tree.map(lambda x: x.at[:, :, 16:].set(jnp.nan), cache)
    attention = jax.jit(functools.partial(cached_attention, *new))
    start = np.array([3, 15, 0], np.int32)
    assert np.array_equal(attention(spoilt, start)[0], attention(cache, start)[0])
    assert np.isnan(attention(spoilt, start + 1)[0][1]).all()  # its 17th token is in the third block
