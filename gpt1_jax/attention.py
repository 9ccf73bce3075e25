"""Causal attention: one function, several kernels, one meaning.

    softmax(q k^T / sqrt(head_dim) + causal mask) v,   dropout on the probabilities

A new kernel is one entry in `KERNELS`; it has to drop the same entries as `xla` does (see dropout.py), because a kernel
that silently lacks attention dropout trains another model.
"""

from __future__ import annotations

from collections.abc import Callable

from jax import Array

from gpt1_jax.dropout import Dropout
from gpt1_jax.errors import InputError
from gpt1_jax.kernels.xla import xla_attention

Kernel = Callable[[Array, Array, Array, Array | None, Array | None, Dropout | None], Array]
KERNELS: dict[str, Kernel] = {"xla": xla_attention}


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
      q_slots: int32 [B or 1, Lq], the slot of each query on the key axis; default 0..Lq-1 (no cache, and S = Lq).
      kv_mask: bool [B, S], False where a slot is padding; default all real.
      dropout: the site on the probabilities [B, H, Lq, S], or None.
      kernel: "auto" or a key of `KERNELS`.

    Returns:
      [B, Lq, H, head_dim] in q's dtype.
    """
    return KERNELS[select_kernel(kernel)](q, k, v, q_slots, kv_mask, dropout)
