"""Causal attention: one function, several kernels, one meaning.

    softmax(q k^T / sqrt(head_dim) + causal mask) v,   dropout on the probabilities

A new kernel is one entry in `KERNELS`; it has to drop the same entries as `xla` does (see dropout.py), because a kernel
that silently lacks attention dropout trains another model.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from gpt1_jax.dropout import Dropout
from gpt1_jax.errors import InputError


def matmul_precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """float32 means float32, also on TPU and on GPUs that would otherwise multiply in bfloat16 or TF32."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def visible(q_slots: Array, n_slots: int, kv_mask: Array | None) -> Array:
    """Which key slots a query may look at: its own and earlier ones, less the padding.

    Args:
      q_slots: int32 [B or 1, Lq], the slot of each query on the key axis.
      n_slots: number of key slots S.
      kv_mask: bool [B, S], False where a slot is padding, or None.

    Returns:
      bool [B or 1, 1, Lq, S].
    """
    mask = jnp.arange(n_slots) <= q_slots[:, None, :, None]
    return mask if kv_mask is None else mask & kv_mask[:, None, None, :]


def attention_probabilities(q: Array, k: Array, mask: Array) -> Array:
    """softmax(q k^T / sqrt(head_dim)) over the visible slots: [B, H, Lq, S], in the dtype of q.

    Scores are stored in q's dtype; their maximum, exponentials and sum are float32. A query that sees nothing (a
    padded one) gets equal weights instead of NaN.
    """
    scores = jnp.einsum("bqhd,bshd->bhqs", q * (q.shape[-1] ** -0.5), k, precision=matmul_precision(q.dtype))
    scores = jnp.where(mask, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1).astype(q.dtype)


def _xla(q: Array, k: Array, v: Array, mask: Array, dropout: Dropout | None) -> Array:
    probabilities = attention_probabilities(q, k, mask)
    if dropout is not None:
        probabilities = dropout(probabilities)
    return jnp.einsum("bhqs,bshd->bqhd", probabilities, v, precision=matmul_precision(q.dtype))


Kernel = Callable[[Array, Array, Array, Array, Dropout | None], Array]
KERNELS: dict[str, Kernel] = {"xla": _xla}


def select_kernel(name: str) -> str:
    """The kernel that `name` stands for ("auto": the best one here that keeps attention dropout).

    Raises:
      InputError: there is no such kernel.
    """
    if name == "auto":
        return "xla"
    if name not in KERNELS:
        raise InputError(f"attention={name!r} is unknown; use 'auto' or one of {sorted(KERNELS)}")
    return name


def causal_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    q_slots: Array | None = None,
    kv_mask: Array | None = None,
    dropout: Dropout | None = None,
    kernel: str = "auto",
) -> Array:
    """Multi-head causal attention.

    Args:
      q: [B, Lq, H, head_dim].
      k: [B, S, H, head_dim].
      v: [B, S, H, head_dim].
      q_slots: int32 [B or 1, Lq], the slot of each query on the key axis; default 0..Lq-1 (no cache).
      kv_mask: bool [B, S], False where a slot is padding; default all real.
      dropout: the site on the probabilities [B, H, Lq, S], or None.
      kernel: "auto" or a key of `KERNELS`.

    Returns:
      [B, Lq, H, head_dim] in q's dtype.
    """
    if q_slots is None:
        q_slots = jnp.arange(q.shape[1])[None, :]
    return KERNELS[select_kernel(kernel)](q, k, v, visible(q_slots, k.shape[1], kv_mask), dropout)
