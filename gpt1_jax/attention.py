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
from gpt1_jax.kernels import tpu
from gpt1_jax.kernels.sharded import platform
from gpt1_jax.kernels.xla import xla_attention

Kernel = Callable[[Array, Array, Array, Array | None, Array | None, Dropout | None], Array]
KERNELS: dict[str, Kernel] = {"xla": xla_attention, "tpu": tpu.tpu_attention}
BEST = {"tpu": "tpu"}
"""Platform -> its kernel; "xla" for all others."""
MAX_TOKENS = {"tpu": tpu.MAX_TOKENS}
"""Kernel -> the longest rows that it takes."""


def check_kernel(name: str) -> None:
    """Refuses the name of no kernel; no device is looked for.

    Raises:
      InputError: names those that there are.
    """
    if name != "auto" and name not in KERNELS:
        raise InputError(f"attention={name!r} is unknown; use 'auto' or one of {sorted(KERNELS)}")


def select_kernel(name: str) -> str:
    """The kernel that `name` stands for; "auto" is the best one where the current mesh is, or else the default device.

    Every one of them keeps attention dropout.

    Raises:
      InputError: there is no such kernel.
    """
    check_kernel(name)
    return BEST.get(platform(), "xla") if name == "auto" else name


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

    What only "xla" computes goes there: a cache, and under "auto" also given dropout masks and rows that are too long.

    Args:
      q: [B, Lq, H, head_dim].
      k: [B, S, H, head_dim].
      v: [B, S, H, head_dim].
      q_slots: int32 [B or 1, Lq], the slot of each query on the key axis; default 0..Lq-1 (no cache, and S = Lq).
      kv_mask: bool [B, S], False where a slot is padding; default all real.
      dropout: the site on the probabilities [B, H, Lq, S], or None.
      kernel: "auto" or a key of `KERNELS`.

    Returns:
      [B, Lq, H, head_dim] in q's dtype. A query that sees nothing gets anything finite.

    Raises:
      InputError: a kernel was asked for by name that does not compute this.
    """
    name = select_kernel(kernel)
    if q_slots is None and name != "xla" and (reason := _beyond(name, q, dropout)):
        if kernel != "auto":
            raise InputError(f"attention={kernel!r} {reason}; use 'auto' or 'xla'")
        name = "xla"
    return KERNELS[name if q_slots is None else "xla"](q, k, v, q_slots, kv_mask, dropout)


def _beyond(name: str, q: Array, dropout: Dropout | None) -> str:
    """Why a kernel does not compute this; "" where it does."""
    if dropout is not None and dropout.mask is not None:
        return "draws its dropout masks and takes none"
    longest = MAX_TOKENS.get(name, q.shape[1])
    return f"takes at most {longest} tokens, not {q.shape[1]}" if q.shape[1] > longest else ""
