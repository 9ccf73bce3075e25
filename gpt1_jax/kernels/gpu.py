"""Causal attention with dropout for NVIDIA GPUs, written in Pallas and compiled by Triton.

FlashAttention-2 (Dao 2023) with the dropout of the paper inside: a program holds one block of queries (backward: also
one of keys) of one head in registers and walks over the others, so that neither scores nor masks [L, L] ever exist in
the memory of the card. Of the softmax only the logarithm of its sum is kept for the backward pass. With P the
probabilities, M the mask, r the rate, and O' the gradient of O = (P * M / (1 - r)) V:

    P' = M / (1 - r) * O' V^T,   S' = P * (P' - rowsum(O' * O)),
    Q' = S' K / sqrt(head_dim),   K' = S'^T Q / sqrt(head_dim),   V' = (P * M / (1 - r))^T O'

A query that sees no key gives zero and takes no gradient. Sums are in a fixed order, without atomic additions: the same
arguments give the same bits.

Triton is asked for by name (`CompilerParams`), as Pallas would choose Mosaic GPU otherwise, whose kernels are written
for one generation of cards each.

A floor, for 64 x 512 tokens, 12 heads of 64 and 12 layers in bfloat16, of each unit by itself at the rate in the data
sheet of an H100 (`_work`): 1.6 ms for the matrix products, 1.7 ms for the other operations, 2.2 ms for the memory. Not
measured on a card.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jaxtyping import Bool, Float, Float32, Int

from gpt1_jax.dropout import Dropout
from gpt1_jax.kernels import gpu_tiles
from gpt1_jax.kernels.gpu_tiles import Tiling, dot, line
from gpt1_jax.kernels.sharded import Words, divided, platform
from gpt1_jax.kernels.work import Work
from gpt1_jax.precision import add_bias

AVAILABLE = gpu_tiles.AVAILABLE
"""Whether this JAX still has Pallas' way to Triton."""
MAX_HEAD_DIM = 128
"""Of wider heads the tiles of a program no longer fit the registers."""

_UNSEEN = 0.5 * float(jnp.finfo(jnp.float32).min)  # a score below all others; its difference to any is still finite
_NOTHING = -_UNSEEN  # the logarithm of the sum where a query sees nothing: its probabilities are then 2^-infinity


def _forward_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, word_refs: Any, seen_ref: Any, o_ref: Any, lse_ref: Any, *, tiling: Tiling
) -> None:
    """O of one block of queries, and log(sum(exp(scores))) / scale: what is summed shrinks as larger scores turn up."""
    i = pl.program_id(0)
    q = tiling.load(q_ref, i)
    words = tiling.load_words(word_refs, i)

    def add_keys(j: Any, carry: tuple[Array, Array, Array], *, diagonal: bool) -> tuple[Array, Array, Array]:
        o, top, total = carry
        scores = dot(q, tiling.load(k_ref, j).T)
        seen = tiling.seen(i, j, seen_ref, diagonal, axis=0)
        scores = scores if seen is True else jnp.where(seen, scores, _UNSEEN)
        new_top = jnp.maximum(top, scores.max(axis=1))
        p = tiling.exp(scores - new_top[:, None])
        shrink = tiling.exp(top - new_top)
        v = tiling.load(v_ref, j)
        dropped = tiling.kept(words, j, p, axis=0).astype(v.dtype)
        return o * shrink[:, None] + dot(dropped, v), new_top, total * shrink + p.sum(axis=1)

    carry = (
        jnp.zeros((tiling.block, tiling.width), jnp.float32),
        jnp.full((tiling.block,), _UNSEEN),
        jnp.zeros((tiling.block,), jnp.float32),
    )
    carry = jax.lax.fori_loop(0, i, functools.partial(add_keys, diagonal=False), carry)
    o, top, total = add_keys(i, carry, diagonal=True)
    sees = top > _UNSEEN
    factor = jnp.where(sees, 1.0 / (total * (1.0 - tiling.rate)), 0.0)
    tiling.store(o_ref, i, o * factor[:, None])
    tiling.store_line(lse_ref, i, jnp.where(sees, top + jnp.log(total) / tiling.scale, _NOTHING))


def _backward_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    word_refs: Any,
    seen_ref: Any,
    do_ref: Any,
    lse_ref: Any,
    delta_ref: Any,
    dqkv_ref: Any,
    *,
    tiling: Tiling,
) -> None:
    """K' and V' of block i, over the queries from there on, and Q' of block i, over the keys up to there.

    Together that is the same work for every i. Every pair of blocks is computed twice; once would take atomic
    additions or an array of partial sums in the card's memory.
    """
    i = pl.program_id(0)
    start = jnp.zeros((tiling.block, tiling.width), jnp.float32)

    def queries(j: Any) -> tuple[Array, Array, Array, Array, Words | None]:
        """q, O', log of the sum over the scale, (1 - r) rowsum(O' * O) and the words of dropout."""
        return (
            tiling.load(q_ref, j),
            tiling.load(do_ref, j),
            tiling.load_line(lse_ref, j, _NOTHING),
            tiling.load_line(delta_ref, j, 0.0),
            tiling.load_words(word_refs, j),
        )

    def gradients(of: tuple[Any, ...], k: Array, v: Array, at: tuple[Any, Any], diagonal: bool, axis: int) -> Any:
        """M * P and (1 - r) S' of a tile: block at[0] of queries along `axis`, block at[1] of keys along the other."""
        q, do, lse, delta, words = of
        scores, dp = (dot(q, k.T), dot(do, v.T)) if axis == 0 else (dot(k, q.T), dot(v, do.T))
        p = tiling.exp(scores - line(lse, axis))
        seen = tiling.seen(*at, seen_ref, diagonal, axis)
        p = p if seen is True else jnp.where(seen, p, 0.0)
        ds = p * (tiling.kept(words, at[1], dp, axis) - line(delta, axis))
        return tiling.kept(words, at[1], p, axis).astype(q.dtype), ds.astype(q.dtype)

    k, v = tiling.load(k_ref, i), tiling.load(v_ref, i)

    def add_queries(j: Any, carry: tuple[Array, Array], *, diagonal: bool) -> tuple[Array, Array]:
        dk, dv = carry
        of = queries(j)
        p, ds = gradients(of, k, v, (j, i), diagonal, axis=1)
        return dk + dot(ds, of[0]), dv + dot(p, of[1])

    carry = add_queries(i, (start, start), diagonal=True)
    later = functools.partial(add_queries, diagonal=False)
    dk, dv = jax.lax.fori_loop(i + 1, tiling.n_blocks, later, carry)
    share = 1.0 / (1.0 - tiling.rate)
    tiling.store(dqkv_ref, i, dk * (share * tiling.scale), 1)
    tiling.store(dqkv_ref, i, dv * share, 2)

    of = queries(i)

    def add_keys(j: Any, dq: Array, *, diagonal: bool) -> Array:
        k = tiling.load(k_ref, j)
        _, ds = gradients(of, k, tiling.load(v_ref, j), (i, j), diagonal, axis=0)
        return dq + dot(ds, k)

    dq = jax.lax.fori_loop(0, i, functools.partial(add_keys, diagonal=False), start)
    tiling.store(dqkv_ref, i, add_keys(i, dq, diagonal=True) * (share * tiling.scale), 0)


def _work(tiling: Tiling, qkv: Array, *, words: bool, backward: bool) -> Work:
    """Of the tiles on and below the diagonal: 2 products of each, and backward 7."""
    n_rows, length, _, n_heads, head_dim = qkv.shape
    entries = n_rows * n_heads * tiling.n_blocks * (tiling.n_blocks + 1) // 2 * tiling.block**2
    # Difference, scale, maximum, sum, rounding; backward, twice: difference, scale, dP - rowsum(O' * O), its product
    # with P, and three roundings. Dropout: three XORs, two products, a shift, a comparison and what is taken by it.
    vector = (11 if backward else 5) + words * (17 if backward else 8)
    numbers = n_rows * n_heads * length * 4  # one of each query
    moved = (8 if backward else 4) * n_rows * length * n_heads * head_dim * qkv.dtype.itemsize
    moved += (1 + backward + 2 * words) * numbers
    return Work((7 if backward else 2) * 2 * tiling.width * entries, vector * entries, (1 + backward) * entries, moved)


def _call(kernel: Any, tiling: Tiling, qkv: Array, inputs: tuple[Any, ...], outputs: Any) -> Any:
    """One program for each block, head and row of the batch, which sees all of its sequence."""
    n_rows, length, _, n_heads, _ = qkv.shape
    width = tiling.width
    parts = [pl.BlockSpec((None, length, None, None, width), functools.partial(_part, part)) for part in range(3)]
    by_rank = {
        5: pl.BlockSpec((None, length, 3, None, width), lambda i, h, b: (b, 0, 0, h, 0)),  # [B, L, 3, H, head_dim]
        4: pl.BlockSpec((None, length, None, width), lambda i, h, b: (b, 0, h, 0)),  # [B, L, H, head_dim]
        3: pl.BlockSpec((None, None, length), lambda i, h, b: (b, h, 0)),  # [B, H, L]
        2: pl.BlockSpec((None, length), lambda i, h, b: (b, 0)),  # [B, L]
    }
    work = _work(tiling, qkv, words=inputs[0] is not None, backward=kernel is _backward_kernel)
    return pl.pallas_call(
        functools.partial(kernel, tiling=tiling),
        grid=(tiling.n_blocks, n_heads, n_rows),
        in_specs=(*parts, *jax.tree.map(lambda x: by_rank[x.ndim], inputs)),
        out_specs=jax.tree.map(lambda x: by_rank[len(x.shape)], outputs),
        out_shape=outputs,
        compiler_params=tiling.compiler_params,
        interpret=tiling.interpret,
        cost_estimate=work.cost,
        metadata=work.metadata,
        name="attention" + kernel.__name__.removesuffix("_kernel"),
    )(qkv, qkv, qkv, *inputs)


def _part(part: int, i: Any, head: Any, row: Any) -> tuple[Any, ...]:
    return row, 0, part, head, 0


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(tiling: Tiling, qkv: Array, words: Words | None, seen: Array | None) -> Array:
    return _forward(tiling, qkv, words, seen)[0]


def _forward(tiling: Tiling, qkv: Array, words: Words | None, seen: Array | None) -> tuple[Array, tuple[Any, ...]]:
    n_rows, length, _, n_heads, head_dim = qkv.shape
    outputs = (
        jax.ShapeDtypeStruct((n_rows, length, n_heads, head_dim), qkv.dtype),
        jax.ShapeDtypeStruct((n_rows, n_heads, length), jnp.float32),
    )
    o, lse = _call(_forward_kernel, tiling, qkv, (words, seen), outputs)
    return o, (qkv, words, seen, o, lse)


def _backward(tiling: Tiling, residuals: tuple[Any, ...], do: Array) -> tuple[Array | None, ...]:
    qkv, words, seen, o, lse = residuals
    delta = (1.0 - tiling.rate) * (do.astype(jnp.float32) * o.astype(jnp.float32)).sum(-1).swapaxes(1, 2)
    outputs = jax.ShapeDtypeStruct(qkv.shape, qkv.dtype)
    return _call(_backward_kernel, tiling, qkv, (words, seen, do, lse, delta), outputs), None, None


_attention.defvjp(_forward, _backward)


def _local(
    qkv: Float[Array, "B L 3 H head_dim"], kv_mask: Bool[Array, "B L"] | None, words: Words | None, *, rate: float
) -> Float[Array, "B L H head_dim"]:
    """On one device."""
    tiling = Tiling(qkv.shape[1], qkv.shape[4], qkv.dtype, rate, interpret=platform() == "cpu")
    return _attention(tiling, qkv, words, kv_mask)


def _over_mesh(qkv: Array, kv_mask: Array | None, dropout: Dropout | None) -> Array:
    n_rows, length, _, n_heads, _ = qkv.shape
    local = functools.partial(_local, rate=dropout.rate if dropout else 0.0)
    axes, out = ("batch", None, None, "heads"), ("batch", None, "heads")
    return divided(local, (qkv,), (axes,), out, kv_mask, dropout, (n_rows, n_heads, length))


def gpu_self_attention(
    product: Float[Array, "B 3 L D"],
    bias: Float32[Array, "3 1 D"],
    n_heads: int,
    kv_mask: Bool[Array, "B L"] | None,
    dropout: Dropout | None,
) -> Float[Array, "B L D"]:
    """See `gpt1_jax.attention.self_attention`; without given masks, heads up to `MAX_HEAD_DIM`.

    A query that sees nothing gives zero and takes no gradient. On a CPU it is interpreted.
    """
    n_rows, _, length, width = product.shape
    # As a matrix product leaves it, with q, k and v of a token next to each other: the compiler finds nothing to copy.
    qkv = add_bias(product, bias).swapaxes(1, 2)
    qkv = qkv.reshape(n_rows, length, 3, n_heads, width // n_heads)
    return _over_mesh(qkv, kv_mask, dropout).reshape(n_rows, length, width)


def gpu_attention(
    q: Float[Array, "B L H head_dim"],
    k: Float[Array, "B L H head_dim"],
    v: Float[Array, "B L H head_dim"],
    q_slots: Int[Array, "#B L"] | None,
    kv_mask: Bool[Array, "B L"] | None,
    dropout: Dropout | None,
) -> Float[Array, "B L H head_dim"]:
    """See `gpt1_jax.attention.causal_attention`; otherwise like `gpu_self_attention`."""
    assert q_slots is None, "a cache is for plain JAX"
    return _over_mesh(jnp.stack([q, k, v], 2), kv_mask, dropout)
