"""Causal attention for CPUs: plain JAX, a block of queries at a time, which meets the keys up to its own end.

The products beyond the diagonal blocks are never computed: with n blocks (n + 1) / 2n of the work is left. Nothing of
size [L, L] is kept for the backward pass, which computes a block's probabilities again from the logarithm of their sum:

    forward    S = Q K^T,  P = exp(S - lse),  O = (P * keep) V / (1 - rate)         (Q: with 1 / sqrt(head_dim))
    backward   dP = dO V^T * keep / (1 - rate),  dS = P * (dP - rowsum(dO * O))
               dV = (P * keep)^T dO / (1 - rate),  dK = dS^T Q,  dQ = dS K

Every device of a mesh works on its rows and heads, see sharded.py. Rows of one block go to xla.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import Array

from gpt1_jax.dropout import Dropout, element_bits, keep_threshold
from gpt1_jax.kernels.sharded import Words, over_mesh
from gpt1_jax.kernels.xla import xla_attention
from gpt1_jax.precision import matmul_precision

BLOCK = 128
"""Queries of a block, a multiple of it in rows of more than `MAX_BLOCKS`: each block is code to compile."""
MAX_BLOCKS = 4


def cpu_attention(
    q: Array, k: Array, v: Array, q_slots: Array | None, kv_mask: Array | None, dropout: Dropout | None
) -> Array:
    """See `gpt1_jax.attention.causal_attention`; without a cache, and without given masks.

    A query that sees nothing gets the mean of the values of its blocks, or something as finite.
    """
    if q.shape[1] <= BLOCK:
        return xla_attention(q, k, v, q_slots, kv_mask, dropout)
    local = functools.partial(_local, 0.0 if dropout is None else dropout.rate)
    return over_mesh(local, q, k, v, kv_mask, dropout)


def _local(rate: float, q: Array, k: Array, v: Array, kv_mask: Array | None, words: Words | None) -> Array:
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q * q.shape[-1] ** -0.5, k, v))
    return jnp.swapaxes(_attention(rate, q, k, v, kv_mask, words), 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(rate: float, q: Array, k: Array, v: Array, kv_mask: Array | None, words: Words | None) -> Array:
    """[B, H, L, head_dim] of q, which has its scale, k and v."""
    return _forward(rate, q, k, v, kv_mask, words)[0]


def _forward(
    rate: float, q: Array, k: Array, v: Array, kv_mask: Array | None, words: Words | None
) -> tuple[Array, tuple[Array | Words | None, ...]]:
    outputs, sums = [], []
    for start, stop in _blocks(q.shape[2]):
        scores = _scores(q, k, kv_mask, start, stop)
        highest = scores.max(axis=-1, keepdims=True)
        p = jnp.exp(scores - highest)
        total = p.sum(axis=-1, keepdims=True)
        if words is not None:
            p = jnp.where(_keep(words, rate, start, stop), p, 0.0)
        o = _product("bhqk,bhkd->bhqd", p.astype(v.dtype), v[:, :, :stop])
        outputs.append((o / (total * (1.0 - rate))).astype(v.dtype))
        sums.append(highest + jnp.log(total))
    o, lse = jnp.concatenate(outputs, axis=2), jnp.concatenate(sums, axis=2)
    return o, (q, k, v, kv_mask, words, o, lse)


def _backward(
    rate: float, saved: tuple[Array | Words | None, ...], do: Array
) -> tuple[Array, Array, Array, None, None]:
    q, k, v, kv_mask, words, o, lse = saved
    expected = jnp.sum(do.astype(jnp.float32) * o.astype(jnp.float32), axis=-1, keepdims=True)
    do = do / (1.0 - rate)
    dqs, dk, dv = [], jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    for start, stop in _blocks(q.shape[2]):
        p = jnp.exp(_scores(q, k, kv_mask, start, stop) - lse[:, :, start:stop])
        dp = _product("bhqd,bhkd->bhqk", do[:, :, start:stop], v[:, :, :stop])
        kept = p
        if words is not None:
            keep = _keep(words, rate, start, stop)
            dp, kept = jnp.where(keep, dp, 0.0), jnp.where(keep, p, 0.0)
        ds = (p * (dp - expected[:, :, start:stop])).astype(q.dtype)
        dqs.append(_product("bhqk,bhkd->bhqd", ds, k[:, :, :stop]))
        dk = dk.at[:, :, :stop].add(_product("bhqk,bhqd->bhkd", ds, q[:, :, start:stop]))
        dv = dv.at[:, :, :stop].add(_product("bhqk,bhqd->bhkd", kept.astype(do.dtype), do[:, :, start:stop]))
    dq = jnp.concatenate(dqs, axis=2)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, None


_attention.defvjp(_forward, _backward)


def _blocks(n_tokens: int) -> Iterator[tuple[int, int]]:
    """The first query of each block and the first one after it; the keys that it meets end there, too."""
    size = BLOCK * math.ceil(n_tokens / (BLOCK * MAX_BLOCKS))
    for start in range(0, n_tokens, size):
        yield start, min(start + size, n_tokens)


def _scores(q: Array, k: Array, kv_mask: Array | None, start: int, stop: int) -> Array:
    """float32 [B, H, stop - start, stop], the least number where a query does not see a key."""
    scores = _product("bhqd,bhkd->bhqk", q[:, :, start:stop], k[:, :, :stop])
    mask = jnp.arange(stop) <= jnp.arange(start, stop)[:, None]
    if kv_mask is not None:
        mask = mask & kv_mask[:, None, None, :stop]
    return jnp.where(mask, scores, jnp.finfo(jnp.float32).min)


def _keep(words: Words, rate: float, start: int, stop: int) -> Array:
    """Which probabilities of a block are kept: bool [B, H, stop - start, stop]."""
    first, second = (word[:, :, start:stop, None] for word in words)
    columns = jax.lax.broadcasted_iota(jnp.uint32, (1, 1, 1, stop), 3)
    return element_bits(first, second, columns) < keep_threshold(rate)


def _product(equation: str, a: Array, b: Array) -> Array:
    """In float32, also of bfloat16."""
    precision = matmul_precision(a.dtype)
    return jnp.einsum(equation, a, b, precision=precision, preferred_element_type=jnp.float32)
