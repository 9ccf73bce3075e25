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
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from gpt1_jax.dropout import Dropout, element_bits, keep_threshold
from gpt1_jax.kernels.sharded import Words, over_mesh, platform
from gpt1_jax.kernels.work import Work
from gpt1_jax.precision import matmul_precision

try:
    from jax.experimental.pallas import triton
except ImportError:  # announced with JAX 0.11 for some later one
    triton = None

AVAILABLE = triton is not None
"""Whether this JAX still has Pallas' way to Triton."""
MAX_HEAD_DIM = 128
"""Of wider heads the tiles of a program no longer fit the registers."""

_UNSEEN = 0.5 * float(jnp.finfo(jnp.float32).min)  # a score below all others; its difference to any is still finite
_NOTHING = -_UNSEEN  # the logarithm of the sum where a query sees nothing: its probabilities are then 2^-infinity


@dataclasses.dataclass(frozen=True)
class _Tiling:
    """How sequences are cut: rows `block * i` to `block * (i + 1)` of arrays [length, head_dim], zeros beyond both.

    Attributes:
      length: L.
      head_dim: of q, k and v.
      dtype: likewise.
      rate: of dropout; 0 for none.
      interpret: run as plain JAX, on a CPU.
    """

    length: int
    head_dim: int
    dtype: Any
    rate: float
    interpret: bool

    @property
    def block(self) -> int:
        """Rows of a tile: a power of two, and at least the 16 that a tensor core takes."""
        return min(64 if self.dtype == jnp.bfloat16 else 32, max(16, pl.next_power_of_2(self.length)))

    @property
    def n_blocks(self) -> int:
        return pl.cdiv(self.length, self.block)

    @property
    def width(self) -> int:
        """Columns of a tile, likewise."""
        return max(16, pl.next_power_of_2(self.head_dim))

    @property
    def scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return self.head_dim**-0.5

    @property
    def n_warps(self) -> int:
        """Of 32 threads each, over which the tiles of a program are spread."""
        return 4 if self.dtype == jnp.bfloat16 and self.width <= 64 else 8

    def index(self, i: Any) -> Array:
        """[block]: the rows of tile i."""
        return i * self.block + jnp.arange(self.block)

    def _inside(self, i: Any) -> Array | None:
        """[block, width]: what there is of tile i; None: all of it, for which memory is read in larger pieces."""
        rows = (self.index(i) < self.length)[:, None] if self.length % self.block else None
        columns = (jnp.arange(self.width) < self.head_dim)[None, :] if self.width != self.head_dim else None
        return rows & columns if rows is not None and columns is not None else columns if rows is None else rows

    def load(self, ref: Any, i: Any) -> Array:
        """[block, width]: tile i of [length, head_dim]."""
        inside = self._inside(i)
        other = None if inside is None else 0
        return triton.load(ref.at[pl.ds(i * self.block, self.block), :], mask=inside, other=other)

    def store(self, ref: Any, i: Any, x: Array, *part: int) -> None:
        """Writes tile i, rounded to the array's dtype; `part` where it has parts, [length, parts, head_dim]."""
        tile = ref.at[pl.ds(i * self.block, self.block), *map(jnp.int32, part), :]
        triton.store(tile, x.astype(ref.dtype), mask=self._inside(i))

    def load_line(self, ref: Any, i: Any, other: Any) -> Array:
        """[block]: one number of each row of tile i; `other` beyond the end."""
        inside = self.index(i) < self.length if self.length % self.block else None
        other = None if inside is None else other
        return triton.load(ref.at[pl.ds(i * self.block, self.block)], mask=inside, other=other)

    def store_line(self, ref: Any, i: Any, x: Array) -> None:
        """Likewise."""
        inside = self.index(i) < self.length if self.length % self.block else None
        triton.store(ref.at[pl.ds(i * self.block, self.block)], x, mask=inside)


def _dot(a: Array, b: Array) -> Array:
    """The matrix product, summed in float32. Of float32 it is exact, too, and not TF32."""
    return triton.dot(a, b, precision=matmul_precision(a.dtype))


def _exp(tiling: _Tiling, scores: Array) -> Array:
    """The exponential of `scale` times q k^T, by the one instruction that there is for it.

    The library's function spends three more on results below 2^-126, which are zero here.
    """
    bits = scores * (tiling.scale * math.log2(math.e))
    if tiling.interpret:
        return jnp.exp2(bits)
    shape = jax.ShapeDtypeStruct(bits.shape, bits.dtype)
    instruction, registers = "ex2.approx.ftz.f32 $0, $1;", "=f,f"
    return triton.elementwise_inline_asm(
        instruction, args=[bits], constraints=registers, pack=1, result_shape_dtypes=[shape]
    )[0]


def _line(x: Array, axis: int) -> Array:
    """One number of each row (axis 0) or column (axis 1) of a tile."""
    return x[:, None] if axis == 0 else x[None, :]


def _seen(tiling: _Tiling, queries: Any, keys: Any, seen_ref: Any, diagonal: bool, axis: int) -> Array | bool:
    """Which keys of a tile the queries see; True: all. The queries lie along `axis` of the tile."""
    seen = True
    if diagonal:  # the tiles before it are seen whole, and those after it are not visited
        seen = _line(tiling.index(queries), axis) >= _line(tiling.index(keys), 1 - axis)
    if seen_ref is not None:
        seen &= _line(tiling.load_line(seen_ref, keys, False), 1 - axis)
    return seen


def _kept(tiling: _Tiling, words: Words | None, keys: Any, x: Array, axis: int) -> Array:
    """A tile with zeros for dropped probabilities; `words` are those of the queries, which lie along `axis`."""
    if words is None:
        return x
    first, second = (_line(word, axis) for word in words)
    columns = _line(tiling.index(keys).astype(jnp.uint32), 1 - axis)
    return jnp.where(element_bits(first, second, columns) < keep_threshold(tiling.rate), x, 0.0)


def _load_words(tiling: _Tiling, refs: Any, i: Any) -> Words | None:
    return None if refs is None else tuple(tiling.load_line(ref, i, 0) for ref in refs)


def _forward_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, word_refs: Any, seen_ref: Any, o_ref: Any, lse_ref: Any, *, tiling: _Tiling
) -> None:
    """O of one block of queries, and log(sum(exp(scores))) / scale: what is summed shrinks as larger scores turn up."""
    i = pl.program_id(0)
    q = tiling.load(q_ref, i)
    words = _load_words(tiling, word_refs, i)

    def add_keys(j: Any, carry: tuple[Array, Array, Array], *, diagonal: bool) -> tuple[Array, Array, Array]:
        o, top, total = carry
        scores = _dot(q, tiling.load(k_ref, j).T)
        seen = _seen(tiling, i, j, seen_ref, diagonal, axis=0)
        scores = scores if seen is True else jnp.where(seen, scores, _UNSEEN)
        new_top = jnp.maximum(top, scores.max(axis=1))
        p = _exp(tiling, scores - new_top[:, None])
        shrink = _exp(tiling, top - new_top)
        v = tiling.load(v_ref, j)
        dropped = _kept(tiling, words, j, p, axis=0).astype(v.dtype)
        return o * shrink[:, None] + _dot(dropped, v), new_top, total * shrink + p.sum(axis=1)

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
    tiling: _Tiling,
) -> None:
    """K' and V' of block i, over the queries from there on, and Q' of block i, over the keys up to there.

    Together that is the same work for every i. Every pair of blocks is computed twice; once would take atomic
    additions or an array of partial sums in the card's memory.
    """
    i = pl.program_id(0)
    start = jnp.zeros((tiling.block, tiling.width), jnp.float32)

    def queries(j: Any) -> tuple[Array, ...]:
        """q, O', log of the sum over the scale, (1 - r) rowsum(O' * O) and the words of dropout."""
        return (
            tiling.load(q_ref, j),
            tiling.load(do_ref, j),
            tiling.load_line(lse_ref, j, _NOTHING),
            tiling.load_line(delta_ref, j, 0.0),
            _load_words(tiling, word_refs, j),
        )

    def gradients(of: tuple[Any, ...], k: Array, v: Array, at: tuple[Any, Any], diagonal: bool, axis: int) -> Any:
        """M * P and (1 - r) S' of a tile: block at[0] of queries along `axis`, block at[1] of keys along the other."""
        q, do, lse, delta, words = of
        scores, dp = (_dot(q, k.T), _dot(do, v.T)) if axis == 0 else (_dot(k, q.T), _dot(v, do.T))
        p = _exp(tiling, scores - _line(lse, axis))
        seen = _seen(tiling, *at, seen_ref, diagonal, axis)
        p = p if seen is True else jnp.where(seen, p, 0.0)
        ds = p * (_kept(tiling, words, at[1], dp, axis) - _line(delta, axis))
        return _kept(tiling, words, at[1], p, axis).astype(q.dtype), ds.astype(q.dtype)

    k, v = tiling.load(k_ref, i), tiling.load(v_ref, i)

    def add_queries(j: Any, carry: tuple[Array, Array], *, diagonal: bool) -> tuple[Array, Array]:
        dk, dv = carry
        of = queries(j)
        p, ds = gradients(of, k, v, (j, i), diagonal, axis=1)
        return dk + _dot(ds, of[0]), dv + _dot(p, of[1])

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
        return dq + _dot(ds, k)

    dq = jax.lax.fori_loop(0, i, functools.partial(add_keys, diagonal=False), start)
    tiling.store(dqkv_ref, i, add_keys(i, dq, diagonal=True) * (share * tiling.scale), 0)


def _work(tiling: _Tiling, qkv: Array, *, words: bool, backward: bool) -> Work:
    """Of the tiles on and below the diagonal: 2 products of each, and backward 7."""
    n_rows, length, _, n_heads, head_dim = qkv.shape
    entries = n_rows * n_heads * tiling.n_blocks * (tiling.n_blocks + 1) // 2 * tiling.block**2
    # Difference, scale, maximum, sum, rounding; backward, twice: difference, scale, dP - rowsum(O' * O), its product
    # with P, and three roundings. Dropout: three XORs, two products, a shift, a comparison and what is taken by it.
    vector = (11 if backward else 5) + words * (17 if backward else 8)
    line = n_rows * n_heads * length * 4
    moved = (8 if backward else 4) * n_rows * length * n_heads * head_dim * qkv.dtype.itemsize
    moved += (1 + backward + 2 * words) * line
    return Work((7 if backward else 2) * 2 * tiling.width * entries, vector * entries, (1 + backward) * entries, moved)


def _call(kernel: Any, tiling: _Tiling, qkv: Array, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
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
        compiler_params=triton.CompilerParams(num_warps=tiling.n_warps, num_stages=2),
        interpret=tiling.interpret,
        cost_estimate=work.cost,
        metadata=work.metadata,
        name="attention" + kernel.__name__.removesuffix("_kernel"),
    )(qkv, qkv, qkv, *inputs)


def _part(part: int, i: Any, head: Any, row: Any) -> tuple[Any, ...]:
    return row, 0, part, head, 0


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(tiling: _Tiling, qkv: Array, words: Words | None, seen: Array | None) -> Array:
    return _forward(tiling, qkv, words, seen)[0]


def _forward(tiling: _Tiling, qkv: Array, words: Words | None, seen: Array | None) -> tuple[Array, tuple[Any, ...]]:
    n_rows, length, _, n_heads, head_dim = qkv.shape
    outputs = (
        jax.ShapeDtypeStruct((n_rows, length, n_heads, head_dim), qkv.dtype),
        jax.ShapeDtypeStruct((n_rows, n_heads, length), jnp.float32),
    )
    o, lse = _call(_forward_kernel, tiling, qkv, (words, seen), outputs)
    return o, (qkv, words, seen, o, lse)


def _backward(tiling: _Tiling, residuals: tuple[Any, ...], do: Array) -> tuple[Array | None, ...]:
    qkv, words, seen, o, lse = residuals
    delta = (1.0 - tiling.rate) * (do.astype(jnp.float32) * o.astype(jnp.float32)).sum(-1).swapaxes(1, 2)
    outputs = jax.ShapeDtypeStruct(qkv.shape, qkv.dtype)
    return _call(_backward_kernel, tiling, qkv, (words, seen, do, lse, delta), outputs), None, None


_attention.defvjp(_forward, _backward)


def _local(q: Array, k: Array, v: Array, kv_mask: Array | None, words: Words | None, *, rate: float) -> Array:
    """On one device; see `over_mesh`."""
    tiling = _Tiling(q.shape[1], q.shape[3], q.dtype, rate, interpret=platform() == "cpu")
    # Next to each other as the projection left them, so that the compiler finds nothing to copy.
    return _attention(tiling, jnp.stack([q, k, v], 2), words, kv_mask)


def gpu_attention(q: Array, k: Array, v: Array, q_slots: None, kv_mask: Array | None, dropout: Dropout | None) -> Array:
    """See `gpt1_jax.attention.causal_attention`; without a cache and without given masks, heads up to `MAX_HEAD_DIM`.

    A query that sees nothing gives zero and takes no gradient. On a CPU it is interpreted.
    """
    return over_mesh(functools.partial(_local, rate=dropout.rate if dropout else 0.0), q, k, v, kv_mask, dropout)
