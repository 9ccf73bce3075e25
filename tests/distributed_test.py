"""What keeps processes from finding each other is named within the time that is given."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from two import logs, two

from gpt1_jax import distributed
from gpt1_jax.clusters import Cluster
from gpt1_jax.errors import InputError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def test_one_process_does_nothing():
    assert not distributed.start(environ={"JAX_PLATFORMS": "cpu"})
    assert not distributed.has_begun()


def test_incomplete_arguments():
    with pytest.raises(InputError, match="give coordinator, num_processes and process_id, or none"):
        distributed.start("localhost:1234", environ={})
    with pytest.raises(InputError, match="local_device_ids goes with them"):
        distributed.start(local_device_ids=(0,), environ={})


def test_coordinator_that_does_not_answer(port):
    with pytest.raises(
        InputError, match=r"process 1 of 2 cannot reach the coordinator at localhost:\d+ \(.*\)\. localhost is .*itself"
    ):
        distributed.start(f"localhost:{port}", 2, 1, timeout=1)


def test_coordinator_that_nobody_knows(port):
    with pytest.raises(InputError, match=rf"no-such-host\.invalid:{port} cannot be found"):
        distributed.start(f"no-such-host.invalid:{port}", 2, 1, timeout=1)


def test_name_that_means_every_machine_itself(port):
    cluster = Cluster("SLURM", 2, 1, f"localhost:{port}", on_other_machine=True)
    with pytest.raises(InputError, match=r"on another machine\. localhost is .*, which every machine calls itself"):
        distributed._check_coordinator(cluster, f"localhost:{port}", 0.0)


def test_port_that_is_taken():
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        with pytest.raises(InputError, match="choose another port"):
            distributed.start(f"localhost:{server.getsockname()[1]}", 2, 0, timeout=1)


def test_process_that_does_not_come(port):
    """The program of process 0 ends, with one line, and not with JAX's abort."""
    code = """
import functools, sys
from gpt1_jax import cli, distributed
distributed.start = functools.partial(distributed.start, timeout=3)
cli.run(lambda: print("ran"), several=True)
"""
    environ = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "0"}
    environ |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    assert "error: JAX_NUM_PROCESSES: not all of the 3 processes have come" in ended.stderr
    assert "within 3 s (process 0 is there)" in ended.stderr
    assert "Traceback" not in ended.stderr
    off = subprocess.run([*command, "--distributed=off"], env=os.environ | environ, capture_output=True, text=True)
    assert off.stdout == "ran\n"
    assert "--distributed" in subprocess.run([*command, "--help"], capture_output=True, text=True).stdout


def test_different_numbers_of_processes(tmp_path):
    """Process 0 knows of two, process 1 of three: both end, and say so."""
    code = """
import functools
from gpt1_jax import cli, distributed
distributed.start = functools.partial(distributed.start, "localhost:PORT", 2 + PROCESS, PROCESS)
cli.run(lambda: print("went on"), several=True)
"""
    with two("-c", code, folder=tmp_path, n_devices=1) as processes:
        ended = [process.wait(timeout=120) for process in processes]
    said = logs(tmp_path)
    assert ended == [2, 2], said
    assert "error: distributed.start: process 1 was told of 3 processes, process 0 of 2; give all the same" in said
    assert "went on" not in said
    assert "Traceback" not in said
