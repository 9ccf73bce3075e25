"""A kernel on every device: no compiler can divide a kernel, but rows of the batch and heads do not know each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
from jax import Array
from jax.sharding import PartitionSpec

from gpt1_jax.dropout import Dropout, row_words
from gpt1_jax.sharding import spec

Words = tuple[Array, Array]
Local = Callable[[Array, Array, Array, Array | None, Words | None], Array]


def platform() -> str:
    """Where what is traced now will run: on the devices of the current mesh, or else on the default ones."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device is not None and device.platform else jax.default_backend()


def over_mesh(local: Local, q: Array, k: Array, v: Array, kv_mask: Array | None, dropout: Dropout | None) -> Array:
    """`local` on the rows and heads that each device of the current mesh has.

    Args:
      local: (q, k, v, kv_mask, words) -> o, with arguments and result as here, of one device.
      q: [B, L, H, head_dim].
      k: [B, L, H, head_dim].
      v: [B, L, H, head_dim].
      kv_mask: bool [B, L], False where a token is padding, or None.
      dropout: whose mask is drawn, or None. Its `row_words` are made of global rows and heads before they are divided:
        uint32 [B, H, L] each.

    Returns:
      [B, L, H, head_dim].
    """
    n_rows, length, n_heads, _ = q.shape
    words = None if dropout is None else row_words(dropout.key_words, dropout.rows, (n_rows, n_heads, length))
    mesh = jax.sharding.get_abstract_mesh()
    free = frozenset(mesh.axis_names) - frozenset(mesh.manual_axes)
    if mesh.empty or mesh.size == 1 or not free:
        return local(q, k, v, kv_mask, words)
    batch, heads = spec("batch", "heads", without=mesh.manual_axes)
    if n_rows % math.prod(mesh.shape[axis] for axis in jax.tree.leaves(batch)):
        batch = None  # one row, to initialise: every device computes it
    x, seen, word = PartitionSpec(batch, None, heads), PartitionSpec(batch), PartitionSpec(batch, heads)
    specs = (x, x, x, None if kv_mask is None else seen, None if words is None else (word, word))
    run = jax.shard_map(local, in_specs=specs, out_specs=x, axis_names=free, check_vma=False)
    return run(q, k, v, kv_mask, words)
