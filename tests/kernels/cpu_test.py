"""The CPU's kernel against plain attention: the same entries are dropped, block by block."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.dropout import Dropout
from gpt1_jax.kernels import cpu
from gpt1_jax.kernels.xla import xla_attention
from gpt1_jax.sharding import MeshConfig, make_mesh

B, H, HEAD_DIM, RATE = 2, 2, 8, 0.3
ERROR = {jnp.float32: 3e-6, jnp.bfloat16: 0.02}  # of the largest entry: the order of sums; 8 bits of a probability


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(cpu, "BLOCK", 4)


def outcome(kernel: Any, length: int, dtype: Any, *, padded: bool = False, dropped: bool = True) -> list[np.ndarray]:
    """Output, and gradients of q, k and v; without the queries that see nothing."""
    rng = np.random.default_rng(length)
    q, k, v, do = (jnp.asarray(rng.normal(size=(B, length, H, HEAD_DIM)), dtype) for _ in range(4))
    kv_mask = np.stack([np.arange(length) < length - 3, np.arange(length) >= 3]) if padded else None
    sees = np.cumsum(np.ones((B, length)) if kv_mask is None else kv_mask, axis=1)[..., None, None] > 0
    site = Dropout(RATE, key_words=jnp.array([3, 5], jnp.uint32), rows=jnp.array([9, 2])) if dropped else None

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array) -> tuple[jax.Array, ...]:
        o, vjp = jax.vjp(lambda *qkv: jnp.where(sees, kernel(*qkv, None, kv_mask, site), 0), q, k, v)
        return o, *vjp(do)

    out = run(q, k, v, do)
    assert all(x.dtype == dtype for x in out)
    return [np.float32(x) for x in out]


@pytest.mark.parametrize(
    ("length", "padded", "dtype"),
    [
        (15, False, jnp.float32),  # a last block of 3
        (15, True, jnp.float32),
        (8, True, jnp.float32),  # whole blocks
        (35, True, jnp.float32),  # blocks of 12
        (15, True, jnp.bfloat16),
    ],
)
def test_values_and_gradients(length, padded, dtype):
    ours = outcome(cpu.cpu_attention, length, dtype, padded=padded)
    plain = outcome(xla_attention, length, jnp.float32, padded=padded)
    for x, y in zip(ours, plain, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=ERROR[dtype] * np.abs(y).max())


def test_without_dropout():
    ours, plain = (outcome(kernel, 15, jnp.float32, dropped=False) for kernel in (cpu.cpu_attention, xla_attention))
    for x, y in zip(ours, plain, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=ERROR[jnp.float32] * np.abs(y).max())


def test_on_a_mesh_as_on_one_device():
    """Rows over `data`, heads over `tensor`: no device needs another one's."""
    alone = outcome(cpu.cpu_attention, 15, jnp.float32, padded=True)
    with jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])):
        parted = outcome(cpu.cpu_attention, 15, jnp.float32, padded=True)
    for x, y in zip(alone, parted, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=ERROR[jnp.float32] * np.abs(x).max())


def test_a_long_row_has_few_blocks():
    assert list(cpu._blocks(35)) == [(0, 12), (12, 24), (24, 35)]
    assert len(list(cpu._blocks(16 * 64))) == cpu.MAX_BLOCKS
