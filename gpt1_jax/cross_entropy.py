"""Cross-entropy over the vocabulary: the loss of every token, and their weighted sum with its gradients.

    l_tr = h_t W_r,   m_t = max_r l_tr,   e_tr = exp(l_tr - m_t),   s_t = sum_r e_tr,   y the target of t

    nll_t = m_t + log s_t - l_ty,        d nll_t / d l_tr = (e_tr - s_t [r = y]) / s_t

A weighted sum knows its weights w beforehand, but for a factor. So its gradients are formed with the logits at hand, in
the forward pass and piece by piece, and nothing of size [B, L, R] is kept or computed twice: of

    d_tr = e_tr where r is not y,   -(the sum of these over r) where r = y          (no digits cancel)

there follow dh_t = w_t / s_t sum_r d_tr W_r and dW_r = sum_t d_tr w_t / s_t h_t: three products in all. What is kept
for the backward pass is as large as h and W.

Shapes: B batch, L length, P positions of a piece, D n_embd, R table rows.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int

from gpt1_jax.kernels.sharded import platform
from gpt1_jax.precision import matmul_precision
from gpt1_jax.products import alone_on_cpu
from gpt1_jax.sharding import constrain, look_up, spec

TOKENS_AT_ONCE = {"cpu": 1024}
"""Platform -> tokens of a device whose logits exist at a time: few enough for the caches, and enough to fill a product.
"""
TOKENS_AT_ONCE_ELSEWHERE = 4096


def positions_at_once(shape: tuple[int, ...], chunk: int | None = None) -> int:
    """How many of the L positions of rows [B, L] have their logits computed at a time.

    Args:
      shape: B and L, of what is traced now: without the axes of the current mesh that a shard_map divides by.
      chunk: as many positions; 0 all of them; None as many as `TOKENS_AT_ONCE` allows a device, in pieces of about the
        same length.
    """
    n_batch, n_tokens = shape
    if chunk is not None:
        return min(chunk or n_tokens, n_tokens)
    rows = n_batch // _batch_parts(n_batch)
    most = max(1, TOKENS_AT_ONCE.get(platform(), TOKENS_AT_ONCE_ELSEWHERE) // rows)
    return -(-n_tokens // -(-n_tokens // most))


def next_token_nll(
    h: Float[Array, "B L D"],
    table: Float[Array, "R D"],
    tokens: Int[Array, "B L"],
    *,
    n_rows: int,
    chunk: int | None = None,
) -> Float32[Array, "B L-1"]:
    """-log P(tokens[t] | tokens[<t]) (paper, equation 1).

    Its gradient computes the logits a second time where they do not all exist at once: see `weighted_nll`.

    Args:
      h: [B, L, D], top hidden states.
      table: [R, D], the tied output table; rows from `n_rows` on are padding and take no probability.
      tokens: int32 [B, L].
      n_rows: rows of the table that mean something.
      chunk: positions whose logits exist at a time, see `positions_at_once`.

    Returns:
      float32 [B, L - 1], in nats; entry t is the loss of token t + 1.
    """
    n_tokens = tokens.shape[1]
    pieces = _pieces(positions_at_once(tokens.shape, chunk), h, jnp.roll(tokens, -1, axis=1))
    one = functools.partial(_nll, table=table, n_rows=n_rows)
    if len(pieces[0]) == 1:
        nll = one(*(x[0] for x in pieces))[None]
    else:
        nll = jax.lax.map(jax.checkpoint(lambda piece: one(*piece)), pieces)
    return _whole(nll, n_tokens)[:, :-1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def weighted_nll(
    h: Float[Array, "B L D"],
    table: Float[Array, "R D"],
    tokens: Int[Array, "B L"],
    weights: Float32[Array, "B L-1"],
    n_rows: int,
    chunk: int | None = None,
) -> Float32[Array, ""]:
    """The sum of `next_token_nll` times float32 `weights` [B, L - 1]: float32 [].

    Where its gradient is asked for, the forward pass computes it, too (see above); else that costs nothing.
    """
    return jnp.sum(next_token_nll(h, table, tokens, n_rows=n_rows, chunk=chunk) * weights)


def _forward(
    h: Array, table: Array, tokens: Array, weights: Array, n_rows: int, chunk: int | None
) -> tuple[Array, tuple[Array, Array, Array]]:
    n_tokens = tokens.shape[1]
    pieces = _pieces(
        positions_at_once(tokens.shape, chunk), h, jnp.roll(tokens, -1, axis=1), jnp.pad(weights, ((0, 0), (0, 1)))
    )
    # Devices with other rows of the batch sum over the pieces for themselves, and then once over all of them.
    n_parts = _batch_parts(len(tokens))

    def lay_out(x: Array) -> Array:
        return constrain(x, "batch", "vocab", None) if n_parts > 1 else x

    def one(piece: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        nll, dh, d, scaled = _nll_and_gradients(*piece, table=table, n_rows=n_rows)
        if alone_on_cpu():  # which would transpose a copy of d, to sum over two axes
            d, scaled = (x.reshape(n_parts, -1, x.shape[-1]) for x in (d, scaled))
            d_table = _product("gtr,gtd->grd", d, scaled)
        else:
            d, scaled = (x.reshape(n_parts, -1, *x.shape[1:]) for x in (d, scaled))
            d_table = _product("gblr,gbld->grd", d, scaled)
        return lay_out(d_table), (nll, dh)

    def add(total: Array, piece: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        d_table, rest = one(piece)
        return total + d_table, rest

    if len(pieces[0]) == 1:
        d_table, (nll, dh) = one(tuple(x[0] for x in pieces))
        nll, dh = nll[None], dh[None]
    else:
        d_table, (nll, dh) = jax.lax.scan(add, lay_out(jnp.zeros((n_parts, *table.shape), jnp.float32)), pieces)
    d_table = jax.lax.reduce(d_table.astype(table.dtype), table.dtype.type(0), jax.lax.add, (0,))
    nll = _whole(nll, n_tokens)[:, :-1]
    return jnp.sum(nll * weights), (_whole(dh, n_tokens), d_table, nll)


def _backward(n_rows: int, chunk: int | None, kept: tuple[Array, Array, Array], g: Array) -> tuple[Array | None, ...]:
    del n_rows, chunk
    dh, d_table, nll = ((g * x).astype(x.dtype) for x in kept)
    return dh, d_table, None, nll


weighted_nll.defvjp(_forward, _backward)


def _nll(
    h: Float[Array, "B P D"], targets: Int[Array, "B P"], *, table: Float[Array, "R D"], n_rows: int
) -> Float32[Array, "B P"]:
    """[B, P, D] and int32 [B, P] -> float32 [B, P]."""
    logits, row = _logits(h, table, n_rows)
    return jax.nn.logsumexp(logits, axis=-1) - _target_logits(logits, targets, row == targets[..., None])


def _nll_and_gradients(
    h: Float[Array, "B P D"],
    targets: Int[Array, "B P"],
    weights: Float32[Array, "B P"],
    *,
    table: Float[Array, "R D"],
    n_rows: int,
) -> tuple[Float32[Array, "B P"], Float[Array, "B P D"], Float[Array, "B P R"], Float[Array, "B P D"]]:
    """As `_nll`; of the weighted sum dh [B, P, D]; and the factors of d_table: d [B, P, R] and w / s h [B, P, D]."""
    logits, row = _logits(h, table, n_rows)
    is_target = row == targets[..., None]
    top = logits.max(-1)
    target = _target_logits(logits, targets, is_target)
    e = jnp.where(is_target, 0.0, jnp.exp(logits - top[..., None]))  # of the others
    where = platform()
    if where == "tpu":
        # A column of ones sums inside the product, whose matrix unit has room for it: one pass over e less.
        with_ones = jnp.pad(table, ((0, 0), (0, 1)), constant_values=1)
        dh, others = jnp.split(_product("blr,rd->bld", e.astype(h.dtype), with_ones), [table.shape[1]], axis=-1)
        dh -= others * look_up(table, targets)
        d = jnp.where(is_target, -others, e).astype(h.dtype)
    else:
        if where == "cpu":
            e = jax.lax.optimization_barrier(e)  # or every reader computes the exponentials again
        others = e.sum(-1, keepdims=True)
        d = jnp.where(is_target, -others, e).astype(h.dtype)
        dh = _product("blr,rd->bld", d, table)
    total = others[..., 0] + jnp.exp(target - top)
    nll = top + jnp.log(total) - target
    scale = (weights / total)[..., None]
    return nll, (scale * dh).astype(h.dtype), d, (scale * h).astype(h.dtype)


def _target_logits(
    logits: Float32[Array, "B P R"], targets: Int[Array, "B P"], is_target: Bool[Array, "B P R"]
) -> Float32[Array, "B P"]:
    """[B, P, R], int32 [B, P] and which of the logits they are -> [B, P]."""
    if alone_on_cpu():  # where nothing fuses with a sum, and the terms of this one would be written down
        return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    # Instead of a gather: it works on each shard of the vocabulary and fuses with the sum of exponentials.
    return jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)


def _product(subscripts: str, x: Array, y: Array) -> Array:
    """float32, of operands as they are."""
    return jnp.einsum(subscripts, x, y, precision=matmul_precision(x.dtype), preferred_element_type=jnp.float32)


def _logits(
    h: Float[Array, "B P D"], table: Float[Array, "R D"], n_rows: int
) -> tuple[Float32[Array, "B P R"], Int[Array, "B P R"]]:
    """float32 [B, P, R], padded rows at a value that never wins, and the row of each entry."""
    logits = jnp.einsum("bld,rd->blr", h, table, precision=matmul_precision(h.dtype)).astype(jnp.float32)
    row = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    return jnp.where(row < n_rows, logits, jnp.finfo(jnp.float32).min), row


def _batch_parts(n_batch: int) -> int:
    """Among how many devices the rows of a batch are divided, by the axes of the current mesh that are left to it."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = () if mesh.empty else jax.tree.leaves(tuple(spec("batch", without=mesh.manual_axes)))
    n_parts = math.prod(mesh.shape[axis] for axis in axes)
    return n_parts if n_batch % n_parts == 0 else 1


def _pieces(n_positions: int, *arrays: Array) -> tuple[Array, ...]:
    """[B, L, ...] each -> [pieces, B, P, ...], zeros at the end. By positions, since the batch lies over devices."""
    n_batch, n_tokens = arrays[0].shape[:2]
    n_pieces = -(-n_tokens // n_positions)
    pad = n_pieces * n_positions - n_tokens

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, pad)) + ((0, 0),) * (x.ndim - 2)) if pad else x
        return x.reshape(n_batch, n_pieces, n_positions, *x.shape[2:]).swapaxes(0, 1)

    return tuple(map(cut, arrays))


def _whole(pieces: Array, n_tokens: int) -> Array:
    """[pieces, B, P, ...] -> [B, L, ...]."""
    _, n_batch, _, *rest = pieces.shape
    return pieces.swapaxes(0, 1).reshape(n_batch, -1, *rest)[:, :n_tokens]
