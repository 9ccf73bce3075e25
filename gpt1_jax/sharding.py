"""Device mesh, the one table of logical-axis rules, and shardings.

Parameters carry logical axis names (model.py); `RULES` maps them to mesh axes. What used to be `pjit` is `jax.jit`
with `in_shardings` and `out_shardings` (train.py); the mesh is current inside `jax.set_mesh(mesh)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gpt1_jax.config import check_fields
from gpt1_jax.errors import InputError
from gpt1_jax.precision import are_matrices

AXES = ("data", "fsdp", "tensor")
GRADIENT_DTYPES = ("auto", "float32", "bfloat16")

RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "embed": "fsdp",  # width of a parameter, of an LSTM's recurrent kernels its units; activations stay whole
    "embed_over_data": ("fsdp", "data"),  # width of a moment, see zero.py
    "vocab": "tensor",
    "heads": "tensor",
    "mlp": "tensor",
}
"""Logical axis -> mesh axis. Another way to shard is a line here; a new mesh axis also has a size in `MeshConfig`."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes; at most one may be -1, which takes the devices that are left.

    Attributes:
      data: copies of the parameters, each with its part of the batch.
      fsdp: parts of the batch that also share the parameters among them.
      tensor: parts of heads, MLP columns and vocabulary rows; divides n_head.
      shard_optimizer: the copies share the optimizer's state among them, too (ZeRO stage 1); None where they can, see
        `zero.is_sharded`.
      gradient_dtype: in which the gradients of matrices are summed over `data`: "float32", "bfloat16" (half the bytes),
        or "auto", that of the computation, in which they come about, and float32 where each is a sum of micro-batches.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    shard_optimizer: bool | None = None
    gradient_dtype: str = "auto"

    def __post_init__(self) -> None:
        """Checks types and the dtype; sizes are checked against the devices, see `make_mesh`."""
        check_fields(self, "mesh")
        if self.gradient_dtype not in GRADIENT_DTYPES:
            allowed = list(GRADIENT_DTYPES)
            raise InputError(f"mesh.gradient_dtype={self.gradient_dtype!r} is unknown; use one of {allowed}")


def all_devices() -> list[Any]:
    """What there is, on all hosts."""
    return jax.devices()


def make_mesh(config: MeshConfig = MeshConfig(), devices: list[Any] | None = None) -> Mesh:
    """A mesh over all devices (or those given).

    Raises:
      InputError: the sizes do not multiply to the number of devices.
    """
    devices = all_devices() if devices is None else devices
    sizes = [getattr(config, axis) for axis in AXES]
    shape = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise InputError(f"mesh {shape}: every size must be at least 1, and at most one may be -1 (the rest)")
    rest, left = divmod(len(devices), math.prod(size for size in sizes if size != -1))
    sizes = [rest if size == -1 else size for size in sizes]
    if left or math.prod(sizes) != len(devices):
        remedy = "the product of the others must divide it" if "=-1" in shape else "set one of them to -1 for the rest"
        raise InputError(
            f"mesh {shape} does not fit {len(devices)} device{'s' * (len(devices) > 1)}: the sizes must multiply to "
            f"their number; {remedy}"
        )
    return _lay_out(sizes, devices)


def one_device_mesh() -> Mesh:
    """A mesh over this process's first device, for what is too small to divide."""
    return make_mesh(MeshConfig(data=1), devices=jax.local_devices()[:1])


def _lay_out(sizes: list[int], devices: list[Any]) -> Mesh:
    """Neighbours in the mesh are near each other; of several TPU slices, each has its part of `data`."""
    axis_types = (AxisType.Auto,) * len(AXES)
    n_slices = len({getattr(device, "slice_index", 0) for device in devices}) if devices[0].platform == "tpu" else 1
    if n_slices == 1:
        return jax.make_mesh(tuple(sizes), AXES, axis_types=axis_types, devices=devices)
    n_data, *rest = sizes
    if n_data % n_slices:
        raise InputError(
            f"mesh data={n_data} does not divide over {n_slices} slices, which only the data-centre network joins; use "
            f"a multiple of {n_slices} for data, and fsdp and tensor inside a slice"
        )
    near, far = (n_data // n_slices, *rest), (n_slices, *(1 for _ in rest))
    return Mesh(mesh_utils.create_hybrid_device_mesh(near, far, devices), AXES, axis_types=axis_types)


def check_mesh(
    mesh: Mesh,
    *,
    batch_size: int,
    n_head: int | None = None,
    n_embd: int | None = None,
    lstm_units: int | None = None,
    accumulation_steps: int = 1,
    shard_optimizer: bool | None = None,
) -> None:
    """Refuses sizes that do not divide, before anything is compiled.

    Everything else divides then: columns of the MLP are a multiple of `n_head`, and so are rows of the token table (see
    `GPT1Config.padded_rows`).

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
        raise InputError(
            f"mesh tensor={mesh.shape['tensor']} does not divide n_head={n_head}; use one of {_divisors(n_head)}"
        )
    if lstm_units is not None and mesh.shape["tensor"] > 1:
        raise InputError(
            f"mesh tensor={mesh.shape['tensor']}: an LSTM (trunk='lstm') has no heads to share out; use tensor=1, with "
            "data or fsdp for the devices"
        )
    for name, width in (("n_embd", n_embd), ("lstm_units", lstm_units)):
        if width is not None and width % mesh.shape["fsdp"]:
            raise InputError(
                f"mesh fsdp={mesh.shape['fsdp']} does not divide {name}={width}; use one of {_divisors(width)}"
            )
        if width is not None and shard_optimizer and width % n_rows:
            raise InputError(
                f"mesh shard_optimizer=True: data={mesh.shape['data']} x fsdp={mesh.shape['fsdp']} = {n_rows} does not "
                f"divide {name}={width}; use a product among {_divisors(width)}, or shard_optimizer=False"
            )


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def spec(*names: str | None, without: Collection[str] = ()) -> PartitionSpec:
    """The partition of an array whose axes have these logical names, over all axes of the mesh but those `without`."""

    def axes(name: str | None) -> Any:
        found = RULES.get(name) if name else None
        if not without or found is None:
            return found
        left = tuple(axis for axis in ((found,) if isinstance(found, str) else found) if axis not in without)
        return left or None

    return PartitionSpec(*map(axes, names))


def constrain(x: Array, *names: str | None) -> Array:
    """Lays an activation out by the logical names of its axes; does nothing without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, spec(*names, without=mesh.manual_axes))


def summed_over_data(gradients: Callable[..., Any], dtype: str = "float32") -> Callable[..., Any]:
    """`gradients(params, batch, rows, *rest)`, a sum over rows, such that it is summed over `data` once, at the end.

    Each part of the batch is worked off where it lies, as on a mesh without that axis: left to itself, the compiler
    reduces every use of a parameter and every micro-batch by itself, among them the tied table, the largest, twice.
    Gradients of matrices travel in `dtype`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["data"] == 1:
        return gradients

    def local(params: Any, batch: Any, rows: Array, *rest: Any) -> Any:
        return jax.tree.map(lambda x: x[None], gradients(params, batch, rows, *rest))

    def total(parts: Array, is_matrix: bool) -> Array:
        wire = parts.astype(dtype) if is_matrix else parts
        return jax.lax.reduce(wire, wire.dtype.type(0), jax.lax.add, (0,)).astype(parts.dtype)

    def over_data(params: Any, batch: Any, rows: Array, *rest: Any) -> Any:
        whole, by_row = PartitionSpec(), PartitionSpec("data")
        specs = (whole, by_row, by_row, *[whole] * len(rest))
        # Not psum: XLA's CPU compiler crashes on one in bfloat16 while other axes are left to it.
        run = jax.shard_map(local, in_specs=specs, out_specs=by_row, axis_names={"data"}, check_vma=False)
        parts = run(params, batch, rows, *rest)
        return jax.tree.map(total, parts, are_matrices(parts))

    return over_data


def look_up(table: Array, ids: Array) -> Array:
    """`table[ids]` of a table [R, D] whose rows lie over `tensor`: ids [B, L] -> [B, L, D].

    Every device looks up what it has, and the sum over `tensor` brings it together. The compiler on its own may copy
    the whole table, or in the backward pass the gradients of the whole batch, to every device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    free = set(mesh.axis_names) - set(mesh.manual_axes)
    if all(mesh.shape[axis] == 1 for axis in free):  # also where there is no mesh
        return table[ids]
    batch = spec("batch", without=mesh.manual_axes)
    if ids.shape[0] % math.prod(mesh.shape[axis] for axis in jax.tree.leaves(tuple(batch))):
        return table[ids]  # one row, to initialise
    if table.shape[0] % mesh.shape["tensor"]:
        return table[ids]  # with the positions behind the vocabulary, see `GPT1Config.softmax_over_positions`

    def local(table: Array, ids: Array) -> Array:
        ids = ids - jax.lax.axis_index("tensor") * table.shape[0]
        here = (ids >= 0) & (ids < table.shape[0])
        found = jnp.where(here[..., None], table[jnp.where(here, ids, 0)], 0)
        return jax.lax.psum(found, "tensor")

    run = jax.shard_map(local, in_specs=(spec("vocab", None), batch), out_specs=batch, axis_names=free, check_vma=False)
    return run(table, ids)


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


def place(tree: Any, shardings: Any) -> Any:
    """Arrays of the host, the same in all processes, to where they live.

    `jax.device_put` compares them between several processes first, for which every device gets all copies of each.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def put(x: Any, sharding: NamedSharding) -> Array:
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(put, tree, shardings)


def computes_side_by_side(mesh: Mesh) -> bool:
    """Whether calls that are dispatched together run at once, with the memory of all, as they do on a CPU."""
    return mesh.devices.flat[0].platform == "cpu"


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch over `data` and `fsdp`."""
    return NamedSharding(mesh, spec("batch"))


def row_blocks(mesh: Mesh) -> dict[str, Any]:
    """Which rows of a batch this process needs, as `host_index` and `host_count` of data/hosts.py.

    They follow from the mesh: where its axes do not keep to the processes, one may need rows that are not next to each
    other, and several the same ones.
    """
    n_blocks = mesh.shape["data"] * mesh.shape["fsdp"]
    parts = batch_sharding(mesh).addressable_devices_indices_map((n_blocks,)).values()
    return {
        "host_index": tuple(sorted({part[0].start or 0 for part in parts if part is not None})),
        "host_count": n_blocks,
    }


def to_global(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, Array]:
    """The rows of one host, those of its `row_blocks`, become part of the global, sharded batch."""
    sharding = batch_sharding(mesh)
    return {k: jax.make_array_from_process_local_data(sharding, v) for k, v in batch.items()}
