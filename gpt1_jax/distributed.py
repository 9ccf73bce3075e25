"""Several processes that share a run: how they find each other, and how a program of several ends.

`start` is the first thing a program does (`cli.run` calls it), before any array: JAX's backends must not be running.
What can go wrong is said within `timeout` seconds, where JAX would wait, or end the process from C++ without a cause:
a name that is unknown or means this machine itself, a coordinator that does not answer, processes that never came.
Once they run, JAX's coordination service watches them: when one dies, the others end within `heartbeat` seconds, with
the number of the dead one in their logs (at once, where it was process 0, or a collective of theirs breaks). Started
again, the run goes on from its last checkpoint.
"""

from __future__ import annotations

import collections
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging

from gpt1_jax import agreement
from gpt1_jax.clusters import Cluster, find_cluster
from gpt1_jax.errors import InputError

TIMEOUT_S = 300
HEARTBEAT_S = 100
_GRACE_S = 60  # JAX's own limit comes so much later than ours, and ends the process


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: tuple[int, ...] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    timeout: float = TIMEOUT_S,
    heartbeat: int = HEARTBEAT_S,
) -> bool:
    """Makes this process one of those of its cluster; does nothing, not even look at the devices, where it is alone.

    Args:
      coordinator: "host:port" of process 0, where the environment is not to be asked (`clusters.find_cluster`); then
        also the next two.
      num_processes: how many processes there are.
      process_id: the number of this one, from 0.
      local_device_ids: which of the GPUs it sees this process takes; None all.
      environ: what else is asked.
      timeout: seconds within which all processes have to be there.
      heartbeat: seconds of silence after which a process counts as dead.

    Returns:
      whether there are several processes.

    Raises:
      InputError: what was given is incomplete, the coordinator cannot be reached, a process has not come in time, or
        JAX sees other processes or devices than were announced.
      RuntimeError: JAX runs already.
    """
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in (*given, local_device_ids)):
        if None in given:
            raise InputError(
                "distributed.start: give coordinator, num_processes and process_id, or none of them; local_device_ids "
                "goes with them"
            )
        cluster: Cluster | None = Cluster("distributed.start", num_processes, process_id, coordinator, local_device_ids)
    else:
        cluster = find_cluster(environ)
    if cluster is None or cluster.num_processes == 1:
        return False
    if has_begun():
        raise RuntimeError("jax.distributed is initialized already: call gpt1_jax.distributed.start in its place, once")
    end = time.monotonic() + timeout
    if cluster.coordinator:
        _check_coordinator(cluster, cluster.coordinator, end)
    _initialize(cluster, end, timeout, heartbeat)
    _check_devices(cluster)
    return True


def has_begun() -> bool:
    """Whether this is one of several processes by now, even if they have not all met."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this is the process that writes and prints: process 0, or the only one."""
    return jax.process_index() == 0


def leave(status: int, *, together: bool) -> None:
    """Ends this process, one of several, without waiting for threads that may be busy.

    Args:
      status: exit status.
      together: all processes end now, so each waits for the others to come so far. Otherwise the others are left to
        JAX: where this one does not answer any more, they end.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if together:
        jax.distributed.shutdown()
    os._exit(status)


def _check_coordinator(cluster: Cluster, coordinator: str, end: float) -> None:
    """Finds out why the coordinator cannot be reached, while it is still possible to say so."""
    host, _, port = coordinator.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(
            f"{cluster.source}: the coordinator {cluster.coordinator} cannot be found ({error.strerror or error}); "
            "give the name or the address of process 0's machine"
        ) from None
    addresses = sorted({str(address[0]) for *_, address in found})
    here = all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)
    itself = (
        f" {host} is {', '.join(addresses)} here, which every machine calls itself: from another machine it never "
        "answers. Give the name or address that the network knows (`hostname -I` on process 0's machine)."
        if here
        else ""
    )
    if here and cluster.on_other_machine:
        raise InputError(f"{cluster.source}: the coordinator {cluster.coordinator} is on another machine.{itself}")
    if cluster.process_id == 0:
        _check_port(cluster, int(port))
        return
    reason = "it did not answer"
    while (left := end - time.monotonic()) > 0:
        try:
            socket.create_connection((host, int(port)), timeout=min(left, 10)).close()
            return
        except OSError as error:
            reason = str(error.strerror or error)
            time.sleep(min(max(left, 0), 0.5))
    raise InputError(
        f"{cluster.source}: process {cluster.process_id} of {cluster.num_processes} cannot reach the coordinator at "
        f"{cluster.coordinator} ({reason}).{itself} See that process 0 runs, with this address, and that no firewall "
        "closes the port"
    )


def _check_port(cluster: Cluster, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
    except OSError as error:
        raise InputError(
            f"{cluster.source}: process 0 cannot wait at port {port} of {cluster.coordinator} ({error.strerror}); "
            "see that no other process has the number 0, or choose another port, the same for all processes"
        ) from None


def _initialize(cluster: Cluster, end: float, timeout: float, heartbeat: int) -> None:
    """JAX's own start, in a thread, since it can be neither stopped nor caught where a process does not come."""
    given: dict[str, Any] = {}
    if cluster.coordinator:
        given = {
            "coordinator_address": cluster.coordinator,
            "num_processes": cluster.num_processes,
            "process_id": cluster.process_id,
            "local_device_ids": cluster.local_device_ids,
            "cluster_detection_method": "deactivate",  # else JAX gives a SLURM task one GPU, whatever it sees
        }
    errors: list[BaseException] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                **given, initialization_timeout=int(timeout + _GRACE_S), heartbeat_timeout_seconds=heartbeat
            )
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=initialize, name="jax.distributed.initialize", daemon=True)
    thread.start()
    thread.join(max(0.0, end - time.monotonic()))
    if thread.is_alive():
        who = "this process" if cluster.process_id is None else f"process {cluster.process_id}"
        n = "the processes" if cluster.num_processes is None else f"the {cluster.num_processes} processes"
        where = f" at {cluster.coordinator}" if cluster.coordinator else ""
        raise InputError(
            f"{cluster.source}: not all of {n} have come{where} within {timeout:.0f} s ({who} is there). See that each "
            "is started, with a number of its own, the same coordinator and the same number of processes"
        )
    if errors:
        raise errors[0]


def _check_devices(cluster: Cluster) -> None:
    """Prints what JAX sees, and compares it with what was announced."""
    n, mine = jax.process_count(), jax.local_device_count()
    if n == 1 and cluster.num_processes not in (None, n):
        raise InputError(
            f"{cluster.source} says {cluster.num_processes} processes, JAX sees {n} on {jax.default_backend()}: this "
            "backend does not join processes; set JAX_PLATFORMS to the one that is meant"
        )
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1 or len(counts) != n:
        each = ", ".join(f"process {process}: {counts[process]}" for process in range(n))
        raise InputError(
            f"the processes have different numbers of devices ({each}); they share every batch evenly: give each the "
            "same (CUDA_VISIBLE_DEVICES, JAX_LOCAL_DEVICE_IDS or SLURM's --gpus-per-task)"
        )
    agreement.on_all(lambda: _check_announced(cluster, n, mine))
    logging.info(
        "%s: process %d of %d on %s, with %d of %d %s devices",
        *(cluster.source, jax.process_index(), n, socket.gethostname(), mine, jax.device_count()),
        jax.default_backend(),
    )


def _check_announced(cluster: Cluster, n: int, n_devices: int) -> None:
    """What one process alone may have been told wrong."""
    if cluster.num_processes not in (None, n):
        raise InputError(
            f"{cluster.source}: process {jax.process_index()} was told of {cluster.num_processes} processes, process 0 "
            f"of {n}; give all the same number"
        )
    expected = len(cluster.local_device_ids or ()) or n_devices
    if jax.default_backend() == "gpu" and n_devices != expected:
        raise InputError(f"{cluster.source} gives this process {expected} GPUs, JAX sees {n_devices} of them")
