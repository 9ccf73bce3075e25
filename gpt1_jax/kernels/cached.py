"""Attention over cached keys and values: it reads the slots that are filled, not the whole cache.

A cache has room for the longest text that a call may give, and most of it is empty most of the time. So the slots are
read in blocks, as many as the longest row fills, with a softmax that is corrected as it goes along (maximum m, sum l
and output o so far; s the scores of the next block):

    m' = max(m, max s);   l' = e^(m - m') l + sum e^(s - m');   o' = e^(m - m') o + e^(s - m') v

One program serves any number of tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from gpt1_jax.precision import matmul_precision

BLOCK = 128

LayerCache = tuple[Float[Array, "B H S head_dim"], Float[Array, "B H S head_dim"]]
"""Keys and values of a layer, [B, H, S, head_dim] each."""


def cached_attention(
    q: Float[Array, "B L H head_dim"],
    k: Float[Array, "B L H head_dim"],
    v: Float[Array, "B L H head_dim"],
    cache: LayerCache,
    start: Int[Array, " B"],
) -> tuple[Float[Array, "B L H head_dim"], LayerCache]:
    """Causal attention of new tokens to themselves and to those in the cache, which takes their keys and values.

    Args:
      q: [B, L, H, head_dim], of the new tokens.
      k: likewise.
      v: likewise.
      cache: of the tokens before.
      start: int32 [B], the slot of each row's first new token.

    Returns:
      [B, L, H, head_dim] in q's dtype, and the cache with the new tokens in it.
    """
    n_batch, n_new, n_head, head_dim = q.shape
    keys, values = (_write(slots, new, start) for slots, new in zip(cache, (k, v), strict=True))
    n_slots = keys.shape[2]
    block = min(BLOCK, n_slots) if isinstance(n_slots, int) else n_slots  # symbolic sizes: all at once
    q_slots = start[:, None] + jnp.arange(n_new)[None, :]
    q = q * (head_dim**-0.5)
    precision = matmul_precision(q.dtype)

    def read(i: Array, so_far: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, out = so_far
        first = jnp.minimum(i * block, n_slots - block)  # the last block may begin in the one before
        k, v = (lax.dynamic_slice_in_dim(slots, first, block, axis=2) for slots in (keys, values))
        slots = first + jnp.arange(block)
        seen = (slots <= q_slots[:, None, :, None]) & (slots >= i * block)
        scores = jnp.einsum("bqhd,bhsd->bhqs", q, k, precision=precision).astype(jnp.float32)
        raised = jnp.maximum(highest, jnp.max(scores, axis=-1, where=seen, initial=-jnp.inf))
        weights = jnp.where(seen, jnp.exp(scores - raised[..., None]), 0)
        kept = jnp.exp(highest - raised)
        new = jnp.einsum("bhqs,bhsd->bhqd", weights.astype(v.dtype), v, precision=precision)
        return raised, total * kept + weights.sum(axis=-1), out * kept[..., None] + new

    shape = (n_batch, n_head, n_new)
    nothing = (jnp.full(shape, jnp.finfo(jnp.float32).min), jnp.zeros(shape), jnp.zeros((*shape, head_dim)))
    n_blocks = jnp.minimum(q_slots.max() // block + 1, -(-n_slots // block))
    _, total, out = lax.fori_loop(0, n_blocks, read, nothing)
    return jnp.swapaxes(out / total[..., None], 1, 2).astype(q.dtype), (keys, values)


def _write(
    slots: Float[Array, "B H S head_dim"], new: Float[Array, "B L H head_dim"], start: Int[Array, " B"]
) -> Float[Array, "B H S head_dim"]:
    """The cache [B, H, S, head_dim] with `new` [B, L, H, head_dim] in the slots from `start` [B] on."""
    write = jax.vmap(lambda row, new, start: lax.dynamic_update_slice_in_dim(row, new, start, axis=1))
    return write(slots, jnp.swapaxes(new, 1, 2), start)
