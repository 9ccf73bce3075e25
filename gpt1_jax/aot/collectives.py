"""Every collective of a compiled module: its kind, the mesh axes it goes over, its bytes, a bound on its time."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from gpt1_jax.aot.hlo import Instruction, Module, executed, shape_bytes

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
SEND = "send"
"""What the TPU's compiler makes of a collective between slices, beside those inside them."""

Groups = frozenset[frozenset[int]]

_BY_AXES = (
    r"replica_groups=mesh\[(?P<mesh>(?:'\w+'=\d+,?)+)\]"
    r"(?:, device_ids=\(\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?\))?"
    r" \{(?P<axes>(?:'\w+',?)+)\}"
)
"""A mesh of the compiler's own, whose devices may be in another order, and the axes of it that a group goes along."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """Equal collectives of a run.

    Attributes:
      kind: one of `KINDS`, or `SEND` over the data-centre network.
      axis: the mesh axes it goes over, joined with "+"; "part of" the smallest ones that its groups lie in.
      group_size: devices n of a group.
      bytes: data of one of them, in bytes of a device: what is reduced, scattered or sent, or what a gather ends with.
      count: runs.
    """

    kind: str
    axis: str
    group_size: int
    bytes: float
    count: int = 1

    @property
    def sent(self) -> float:
        """Bytes that a device cannot but send for all of them: bytes x 2(n - 1)/n of a reduction of all to all, half of
        that of a gather, a scatter or an exchange.
        """
        n = self.group_size
        part = {"all-reduce": 2 * (n - 1) / n, "collective-permute": 1.0, SEND: 1.0}.get(self.kind, (n - 1) / n)
        return self.count * self.bytes * part

    def seconds(self, bandwidth: float) -> float:
        """The least time that it takes where a device sends `bandwidth` bytes/s; nothing runs beside it."""
        return self.sent / bandwidth


def find_collectives(module: Module, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """All collectives of a run, equal ones together, the largest sum of bytes first.

    Args:
      module: compiled for the mesh.
      mesh_shape: its axes and sizes, in order.
    """
    names = _axis_names(mesh_shape)
    n_devices = int(np.prod(list(mesh_shape.values())))
    found = collections.Counter[tuple[str, str, int, float]]()
    for run in executed(module):
        instruction = run.instruction
        kind, beside = instruction.opcode.removesuffix("-start"), module.computations[run.computation]
        if kind == SEND:
            found[SEND, "slices", 2, shape_bytes(beside[instruction.operands[0]].shape)] += run.times
        if kind not in KINDS or _is_continued(module, run.computation):
            continue
        groups = _groups(instruction, n_devices)
        size = max(map(len, groups))
        if size == 1:
            continue
        if run.computation.startswith("all-reduce-scatter"):  # the TPU's fusion of a reduction with the slice after it
            kind = "reduce-scatter"
        data = sum(shape_bytes(beside[name].shape) for name in instruction.operands if name in beside)
        found[kind, _axis(kind, groups, names), size, data * (size if kind == "all-gather" else 1)] += run.times
    listed = [Collective(kind, axis, size, data, count) for (kind, axis, size, data), count in found.items()]
    return sorted(listed, key=lambda c: -c.bytes * c.count)


def _is_continued(module: Module, computation: str) -> bool:
    """Whether the collective of a computation was begun in another: on the TPU its name is repeated in every fusion
    that it runs beside, and in the one that ends it.
    """
    if computation.startswith("async_collective_fusion"):
        return True
    return any(i.target == "AsyncCollectiveDone" for i in module.computations[computation].values())


def _groups(instruction: Instruction, n_devices: int) -> Groups:
    """The devices that work together, by their places in the mesh; for a permutation the pairs."""
    text = instruction.attributes
    if match := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}", text):
        groups = [[int(i) for i in group.split(",") if i] for group in re.findall(r"\{([\d,]*)\}", match[1])]
    elif match := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, dims = ([int(i) for i in match[k].split(",")] for k in (1, 2))
        devices = np.arange(np.prod(dims)).reshape(dims)
        if match[3]:
            devices = devices.transpose([int(i) for i in match[3].split(",")])
        groups = devices.reshape(shape[0], -1).tolist()
    elif match := re.search(_BY_AXES, text):
        sizes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", match["mesh"])}
        dims = [int(i) for i in match["dims"].split(",")] if match["dims"] else [n_devices]
        places = np.arange(n_devices).reshape(dims)
        if match["order"]:
            places = places.transpose([int(i) for i in match["order"].split(",")])
        return _along(sizes, re.findall(r"'(\w+)'", match["axes"]), places)
    elif match := re.search(r"(?:replica_groups|source_target_pairs)=(?!\{\}).{,80}", text):
        raise ValueError(f"the compiler writes groups of devices in a form that is not known here: {match[0]}")
    else:
        groups = [list(range(n_devices))]
    return frozenset(frozenset(group) for group in groups)


def _along(mesh_shape: Mapping[str, int], axes: Sequence[str], devices: np.ndarray) -> Groups:
    """The groups along some axes of a mesh of these devices."""
    devices = devices.reshape(list(mesh_shape.values()))
    moved = np.moveaxis(devices, [list(mesh_shape).index(axis) for axis in axes], range(-len(axes), 0))
    size = int(np.prod([mesh_shape[axis] for axis in axes]))
    return frozenset(frozenset(group) for group in moved.reshape(-1, size).tolist())


def _axis_names(mesh_shape: Mapping[str, int]) -> dict[Groups, str]:
    """The groups of devices along every set of mesh axes, small sets first."""
    axes = [axis for axis, size in mesh_shape.items() if size > 1]
    devices = np.arange(np.prod(list(mesh_shape.values())))
    names: dict[Groups, str] = {}
    for n in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, n):
            names.setdefault(_along(mesh_shape, chosen, devices), "+".join(chosen))
    return names


def _axis(kind: str, groups: Groups, names: Mapping[Groups, str]) -> str:
    within = next((name for whole, name in names.items() if _inside(groups, whole)), "no axis")
    return within if kind == "collective-permute" or groups in names else f"part of {within}"


def _inside(parts: Groups, groups: Groups) -> bool:
    return all(any(part <= group for group in groups) for part in parts)
