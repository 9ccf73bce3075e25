"""Who the processes of a run are: told by the environment of this one. Starts nothing, and needs no JAX.

| where | what is read |
|---|---|
| anywhere | JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES, JAX_PROCESS_ID, JAX_LOCAL_DEVICE_IDS |
| SLURM | SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_STEP_NUM_TASKS, SLURM_PROCID, SLURM_LOCALID: what `srun` sets |
| TPU pod | TPU_PROCESS_ADDRESSES, TPU_WORKER_HOSTNAMES, MEGASCALE_NUM_SLICES; else the metadata server |

The first that tells of several processes is taken; a program that is started alone has none.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from gpt1_jax.errors import InputError

_METADATA = "http://{host}/computeMetadata/v1/instance/attributes/worker-network-endpoints"
_PORTS = range(61440, 65536)  # a job takes the one that its number chooses


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that share a run, and which of them this one is.

    Attributes:
      source: who says so, for messages.
      num_processes: how many there are; None on a TPU pod, where JAX finds it, and the next two, out.
      process_id: the number of this one, from 0.
      coordinator: "host:port" at which process 0 waits for the others.
      local_device_ids: which of the GPUs that it sees this process takes; None all.
      on_other_machine: that process 0 is surely not on this machine.
    """

    source: str
    num_processes: int | None = None
    process_id: int | None = None
    coordinator: str | None = None
    local_device_ids: tuple[int, ...] | None = None
    on_other_machine: bool = False

    def __post_init__(self) -> None:
        """Checks the numbers and the address."""
        if self.num_processes is None or self.process_id is None or self.coordinator is None:
            return
        if self.num_processes < 1:
            raise InputError(f"{self.source}: {self.num_processes} processes; there is at least this one")
        if not 0 <= self.process_id < self.num_processes:
            raise InputError(
                f"{self.source}: process {self.process_id} of {self.num_processes}; the numbers are from 0 to "
                f"{self.num_processes - 1}"
            )
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise InputError(
                f"{self.source}: {self.coordinator!r} is no address of a coordinator; give host:port of process 0, "
                "such as 10.0.0.1:1234, the same to all"
            )


def find_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """What the environment tells; None for a process that is alone.

    Raises:
      InputError: it tells a part of what is needed, or what cannot be.
    """
    return _from_variables(environ) or _from_slurm(environ) or _from_tpu(environ)


def _from_variables(environ: Mapping[str, str]) -> Cluster | None:
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = [name for name in names if environ.get(name)]
    if not {"JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} & {*given}:
        return None  # the address alone may be for SLURM's processes
    if missing := [name for name in names if name not in given]:
        raise InputError(f"{' and '.join(given)} without {' and '.join(missing)}: several processes need all three")
    n = _number(environ, "JAX_NUM_PROCESSES")
    if n == 1:
        return None
    ids = environ.get("JAX_LOCAL_DEVICE_IDS")
    return Cluster(
        "JAX_NUM_PROCESSES",
        n,
        _number(environ, "JAX_PROCESS_ID"),
        environ["JAX_COORDINATOR_ADDRESS"],
        _device_ids(ids) if ids else None,
    )


def _from_slurm(environ: Mapping[str, str]) -> Cluster | None:
    # Only `srun` starts several: in a batch script, or a shell within a job, SLURM_NTASKS is of what is still to come.
    if not all(environ.get(name) for name in ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS")):
        return None
    n = _number(environ, "SLURM_STEP_NUM_TASKS")
    if n == 1:
        return None
    job = _number(environ, "SLURM_JOB_ID")
    port = environ.get("JAX_COORDINATOR_PORT") or _PORTS[job % len(_PORTS)]
    node = _number(environ, "SLURM_NODEID")
    return Cluster(
        "SLURM",
        n,
        _number(environ, "SLURM_PROCID"),
        environ.get("JAX_COORDINATOR_ADDRESS") or f"{_first_node(environ['SLURM_STEP_NODELIST'])}:{port}",
        _slurm_devices(environ, node),
        on_other_machine=node > 0,
    )


def _slurm_devices(environ: Mapping[str, str], node: int) -> tuple[int, ...] | None:
    """The GPUs of this task: all of the node for its only one, an equal part for one of several.

    A part is taken only where SLURM has not done so already (`--gpus-per-task`, `--gpu-bind`): then a task sees fewer
    GPUs than the node has for the job, and all that it sees are its own.
    """
    if ids := environ.get("JAX_LOCAL_DEVICE_IDS"):
        return _device_ids(ids)
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    visible = [*Path("/dev").glob("nvidia[0-9]*")] if listed is None else [i for i in listed.split(",") if i.strip()]
    tasks = _tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))[node]
    on_node = int(environ.get("SLURM_GPUS_ON_NODE") or len(visible))
    if tasks == 1 or len(visible) < max(2, on_node):
        return None
    each, rest = divmod(len(visible), tasks)
    if rest:
        raise InputError(
            f"SLURM started {tasks} tasks on this node, which share {len(visible)} GPUs; start one task for each GPU "
            "(--ntasks-per-node), or one for all (--ntasks-per-node=1)"
        )
    first = _number(environ, "SLURM_LOCALID") * each
    return tuple(range(first, first + each))


def _first_node(nodes: str) -> str:
    """The first of a list such as node[003-007,12],other."""
    prefix, bracket, rest = nodes.partition("[")
    if "," in prefix or not bracket:
        return nodes.split(",")[0]
    return prefix + re.split(r"[-,\]]", rest)[0]


def _tasks_per_node(text: str) -> list[int]:
    """SLURM's 2(x3),1 as [2, 2, 2, 1]."""
    counts = []
    for part in text.split(","):
        number, _, times = part.partition("(x")
        counts += [int(number)] * int(times.rstrip(")") or 1)
    return counts


def _from_tpu(environ: Mapping[str, str]) -> Cluster | None:
    if "tpu" not in (environ.get("JAX_PLATFORMS") or "tpu").split(","):
        return None
    slices = int(environ.get("MEGASCALE_NUM_SLICES") or 1)
    workers = environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES")
    if not workers and slices == 1:
        workers = _tpu_workers(environ)
    return Cluster("the TPU pod") if slices * len((workers or "").split(",")) > 1 else None


def _tpu_workers(environ: Mapping[str, str]) -> str:
    """The machines of a TPU VM's slice, asked for only where there are chips; "" where nobody answers."""
    chips = [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]
    if not chips or environ.get("TPU_SKIP_MDS_QUERY") or importlib.util.find_spec("libtpu") is None:
        return ""
    host = environ.get("GCE_METADATA_IP", "metadata.google.internal")
    request = urllib.request.Request(_METADATA.format(host=host), headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.read().decode()
    except OSError:
        return ""


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    if not value.isdecimal():
        raise InputError(f"{name}={value!r} is not a number from 0 on")
    return int(value)


def _device_ids(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise InputError(f"JAX_LOCAL_DEVICE_IDS={text!r}: give numbers of this process's GPUs, such as 0,1")
    return tuple(map(int, text.split(",")))
