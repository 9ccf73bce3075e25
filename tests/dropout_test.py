"""Masks are independent coin tosses, and the same ones wherever and in whatever pieces they are tossed.

Correlations are given as z = r sqrt(n), which is standard normal for independent masks. Everything is seeded, so the
bounds never fail by chance; they are what the largest of that many normal numbers stays below.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gpt1_jax.dropout import MASKS, Dropout, dropout_site, keep_mask, keep_threshold
from gpt1_jax.sharding import MeshConfig, make_mesh

RATES = (0.1, 0.5)


def key_words(*seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, 2**32, 2, np.uint32))


def draw(key: jax.Array, shape: tuple[int, ...], rate: float, rows: Any = None) -> np.ndarray:
    rows = jnp.arange(shape[0]) if rows is None else jnp.asarray(rows)
    return np.asarray(keep_mask(key, rows, shape, rate))


def standardised(mask: np.ndarray, rate: float) -> np.ndarray:
    """As numbers of mean 0 and variance 1."""
    return (mask - (1 - rate)) / np.sqrt(rate * (1 - rate))


def z_of_pair(a: np.ndarray, b: np.ndarray, rate: float) -> float:
    return float((standardised(a, rate) * standardised(b, rate)).mean() * np.sqrt(a.size))


@pytest.mark.parametrize("rate", [0.1, 0.7])
@pytest.mark.parametrize("shape", [(16, 8192), (8, 64, 256), (4, 4, 64, 128)])
def test_keep_rate(rate, shape):
    """Overall, and chi-square along every axis: no row, head, position or column is favoured."""
    x = standardised(draw(key_words(1), shape, rate), rate)
    assert abs(x.mean() * np.sqrt(x.size)) < 4
    for axis, n in enumerate(shape):
        others = tuple(a for a in range(len(shape)) if a != axis)
        chi_square = (x.mean(others) ** 2 * (x.size / n)).sum()
        assert abs(chi_square - n) < 5 * np.sqrt(2 * n) + 5, axis


@pytest.mark.parametrize("rate", RATES)
def test_lines_are_independent_also_when_shifted_or_permuted(rate):
    """Every line of a mask (a head's query position) against every other, moved by k or with its index XORed by k.

    A hash of row + column, or of row ^ column, gives masks that are moved or XORed copies of each other: z = sqrt(n).
    """
    n, n_moves = 2048, 64
    mask = draw(key_words(2), (2, 3, 4, n + n_moves), rate).reshape(-1, n + n_moves)
    lines = standardised(mask, rate).astype(np.float32)
    index, moves = np.arange(n), np.arange(n_moves)[:, None]
    for moved in (index + moves, index ^ moves):
        z = np.tensordot(lines[:, moved], lines[:, :n], (2, 1)) / np.sqrt(n)  # [line, move, line]
        np.fill_diagonal(z[:, 0], 0.0)
        assert np.abs(z).max() < 7  # of 37,000; a copy has 45


def test_no_line_is_a_copy_of_another():
    """Among all lines of a mask none is another one, moved or XORed; by chance that takes 10^7 such masks.

    With one 32-bit word for each line and column + word (or column ^ word) hashed, there would be about eight copies.
    """
    n, n_lines = 64, 4 * 16 * 512
    bits = draw(key_words(10), (4, 16, 512, 2 * n), 0.5).reshape(n_lines, 2 * n)

    def packed(bits: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.packbits(bits, axis=1)).view(np.uint64)[:, 0]

    lines = np.sort(packed(bits[:, :n]))
    assert (lines[1:] != lines[:-1]).all()
    for k in range(1, n):
        for moved in (packed(bits[:, k : k + n]), packed(bits[:, np.arange(n) ^ k])):
            at = np.searchsorted(lines, moved)
            assert (lines[np.minimum(at, n_lines - 1)] != moved).all(), k


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_neighbours_are_independent(rate, axis):
    """Along each axis: rows, heads, query positions, key positions."""
    x = np.moveaxis(draw(key_words(3), (16, 16, 32, 32), rate), axis, 0)
    for lag in (1, 2, 3, 4, 5, 7, 8):
        assert abs(z_of_pair(x[lag:], x[:-lag], rate)) < 4.5, lag
        blocks = x[: len(x) // 16 * 16]
        assert abs(z_of_pair(blocks, blocks[np.arange(len(blocks)) ^ lag], rate)) < 4.5 * np.sqrt(2), lag


def test_keys_are_independent():
    """Also keys that differ in one bit of one word only."""
    first = key_words(4)
    flips = np.array([[1, 0], [2**31, 0], [0, 1], [0, 2**31]], np.uint32)
    masks = [draw(key, (8, 4, 32, 64), 0.3) for key in (first, key_words(5), first[::-1], *(first ^ flips))]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs(z_of_pair(a, b, 0.3)) < 4.5


def test_no_index_wraps_at_32_bits():
    """Rows 0 and 1024 of [*, 4, 1024, 1024] are 2^32 entries apart."""
    shape = (2, 4, 1024, 1024)
    mask = draw(key_words(6), shape, 0.1, rows=[0, 1024])
    assert abs(z_of_pair(mask[0], mask[1], 0.1)) < 4.5


def test_a_row_keeps_its_mask_in_any_batch(devices):
    """In another order, in a micro-batch, in a shorter or longer batch, under jit, and sharded."""
    key, shape = key_words(7), (16, 4, 8, 8)
    whole = draw(key, shape, 0.4)
    for rows in ([5, 2, 9], [15], range(3, 16, 4)):
        rows = np.asarray(list(rows))
        np.testing.assert_array_equal(draw(key, (len(rows), *shape[1:]), 0.4, rows), whole[rows])
    longer = draw(key, (16, 4, 12, 10), 0.4)
    np.testing.assert_array_equal(longer[:, :, :8, :8], whole)

    mesh = make_mesh(MeshConfig(2, 2, 2), devices=devices)
    sharded = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "tensor"))
    compiled = jax.jit(lambda key: keep_mask(key, jnp.arange(16), shape, 0.4), out_shardings=sharded)
    np.testing.assert_array_equal(compiled(key), whole)


def test_threshold():
    assert int(keep_threshold(0.0)) == 2**31 - 1
    assert int(keep_threshold(0.5)) == 0
    assert int(keep_threshold(0.1)) == pytest.approx(0.4 * 2**32, abs=1)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kept_entries_are_scaled_and_dropped_ones_are_zero(dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5)), dtype)
    site = Dropout(0.2, key_words=key_words(8), rows=jnp.arange(6))
    keep = np.asarray(site.keep(x.shape))
    assert 0 < keep.sum() < keep.size
    y, gradient = site(x), jax.grad(lambda x: site(x).astype(jnp.float32).sum())(x)
    assert y.dtype == dtype
    tolerance = 1e-6 if dtype == jnp.float32 else 2**-8  # rounded once
    np.testing.assert_allclose(np.float32(y), np.where(keep, np.float32(x) / 0.8, 0), rtol=tolerance)
    np.testing.assert_allclose(np.float32(gradient), np.where(keep, 1 / 0.8, 0), rtol=tolerance)
    # A dropped entry is zero whatever it was.
    assert np.isfinite(site(jnp.where(keep, x, jnp.nan))).all()


def test_mask_shared_along_an_axis():
    site = Dropout(0.5, key_words=key_words(9), rows=jnp.arange(4))
    y = site(jnp.ones((4, 3, 64)), (4, 1, 64))
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    assert not np.array_equal(y[0], y[1])


class TwoSites(nn.Module):
    """Two sites of the same shape."""

    rate: float = 0.3

    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool = False) -> dict[str, jax.Array]:
        out = {}
        for name in ("a", "b"):
            site = dropout_site(self, name, self.rate, jnp.arange(x.shape[0]), deterministic)
            out[name] = x if site is None else site(x)
        return out


class Nested(nn.Module):
    """Two modules of two sites each."""

    @nn.compact
    def __call__(self, x: jax.Array) -> list[jax.Array]:
        outputs = [TwoSites(name=name)(x) for name in ("h_0", "h_1")]
        return [y for out in outputs for y in out.values()]


def test_sites_layers_and_steps_are_independent():
    x = jnp.ones((16, 4096))
    masks = []
    for step in range(3):
        key = jax.random.fold_in(jax.random.key(0), step)
        masks += [np.asarray(y) > 0 for y in Nested().apply({}, x, rngs={"dropout": key})]
    assert len(masks) == 12
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs(z_of_pair(a, b, 0.3)) < 4.5


def test_same_key_same_masks():
    x, key = jnp.ones((2, 64)), jax.random.key(1)
    once, again = (Nested().apply({}, x, rngs={"dropout": key}) for _ in range(2))
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("rate", "deterministic"), [(0.0, False), (0.3, True)])
def test_nothing_is_dropped_at_rate_zero_or_in_evaluation(rate, deterministic):
    """No random stream is asked for, and given masks are not looked at."""
    x = jnp.ones((2, 3))
    variables = {MASKS: {"a": jnp.zeros((2, 3), bool)}}
    out = TwoSites(rate).apply(variables, x, deterministic=deterministic)
    np.testing.assert_array_equal(out["a"], x)
    np.testing.assert_array_equal(out["b"], x)


def test_a_given_mask_replaces_the_drawn_one_at_its_site_only():
    x, key = jnp.ones((2, 256)), jax.random.key(1)
    given = np.arange(256) % 3 > 0
    out = TwoSites().apply({MASKS: {"a": given}}, x, rngs={"dropout": key})
    np.testing.assert_allclose(out["a"], np.broadcast_to(given / 0.7, x.shape), rtol=1e-6)
    assert abs(z_of_pair(np.asarray(out["b"]) > 0, np.broadcast_to(given, x.shape), 0.3)) < 4.5
    both = {"a": given, "b": ~given}
    np.testing.assert_array_equal(TwoSites().apply({MASKS: both}, x)["b"] > 0, np.broadcast_to(~given, x.shape))
