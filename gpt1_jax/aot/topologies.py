"""Names of machines, and the devices that a compiler sees for them: `v5e:2x4`, `2xv5e:16x16`, `cuda:h100:8`.

TPU: a chip and the shape of the slice in chips; in front of it the number of slices, which the data-centre network
joins. NVIDIA: a card and how many of them, eight to a host.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.experimental.topologies import get_topology_desc

from gpt1_jax.aot.chips import CHIPS, Chip
from gpt1_jax.aot.gpu_targets import target_description
from gpt1_jax.errors import InputError

GPUS_PER_HOST = 8
EXAMPLES = (
    "v5e:2x4 (v5e-8), v5e:16x16 (v5e-256), v5p:2x2x1 (v5p-8), v6e:2x4 (v6e-8), v4:2x2x2 (v4-16), 2xv5e:16x16 "
    "(two slices), cuda:h100:8"
)


@dataclasses.dataclass(frozen=True)
class Topology:
    """A machine of equal chips.

    Attributes:
      name: as it was given.
      chip: each of them.
      shape: chips along the axes of a slice's interconnect; of GPUs (hosts, cards a host).
      n_slices: slices that only the data-centre network joins.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    n_slices: int = 1

    @property
    def n_chips(self) -> int:
        """Chips of all slices."""
        return self.n_slices * math.prod(self.shape)

    @property
    def chips_per_network(self) -> int:
        """Chips that fast links join: a slice, or the cards of a host."""
        return self.shape[-1] if self.chip.platform == "cuda" else math.prod(self.shape)

    @property
    def collective_bandwidth(self) -> float:
        """Bytes/s that every chip can send to others of its slice or host."""
        return self.chip.link_bandwidth * self.chip.links(self.shape)


def parse_topology(name: str) -> Topology:
    """The machine of a name.

    Raises:
      InputError: with the chips there are, and examples.
    """
    match = re.fullmatch(r"(?:(\d+)x)?(v\w+):(\d+(?:x\d+){1,2})", name)
    if match and match[2] in CHIPS:
        chip = CHIPS[match[2]]
        shape = tuple(int(size) for size in match[3].split("x"))
        n_axes = 3 if chip.name in ("v4", "v5p") else 2
        if len(shape) != n_axes:
            example = "x".join("2" * n_axes)
            raise InputError(
                f"topology={name!r}: {chip.name} has {n_axes} axes; use {chip.name}:{example} or a larger one"
            )
        topology = Topology(name, chip, shape, int(match[1] or 1))
    elif (match := re.fullmatch(r"cuda:(\w+):(\d+)", name)) and match[1] in CHIPS:
        chip, n = CHIPS[match[1]], int(match[2])
        if n > GPUS_PER_HOST and n % GPUS_PER_HOST:
            raise InputError(f"topology={name!r}: more than {GPUS_PER_HOST} cards are a multiple of {GPUS_PER_HOST}")
        topology = Topology(name, chip, (max(1, n // GPUS_PER_HOST), min(n, GPUS_PER_HOST)))
    else:
        tpus = [chip for chip in CHIPS if CHIPS[chip].platform == "tpu"]
        gpus = [f"cuda:{chip}" for chip in CHIPS if CHIPS[chip].platform == "cuda"]
        raise InputError(f"topology={name!r} is unknown; chips: {', '.join(tpus + gpus)}; such as {EXAMPLES}")
    if topology.n_chips < 1:
        raise InputError(f"topology={name!r} has no chip; every size must be at least 1")
    return topology


def compile_only() -> None:
    """Keeps JAX on the CPU and the TPU compiler from looking for its chips; call it before JAX starts a backend."""
    jax.config.update("jax_platforms", "cpu")
    os.environ.update(
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v5litepod-8",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_WORKER_ID="0",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # a compiler needs no chip for itself, and takes none from anybody
        TPU_MIN_LOG_LEVEL="3",
        TPU_STDERR_LOG_LEVEL="3",
    )


def topology_devices(topology: Topology) -> list[Any]:
    """The devices to compile for: they take shardings and programs, no data.

    Raises:
      InputError: the compiler is not installed, or has no such machine.
    """
    if topology.chip.platform == "cuda":
        return _cuda_devices(topology)
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            f"topology={topology.name!r}: the TPU compiler is missing; pip install --no-deps '{_libtpu()}' (no TPU is "
            "needed)"
        )
    options: dict[str, Any] = {}
    if topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # one device a chip, as JAX has it on v4
    if topology.n_slices > 1:
        options["num_slices"] = topology.n_slices
    if any(size % bound for size, bound in zip(topology.shape, (2, 2), strict=False)):
        options["chips_per_host_bounds"] = (1, 1, 1)
    shape = "x".join(map(str, topology.shape))
    try:
        return get_topology_desc(platform="tpu", topology_name=f"{topology.chip.name}:{shape}", **options).devices
    except jax.errors.JaxRuntimeError as error:
        said = str(error).strip().splitlines()[0]
        raise InputError(
            f"topology={topology.name!r}: the TPU compiler has no such machine ({said}); such as {EXAMPLES}"
        ) from None


def _libtpu() -> str:
    """What this version of JAX asks for."""
    wanted = importlib.metadata.requires("jax") or []
    return next((name.split(";")[0].strip() for name in wanted if name.startswith("libtpu")), "libtpu")


def _cuda_devices(topology: Topology) -> list[Any]:
    found = [name for name in ("jax_cuda13_plugin", "jax_cuda12_plugin") if importlib.util.find_spec(name)]
    if not found:
        version = jax.__version__
        raise InputError(
            f"topology={topology.name!r}: the compiler for NVIDIA cards is missing; pip install --no-deps "
            f"jax-cuda13-plugin=={version} jax-cuda13-pjrt=={version} (no card is needed)"
        )
    hosts, cards = topology.shape
    return get_topology_desc(
        "", platform="cuda", target_config=target_description(topology.chip), topology=f"1x{hosts}x{cards}"
    ).devices
