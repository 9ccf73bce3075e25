"""The loss over the vocabulary against numpy in float64: in pieces and whole, on every mesh, and what it holds."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from gpt1_jax import cross_entropy
from gpt1_jax.cross_entropy import next_token_nll, positions_at_once, weighted_nll
from gpt1_jax.products import alone_on_cpu
from gpt1_jax.sharding import MeshConfig, make_mesh, spec

N_BATCH, N_TOKENS, D, N_ROWS, PADDED = 8, 9, 6, 11, 16
PLATFORMS = ("cpu", "tpu", "gpu")
CHUNKS = (None, 0, 1, 3, 4, 9, 100)  # of 9 positions


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The formulas of a platform, computed here."""
    monkeypatch.setattr(cross_entropy, "platform", lambda: request.param)
    monkeypatch.setattr(cross_entropy, "alone_on_cpu", lambda: request.param == "cpu" and alone_on_cpu())
    return request.param


def small(dtype: Any = jnp.float32, scale: float = 1.0) -> tuple[jax.Array, jax.Array, np.ndarray, np.ndarray]:
    """Hidden states, a table whose padded rows would win every time, tokens and weights, a few of them 0."""
    rng = np.random.default_rng(0)
    h, table = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((N_BATCH, N_TOKENS, D), (PADDED, D)))
    weights = rng.random((N_BATCH, N_TOKENS - 1)) * (rng.random((N_BATCH, N_TOKENS - 1)) < 0.8)
    tokens = rng.integers(0, N_ROWS, (N_BATCH, N_TOKENS), np.int32)
    return scale * h, table.at[N_ROWS:].set(100.0), tokens, weights.astype(np.float32)


def reference(h: Any, table: Any, tokens: np.ndarray, weights: Any) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """nll, the weighted sum and its gradients by h and by the table."""
    h, table, weights = (np.float64(x) for x in (h, table, weights))
    logits = h[:, :-1] @ table[:N_ROWS].T
    logits -= logits.max(-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_p, tokens[:, 1:, None], -1)[..., 0]
    d_logits = (np.exp(log_p) - np.eye(N_ROWS)[tokens[:, 1:]]) * weights[..., None]
    dh, d_table = np.zeros_like(h), np.zeros_like(table)
    dh[:, :-1] = d_logits @ table[:N_ROWS]
    d_table[:N_ROWS] = np.einsum("blr,bld->rd", d_logits, h[:, :-1])
    return nll, (nll * weights).sum(), dh, d_table


def relative_error(found: Any, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(np.float64(found) - wanted) / np.linalg.norm(wanted))


def value_and_gradients(chunk: int | None, factor: float = 1.0) -> Any:
    def loss(h: jax.Array, table: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
        return factor * weighted_nll(h, table, tokens, weights, N_ROWS, chunk)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 3)))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_next_token_nll(chunk):
    h, table, tokens, weights = small()
    nll = jax.jit(lambda: next_token_nll(h, table, tokens, n_rows=N_ROWS, chunk=chunk))()
    assert nll.shape == (N_BATCH, N_TOKENS - 1)
    assert nll.dtype == jnp.float32
    np.testing.assert_allclose(nll, reference(h, table, tokens, weights)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chunk", [None, 1, 4, 9])
def test_weighted_sum_and_its_gradients(platform, chunk):
    """Also by the weights, and under a factor that is known only in the backward pass."""
    h, table, tokens, weights = small()
    nll, wanted, dh_wanted, d_table_wanted = reference(h, table, tokens, weights)
    value, (dh, d_table, d_weights) = value_and_gradients(chunk, factor=0.5)(h, table, tokens, weights)
    assert value == pytest.approx(0.5 * wanted, rel=1e-6)
    for found, exact in ((dh, dh_wanted), (d_table, d_table_wanted), (d_weights, nll)):
        assert relative_error(found, 0.5 * exact) < 1e-6
    assert (d_table[N_ROWS:] == 0).all()
    assert (dh[:, -1] == 0).all()
    assert (dh[:, :-1][weights == 0] == 0).all()


@pytest.mark.parametrize("chunk", [0, 4])
def test_gradients_are_those_of_the_losses_of_single_tokens(chunk):
    h, table, tokens, weights = small()

    def loss(h: jax.Array, table: jax.Array) -> jax.Array:
        return (next_token_nll(h, table, tokens, n_rows=N_ROWS, chunk=chunk) * weights).sum()

    _, _, dh, d_table = reference(h, table, tokens, weights)
    for found, exact in zip(jax.jit(jax.grad(loss, (0, 1)))(h, table), (dh, d_table), strict=True):
        assert relative_error(found, exact) < 1e-6


@pytest.mark.parametrize("scale", [1, 4])
def test_bfloat16_rounds_the_products_operands_and_nothing_else(platform, scale):
    """Of the same inputs; scale 4 has confident tokens, whose p - 1 would cancel in bfloat16. Seen: 0.2 to 0.3 %."""
    h, table, tokens, weights = small(jnp.bfloat16, scale)
    nll, wanted, dh_wanted, d_table_wanted = reference(h, table, tokens, weights)
    assert nll.min() < 0.01 or scale == 1
    for chunk in (0, 4):
        value, (dh, d_table, _) = value_and_gradients(chunk)(h, table, tokens, weights)
        assert value.dtype == jnp.float32
        assert (dh.dtype, d_table.dtype) == (jnp.bfloat16, jnp.bfloat16)
        assert value == pytest.approx(wanted, abs=5e-4 * np.abs(nll * weights).sum())
        assert 1e-4 < relative_error(dh, dh_wanted) < 0.01
        assert 1e-4 < relative_error(d_table, d_table_wanted) < 0.01


def test_exponentials_are_summed_in_float32(platform):
    """30,000 equal ones: bfloat16 sums stop at 256."""
    h, tokens = jnp.zeros((1, 2, D), jnp.bfloat16), np.zeros((1, 2), np.int32)
    table = jnp.zeros((30_000, D), jnp.bfloat16)

    def loss(h: jax.Array) -> jax.Array:
        return weighted_nll(h, table, tokens, jnp.ones((1, 1)), 30_000)

    assert next_token_nll(h, table, tokens, n_rows=30_000) == pytest.approx(np.log(30_000), rel=1e-5)
    assert jax.value_and_grad(loss)(h)[0] == pytest.approx(np.log(30_000), rel=1e-5)


def test_large_logits_do_not_overflow(platform):
    h, table, tokens, weights = small(scale=1e3)
    value, gradients = value_and_gradients(0)(h, table, tokens, weights)
    assert value == pytest.approx(reference(h, table, tokens, weights)[1], rel=1e-6)
    assert all(np.isfinite(x).all() for x in gradients)


# What is computed and held


def equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


@pytest.mark.parametrize("chunk", [0, 8])
def test_three_products_and_without_a_gradient_one(platform, chunk):
    """And no array of all logits where they come in pieces."""
    n_batch, n_tokens, n_rows = 2, 65, 500
    h, table = jnp.zeros((n_batch, n_tokens, 4)), jnp.zeros((n_rows, 4))
    tokens, weights = jnp.zeros((n_batch, n_tokens), jnp.int32), jnp.ones((n_batch, n_tokens - 1))

    def loss(h: jax.Array, table: jax.Array) -> jax.Array:
        return weighted_nll(h, table, tokens, weights, n_rows, chunk)

    for function, n_products in ((loss, 1), (jax.value_and_grad(loss, (0, 1)), 3)):
        found = list(equations(jax.make_jaxpr(function)(h, table).jaxpr))
        assert sum(e.primitive.name == "dot_general" for e in found) == n_products
        assert max(x.aval.size for e in found for x in e.outvars) == n_batch * (chunk or n_tokens) * n_rows


def test_compiled_memory_is_that_of_a_piece():
    """In multiples of the logits of all positions: two of them are alive at most, or two of a piece's and a sum."""
    n_batch, n_tokens, n_rows, d = 4, 128, 4096, 16
    shapes = ((n_batch, n_tokens, d), (n_rows, d), (n_batch, n_tokens), (n_batch, n_tokens - 1))
    dtypes = (jnp.float32, jnp.float32, jnp.int32, jnp.float32)
    arguments = [jax.ShapeDtypeStruct(*x) for x in zip(shapes, dtypes, strict=True)]

    def temporary(chunk: int) -> float:
        def loss(h: jax.Array, table: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
            return weighted_nll(h, table, tokens, weights, n_rows, chunk)

        compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arguments).compile()
        return compiled.memory_analysis().temp_size_in_bytes / (4 * n_batch * n_tokens * n_rows)

    sum_of_tables = d / (n_batch * n_tokens)
    assert 1 <= temporary(0) < 3.1
    assert temporary(16) < 3.1 / 8 + 3 * sum_of_tables


# Meshes


def on_mesh(mesh: Any, chunk: int) -> tuple[Any, str]:
    """Value and gradients, computed where the rules lay h and the table, and the text of the program."""
    arguments = small()
    with jax.set_mesh(mesh):
        rows, table = NamedSharding(mesh, spec("batch")), NamedSharding(mesh, spec("vocab", None))
        arguments = [jax.device_put(x, y) for x, y in zip(arguments, (rows, table, rows, rows), strict=True)]
        compiled = value_and_gradients(chunk).lower(*arguments).compile()
        return jax.device_get(compiled(*arguments)), compiled.as_text()


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8), (1, 2, 4)], ids=str)
@pytest.mark.parametrize("name", ["cpu", "tpu"])
def test_every_mesh(monkeypatch, devices, shape, name):
    monkeypatch.setattr(cross_entropy, "platform", lambda: name)
    nll, *wanted = reference(*small())
    (value, (dh, d_table, d_weights)), _ = on_mesh(make_mesh(MeshConfig(*shape), devices), chunk=4)
    for found, exact in zip((value, dh, d_table, d_weights), (*wanted, nll), strict=True):
        assert relative_error(found, exact) < 1e-6
    assert (d_table[N_ROWS:] == 0).all()


# How many at a time


@pytest.mark.parametrize(
    ("name", "shape", "chunk", "expected"),
    [
        ("cpu", (2, 512), None, 512),
        ("cpu", (8, 512), None, 128),
        ("cpu", (24, 96), None, 32),  # 42 would do: three pieces of the same length
        ("cpu", (4096, 512), None, 1),
        ("tpu", (8, 512), None, 512),
        ("tpu", (32, 512), None, 128),
        ("cpu", (8, 512), 0, 512),
        ("cpu", (8, 512), 100, 100),
        ("tpu", (8, 512), 1000, 512),
    ],
)
def test_how_many_at_a_time(monkeypatch, devices, name, shape, chunk, expected):
    monkeypatch.setattr(cross_entropy, "platform", lambda: name)
    assert positions_at_once(shape, chunk) == expected
    # A device has an eighth or a quarter of the rows.
    for mesh, n in (((2, 4, 1), 8), ((1, 4, 2), 4)):
        with jax.set_mesh(make_mesh(MeshConfig(*mesh), devices[: math.prod(mesh)])):
            assert positions_at_once((n * shape[0], shape[1]), chunk) == expected
