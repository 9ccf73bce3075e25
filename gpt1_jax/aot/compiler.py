"""Compiles a program for a topology and measures what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from gpt1_jax.aot import hlo
from gpt1_jax.aot.collectives import SEND, Collective, find_collectives
from gpt1_jax.aot.kernel_floor import kernel_floor_ms
from gpt1_jax.aot.programs import Program, make_program
from gpt1_jax.aot.topologies import Topology, topology_devices
from gpt1_jax.errors import LESS_MEMORY, InputError
from gpt1_jax.model import count_parameters
from gpt1_jax.version import __version__

_DERIVED = ("fits", "estimate_with_kernels_ms", "mfu_by_estimate", "tokens_per_second_by_estimate")


@dataclasses.dataclass(frozen=True)
class Report:
    """What a compilation says; also the fields of the JSON file, with the properties of `figures` beside them.

    Times are of one update in milliseconds, bytes and FLOPs of one chip; nothing was executed.

    Attributes:
      topology: its name.
      chip: the chip's name.
      n_chips: how many.
      mesh: axis -> size.
      shard_optimizer: the optimizer's state and the parameters lie over `data`, too.
      program: "pretrain" or "finetune".
      batch: rows of an update, over all chips.
      n_streams: sequences of a row: 1 but for tasks that compare several.
      n_ctx: tokens of a sequence.
      dtype: of the computation.
      parameters: trainable ones, padding not counted.
      embd_pdrop: dropout rate of the embeddings; the other rates likewise.
      attention: the kernel that "auto" or the config chose; "none" of an LSTM.
      accumulation_steps: micro-batches.
      remat: what the backward pass recomputes.
      scan_layers: one block was compiled for all layers.
      loss_chunk: positions whose logits exist at a time; 0 all.
      compile_seconds: of the compiler alone.
      argument_bytes: state and batch.
      temp_bytes: temporaries.
      peak_bytes: most that is held at once.
      hbm_bytes: what the chip has.
      estimated_step_ms: the compiler's cycles over the clock, collectives and kernels not included; None where the
        compiler estimates nothing.
      estimated_ms_by_part: module of the network, "loss" or "update" -> its share of that, see `hlo.cycles_by_part`.
      kernel_floor_ms: bound on the kernels' time, see `kernel_floor`; 0 without kernels, None where there is no bound.
      collective_floor_ms: bytes that have to be sent over the links' bandwidth, one after another; None where a
        collective crosses networks whose bandwidth is not in the table.
      without_estimate: kind of instruction -> how many there are that `estimated_step_ms` leaves out.
      loops_of_unknown_length: loops that it counts as one trip.
      flops: of the matrix products, counted by hand.
      compiled_flops: of the matrix products in the compiled program, kernels apart; more where some are made twice.
      flops_floor_ms: `flops` over the chip's peak.
      bytes_floor_ms: state and batch read once and the state written once, over the memory's bandwidth.
      collectives: each with its count, bytes, group and axis.
      versions: of the packages that decide the figures.
      date: of the compilation.
    """

    topology: str
    chip: str
    n_chips: int
    mesh: dict[str, int]
    shard_optimizer: bool
    program: str
    batch: int
    n_streams: int
    n_ctx: int
    dtype: str
    parameters: int
    embd_pdrop: float
    attn_pdrop: float
    resid_pdrop: float
    clf_pdrop: float
    attention: str
    accumulation_steps: int
    remat: str
    scan_layers: bool
    loss_chunk: int
    compile_seconds: float
    argument_bytes: int
    temp_bytes: int
    peak_bytes: int
    hbm_bytes: float
    estimated_step_ms: float | None
    estimated_ms_by_part: dict[str, float]
    kernel_floor_ms: float | None
    collective_floor_ms: float | None
    without_estimate: dict[str, int]
    loops_of_unknown_length: int
    flops: float
    compiled_flops: float
    flops_floor_ms: float
    bytes_floor_ms: float
    collectives: tuple[dict[str, Any], ...]
    versions: dict[str, str]
    date: str

    @property
    def fits(self) -> bool:
        """Whether the chip has that memory. What a TPU has not, its compiler refuses."""
        return self.peak_bytes <= self.hbm_bytes

    @property
    def estimate_with_kernels_ms(self) -> float | None:
        """The compiler's estimate and the kernels' floor, where there are both."""
        estimate, kernels = self.estimated_step_ms, self.kernel_floor_ms
        return None if estimate is None or kernels is None else estimate + kernels

    @property
    def mfu_by_estimate(self) -> float | None:
        """Part of the chip's bfloat16 peak, if an update took `estimate_with_kernels_ms`."""
        return self.flops_floor_ms / self.estimate_with_kernels_ms if self.estimate_with_kernels_ms else None

    @property
    def tokens_per_second_by_estimate(self) -> float | None:
        """Tokens/s of all chips, likewise."""
        tokens = self.batch * self.n_streams * self.n_ctx
        return tokens / self.estimate_with_kernels_ms * 1e3 if self.estimate_with_kernels_ms else None

    def figures(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in _DERIVED}


def compile_for(
    config: Any, topology: Topology, *, length: int | None = None, devices: Sequence[Any] | None = None
) -> tuple[Report, str]:
    """Compiles the step of a config for a topology.

    Args:
      config: see `programs.make_program`.
      topology: see `topologies.parse_topology`.
      length: as there.
      devices: to compile for in place of the topology's, as many; its chip still gives the bounds.

    Returns:
      the report, and the text of the compiled program.

    Raises:
      InputError: the config is refused, its sizes do not divide, the program does not fit the chips' memory, or the
        compiler is not installed.
    """
    devices = topology_devices(topology) if devices is None else devices
    program = make_program(config, devices, length=length)
    with jax.set_mesh(program.mesh), _memory_refused(topology, program):
        lowered = program.step.lower(*program.arguments)
        start = time.monotonic()
        compiled = lowered.compile()
        seconds = time.monotonic() - start
    text = compiled.as_text() or ""
    return describe(program, topology, text, compiled.memory_analysis(), seconds), text


def describe(program: Program, topology: Topology, text: str, memory: Any, seconds: float) -> Report:
    """The report of a program that the compiler made `text` of, in so many seconds; `memory` is its memory analysis."""
    module = hlo.parse_module(text)
    chip, model, mesh = topology.chip, program.model.config, dict(program.mesh.shape)
    cycles, without = hlo.estimated_cycles(module)
    collectives = find_collectives(module, mesh)
    floors = [_floor_ms(one, topology) for one in collectives]
    known_floors = [floor for floor in floors if floor is not None]
    with jax.set_mesh(program.mesh):
        attention = model.attention_kernel(program.batch_shape[-1])
    flops = program.flops / topology.n_chips
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return Report(
        topology=topology.name,
        chip=chip.name,
        n_chips=topology.n_chips,
        mesh=mesh,
        shard_optimizer=program.shard_optimizer,
        program="pretrain" if program.model.readout is None else "finetune",
        batch=program.batch_shape[0],
        n_streams=program.batch_shape[1] if len(program.batch_shape) == 3 else 1,
        n_ctx=program.batch_shape[-1],
        dtype=model.dtype,
        parameters=count_parameters(model, program.model.readout),
        embd_pdrop=model.embd_pdrop,
        attn_pdrop=model.attn_pdrop,
        resid_pdrop=model.resid_pdrop,
        clf_pdrop=model.clf_pdrop,
        attention=attention,
        accumulation_steps=program.accumulation_steps,
        remat=model.remat,
        scan_layers=model.scan_layers,
        loss_chunk=program.chunk,
        compile_seconds=round(seconds, 1),
        argument_bytes=memory.argument_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        peak_bytes=memory.peak_memory_in_bytes,
        hbm_bytes=chip.hbm_bytes,
        estimated_step_ms=cycles / chip.clock * 1e3 if chip.clock and cycles else None,
        estimated_ms_by_part={
            part: n / chip.clock * 1e3 for part, n in (hlo.cycles_by_part(module) if chip.clock else {}).items()
        },
        kernel_floor_ms=kernel_floor_ms(module, chip),
        collective_floor_ms=None if len(known_floors) < len(floors) else sum(known_floors),
        without_estimate=without,
        loops_of_unknown_length=hlo.unknown_loops(module),
        flops=flops,
        compiled_flops=hlo.matmul_flops(module),
        flops_floor_ms=flops / chip.peak_flops * 1e3,
        bytes_floor_ms=moved / chip.hbm_bandwidth * 1e3,
        collectives=tuple(
            dataclasses.asdict(one) | {"floor_ms": floor} for one, floor in zip(collectives, floors, strict=True)
        ),
        versions=_versions(chip.platform),
        date=datetime.date.today().isoformat(),
    )


@contextlib.contextmanager
def _memory_refused(topology: Topology, program: Program) -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = re.search(r"[Uu]sed \S+ of \S+|\(\S+\) exceeds available \w+ \(\S+\)", str(error))
        where = dict(program.mesh.shape)
        raise does_not_fit(topology.name, program.batch_shape[0], where, said[0].strip() if said else "") from None


def does_not_fit(topology: str, batch: int, mesh: Mapping[str, int], said: str = "") -> InputError:
    """The error for a step that takes more than the memory of a chip; `said` is what it takes, if that is known."""
    where = ", ".join(f"{axis}={size}" for axis, size in mesh.items())
    return InputError(
        f"{topology}: batch {batch} on mesh {where} does not fit the memory of a chip{f' ({said})' if said else ''}; "
        f"use more chips, {LESS_MEMORY}"
    )


def _floor_ms(collective: Collective, topology: Topology) -> float | None:
    if collective.kind == SEND or collective.group_size > topology.chips_per_network:
        return None
    return collective.seconds(topology.collective_bandwidth) * 1e3


def _versions(compiler: str) -> dict[str, str]:
    versions = {"gpt1_jax": __version__, "python": platform.python_version()}
    names = {"tpu": ("libtpu",), "cuda": ("jax-cuda13-pjrt", "jax-cuda12-pjrt")}[compiler]
    for name in ("jax", "jaxlib", *names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
