"""Device mesh, the one table of logical-axis rules, and shardings.

Parameters carry logical axis names (model.py); `RULES` maps them to mesh axes. What used to be `pjit` is `jax.jit`
with `in_shardings` and `out_shardings` (train.py); the mesh is current inside `jax.set_mesh(mesh)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gpt1_jax.errors import InputError

AXES = ("data", "fsdp", "tensor")

RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "embed": "fsdp",  # width of a parameter; activations keep their width whole
    "vocab": "tensor",
    "heads": "tensor",
    "mlp": "tensor",
}
"""Logical axis -> mesh axis. A new mesh axis, or another way to shard, is a line here."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes; at most one may be -1, which takes the devices that are left.

    Attributes:
      data: copies of the parameters, each with its part of the batch.
      fsdp: parts of the batch that also share the parameters among them.
      tensor: parts of every head, MLP column and vocabulary row; divides n_head.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


def make_mesh(config: MeshConfig = MeshConfig(), devices: list[Any] | None = None) -> Mesh:
    """A mesh over all devices (or those given).

    Raises:
      InputError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [getattr(config, axis) for axis in AXES]
    shape = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise InputError(f"mesh {shape}: every size must be at least 1, and at most one may be -1 (the rest)")
    rest, left = divmod(len(devices), math.prod(size for size in sizes if size != -1))
    sizes = [rest if size == -1 else size for size in sizes]
    if left or math.prod(sizes) != len(devices):
        raise InputError(
            f"mesh {shape} does not fit {len(devices)} devices: the sizes must multiply to the number of devices; "
            f"set one of them to -1 to take what is left"
        )
    return jax.make_mesh(tuple(sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def check_mesh(mesh: Mesh, *, batch_size: int, n_head: int | None = None, accumulation_steps: int = 1) -> None:
    """Refuses sizes that do not divide, before anything is compiled.

    Raises:
      InputError: names the field, its value and the values that would do.
    """
    n_rows = mesh.shape["data"] * mesh.shape["fsdp"]
    if batch_size % accumulation_steps:
        raise InputError(
            f"batch_size={batch_size} is not divisible by accumulation_steps={accumulation_steps}; use a multiple of it"
        )
    micro = batch_size // accumulation_steps
    if micro % n_rows:
        per = f"batch_size={batch_size}" + (f" / accumulation_steps={accumulation_steps}" * (accumulation_steps > 1))
        raise InputError(
            f"{per} = {micro} rows do not divide over mesh data={mesh.shape['data']} x fsdp={mesh.shape['fsdp']} = "
            f"{n_rows} devices; use a multiple of {n_rows * accumulation_steps} for batch_size, or fewer devices"
        )
    if n_head is not None and n_head % mesh.shape["tensor"]:
        fits = [d for d in range(1, n_head + 1) if n_head % d == 0]
        raise InputError(f"mesh tensor={mesh.shape['tensor']} does not divide n_head={n_head}; use one of {fits}")


def spec(*names: str | None) -> PartitionSpec:
    """The partition of an array whose axes have these logical names."""
    return PartitionSpec(*(RULES.get(name) if name else None for name in names))


def constrain(x: Array, *names: str | None) -> Array:
    """Lays an activation out by the logical names of its axes; does nothing without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, spec(*names))


def tree_shardings(abstract: Any, mesh: Mesh) -> Any:
    """Shardings of a tree of abstract arrays, boxed ones by the rules and all others replicated."""
    specs = nn.get_partition_spec(abstract)
    return jax.tree.map(lambda p: NamedSharding(mesh, spec(*p)), specs, is_leaf=lambda p: isinstance(p, PartitionSpec))


def jit_init(init: Callable[[Any], Any], mesh: Mesh) -> tuple[Callable[[Any], Any], Any]:
    """`init`, a function of a seed, so that every array is born where it lives, and the shardings of its plain tree."""
    shardings = tree_shardings(jax.eval_shape(init, 0), mesh)

    def born(seed: Any) -> Any:
        return nn.unbox(init(seed))

    return jax.jit(born, out_shardings=shardings), shardings


def abstract_sharded(init: Callable[[], Any], mesh: Mesh) -> Any:
    """The tree that `jit_init` would make, as `jax.ShapeDtypeStruct`s with shardings: nothing is computed."""
    boxed = jax.eval_shape(init)
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        nn.unbox(boxed),
        tree_shardings(boxed, mesh),
    )


def param_shardings(model: Any, mesh: Mesh) -> Any:
    """Shardings of the parameters of a `GPT1`."""
    return tree_shardings(jax.eval_shape(model.init_partitioned, jax.random.key(0)), mesh)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch over `data` and `fsdp`."""
    return NamedSharding(mesh, spec("batch"))


def to_global(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, Array]:
    """The rows of one host become part of the global, sharded batch."""
    sharding = batch_sharding(mesh)
    return {k: jax.make_array_from_process_local_data(sharding, v) for k, v in batch.items()}
