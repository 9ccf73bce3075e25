"""Causal attention as plain JAX: the scores [B, H, Lq, S] exist, and XLA makes the best of them.

It runs everywhere, knows cached slots and given dropout masks, and is what every other kernel is tested against.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from gpt1_jax.dropout import Dropout
from gpt1_jax.precision import matmul_precision


def visible(q_slots: Array | None, n_slots: int, kv_mask: Array | None) -> Array:
    """Which key slots a query may look at: its own and earlier ones, less the padding.

    Args:
      q_slots: int32 [B or 1, Lq], the slot of each query on the key axis; None: as many queries as slots, in order.
      n_slots: number of key slots S.
      kv_mask: bool [B, S], False where a slot is padding, or None.

    Returns:
      bool [B or 1, 1, Lq, S].
    """
    slots = jnp.arange(n_slots)
    q_slots = slots[None, :] if q_slots is None else q_slots
    mask = slots <= q_slots[:, None, :, None]
    return mask if kv_mask is None else mask & kv_mask[:, None, None, :]


def attention_probabilities(q: Array, k: Array, mask: Array) -> Array:
    """softmax(q k^T / sqrt(head_dim)) over the visible slots: [B, H, Lq, S], in the dtype of q.

    Scores are stored in q's dtype; their maximum, exponentials and sum are float32. A query that sees nothing (a
    padded one) gets equal weights instead of NaN.
    """
    scores = jnp.einsum("bqhd,bshd->bhqs", q * (q.shape[-1] ** -0.5), k, precision=matmul_precision(q.dtype))
    scores = jnp.where(mask, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1).astype(q.dtype)


def xla_attention(
    q: Array, k: Array, v: Array, q_slots: Array | None, kv_mask: Array | None, dropout: Dropout | None
) -> Array:
    """See `gpt1_jax.attention.causal_attention`."""
    probabilities = attention_probabilities(q, k, visible(q_slots, k.shape[1], kv_mask))
    if dropout is not None:
        probabilities = dropout(probabilities)
    return jnp.einsum("bhqs,bshd->bqhd", probabilities, v, precision=matmul_precision(q.dtype))
