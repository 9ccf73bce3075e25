"""A kernel on every device: no compiler can divide a kernel, but rows of the batch and heads do not know each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import PartitionSpec

from gpt1_jax.dropout import Dropout
from gpt1_jax.sharding import spec

Words = tuple[Array, Array]


def platform() -> str:
    """Where what is traced now will run: on the devices of the current mesh, or else on the default one."""
    return _device().platform


def device_kind() -> str:
    """Likewise, the name of the devices."""
    return _device().device_kind


def compute_capability() -> float:
    """NVIDIA's number for what those devices can do, such as 8.0 of an A100; infinite where none of them is here."""
    kind = device_kind()
    here = [device for device in jax.local_devices() if device.device_kind == kind]
    return min((float(getattr(device, "compute_capability", math.inf)) for device in here), default=math.inf)


def _device() -> Any:
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is not None and device.platform:
        return device
    default = getattr(jax.config, "jax_default_device", None)
    return default if isinstance(default, jax.Device) else jax.devices(default)[0]


def divided(
    local: Callable[..., Array],
    arrays: tuple[Array, ...],
    axes: tuple[tuple[str | None, ...], ...],
    out: tuple[str | None, ...],
    kv_mask: Array | None,
    dropout: Dropout | None,
    shape: tuple[int, int, int],
) -> Array:
    """`local` on the rows and heads that each device of the current mesh has.

    Args:
      local: (*arrays, kv_mask, words) -> o, of one device.
      arrays: what is divided.
      axes: for each of them, which of its axes is the "batch" and which the "heads".
      out: likewise of the result.
      kv_mask: bool [B, L], False where a token is padding, or None.
      dropout: whose mask is drawn, or None. Its `row_words` are made of global rows and heads before they are divided:
        uint32 [B, H, L] each.
      shape: rows, heads, tokens.
    """
    words = None if dropout is None else dropout.words(shape)
    mesh = jax.sharding.get_abstract_mesh()
    free = frozenset(mesh.axis_names) - frozenset(mesh.manual_axes)
    if mesh.empty or mesh.size == 1 or not free:
        return local(*arrays, kv_mask, words)
    batch, heads = spec("batch", "heads", without=mesh.manual_axes)
    if shape[0] % math.prod(mesh.shape[axis] for axis in jax.tree.leaves(batch)):
        batch = None  # one row, to initialise: every device computes it
    lies = {"batch": batch, "heads": heads, None: None}

    def partition(*names: str | None) -> PartitionSpec:
        return PartitionSpec(*(lies[name] for name in names))

    word = partition("batch", "heads")
    optional = (None if kv_mask is None else partition("batch"), None if words is None else (word, word))
    specs = (*(partition(*names) for names in axes), *optional)
    run = jax.shard_map(local, in_specs=specs, out_specs=partition(*out), axis_names=free, check_vma=False)
    return run(*arrays, kv_mask, words)
