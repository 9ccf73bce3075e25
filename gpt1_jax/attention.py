"""Causal attention: one function, several kernels, one meaning.

    softmax(q k^T / sqrt(head_dim) + causal mask) v,   dropout on the probabilities

A new kernel is one entry in `KERNELS`; it has to drop the same entries as `xla` does (see dropout.py), because a kernel
that silently lacks attention dropout trains another model.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int

from gpt1_jax.dropout import Dropout
from gpt1_jax.errors import InputError
from gpt1_jax.kernels import gpu, tpu
from gpt1_jax.kernels.sharded import compute_capability, device_kind
from gpt1_jax.kernels.xla import xla_attention
from gpt1_jax.precision import add_bias

Kernel = Callable[[Array, Array, Array, Array | None, Array | None, Dropout | None], Array]
KERNELS: dict[str, Kernel] = {"xla": xla_attention, "tpu": tpu.tpu_attention}
BEST = {"TPU": "tpu", **dict.fromkeys(tpu.SMALL, "xla")}
"""Beginning of the name of a kind of devices -> their kernel, the longest one counts; "xla" for all others."""
FROM_PROJECTION = {"tpu": tpu.tpu_self_attention}
"""Kernel -> itself as `self_attention` calls it, where it knows better than to take q, k and v apart."""
if gpu.AVAILABLE:
    KERNELS["gpu"], FROM_PROJECTION["gpu"] = gpu.gpu_attention, gpu.gpu_self_attention
    BEST["NVIDIA"] = "gpu"
MAX_TOKENS = {"tpu": tpu.MAX_TOKENS}
"""Kernel -> the longest rows that it takes."""
MAX_HEAD_DIM = {"gpu": gpu.MAX_HEAD_DIM}
"""Kernel -> the widest heads that it takes."""
MIN_COMPUTE_CAPABILITY = {"gpu": 8.0}
"""Kernel -> the least that its compiler takes, Triton: an A100, a GeForce RTX 3000."""


def check_kernel(name: str) -> None:
    """Refuses the name of no kernel; no device is looked for.

    Raises:
      InputError: names those that there are.
    """
    if name != "auto" and name not in KERNELS:
        raise InputError(f"attention={name!r} is unknown; use 'auto' or one of {sorted(KERNELS)}")


def select_kernel(name: str, length: int, head_dim: int, dropout: Dropout | None = None) -> str:
    """The kernel that computes attention without a cache; every one of them keeps attention dropout.

    Args:
      name: "auto" for the best one where the current mesh is, or else the default device; or a key of `KERNELS`.
      length: tokens of a row.
      head_dim: numbers of a head.
      dropout: the site, or None.

    Raises:
      InputError: there is no such kernel, or it does not compute this.
    """
    check_kernel(name)
    best = name
    if name == "auto":
        kinds = [kind for kind in BEST if device_kind().startswith(kind)]
        best = BEST[max(kinds, key=len)] if kinds else "xla"
    if best != "xla" and (reason := _beyond(best, length, head_dim, dropout)):
        if name != "auto":
            raise InputError(f"attention={name!r} {reason}; use 'auto' or 'xla'")
        best = "xla"
    return best


def causal_attention(
    q: Float[Array, "B Lq H head_dim"],
    k: Float[Array, "B S H head_dim"],
    v: Float[Array, "B S H head_dim"],
    *,
    q_slots: Int[Array, "#B Lq"] | None = None,
    kv_mask: Bool[Array, "B S"] | None = None,
    dropout: Dropout | None = None,
    kernel: str = "auto",
) -> Float[Array, "B Lq H head_dim"]:
    """Multi-head causal attention.

    What only "xla" computes goes there: a cache, and under "auto" also given dropout masks and what is too large.

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
    name = select_kernel(kernel, q.shape[1], q.shape[3], dropout) if q_slots is None else "xla"
    return KERNELS[name](q, k, v, q_slots, kv_mask, dropout)


def self_attention(
    product: Float[Array, "B 3 L D"],
    bias: Float32[Array, "3 1 D"],
    n_heads: int,
    *,
    kv_mask: Bool[Array, "B L"] | None = None,
    dropout: Dropout | None = None,
    kernel: str = "auto",
) -> Float[Array, "B L D"]:
    """Causal attention of a sequence to itself, from the projection of q, k and v to what the output projection takes.

    A kernel that works on these as they are has nothing to copy, and gets the bias's gradient as it goes.

    Args:
      product: x W, [B, 3, L, H * head_dim].
      bias: float32 [3, 1, H * head_dim].
      n_heads: H.
      kv_mask: as in `causal_attention`, likewise the others.
      dropout: the site.
      kernel: "auto" or a key of `KERNELS`.

    Returns:
      [B, L, H * head_dim] in the product's dtype.

    Raises:
      InputError: a kernel was asked for by name that does not compute this.
    """
    n_rows, _, length, width = product.shape
    name = select_kernel(kernel, length, width // n_heads, dropout)
    if name in FROM_PROJECTION:
        return FROM_PROJECTION[name](product, bias, n_heads, kv_mask, dropout)
    q, k, v = split_heads(product, bias, n_heads)
    return KERNELS[name](q, k, v, None, kv_mask, dropout).reshape(n_rows, length, width)


def split_heads(
    product: Float[Array, "B 3 L D"], bias: Float32[Array, "3 1 D"], n_heads: int
) -> list[Float[Array, "B L {n_heads} head_dim"]]:
    """q, k and v, [B, L, H, head_dim] each, of what `self_attention` takes."""
    n_rows, _, length, width = product.shape
    parts = jnp.split(add_bias(product, bias), 3, axis=1)
    return [part.reshape(n_rows, length, n_heads, width // n_heads) for part in parts]


def _beyond(name: str, length: int, head_dim: int, dropout: Dropout | None) -> str:
    """Why a kernel does not compute this; "" where it does."""
    if dropout is not None and dropout.mask is not None:
        return "draws its dropout masks and takes none"
    for size, limits, what in ((length, MAX_TOKENS, "tokens"), (head_dim, MAX_HEAD_DIM, "numbers a head")):
        if size > limits.get(name, size):
            return f"takes at most {limits[name]} {what}, not {size}"
    if name in MIN_COMPUTE_CAPABILITY and (has := compute_capability()) < MIN_COMPUTE_CAPABILITY[name]:
        return f"needs compute capability {MIN_COMPUTE_CAPABILITY[name]}, which these cards do not have ({has})"
    return ""
