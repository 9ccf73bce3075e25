"""What the environment of a process tells of the others."""

import re

import pytest

from gpt1_jax.clusters import find_cluster
from gpt1_jax.errors import InputError

THREE = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2"}
SLURM = {
    "JAX_PLATFORMS": "cuda",
    "SLURM_JOB_ID": "4096001",
    "SLURM_STEP_NODELIST": "gpu[003-004,7],other",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "SLURM_GPUS_ON_NODE": "8",
}
PER_GPU = {
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        THREE | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
        {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"},
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},  # a batch script
        SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"},  # a shell within a job
        {"TPU_WORKER_HOSTNAMES": "localhost"},
        {"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": "cpu"},
    ],
)
def test_a_program_that_is_started_alone_is_alone(environ):
    assert find_cluster({"JAX_PLATFORMS": "cpu"} | environ) is None


def test_variables():
    cluster = find_cluster(THREE | {"JAX_LOCAL_DEVICE_IDS": "0,1"})
    assert (cluster.num_processes, cluster.process_id, cluster.coordinator) == (4, 2, "10.0.0.1:1234")
    assert cluster.local_device_ids == (0, 1)
    assert find_cluster(THREE).local_device_ids is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"JAX_PROCESS_ID": ""}, "JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES without JAX_PROCESS_ID"),
        ({"JAX_PROCESS_ID": "4"}, "process 4 of 4; the numbers are from 0 to 3"),
        ({"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID='-1' is not a number from 0 on"),
        ({"JAX_NUM_PROCESSES": "0", "JAX_PROCESS_ID": "0"}, "0 processes; there is at least this one"),
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two' is not a number"),
        ({"JAX_COORDINATOR_ADDRESS": "10.0.0.1"}, "'10.0.0.1' is no address"),
        ({"JAX_COORDINATOR_ADDRESS": "a:99999"}, "'a:99999' is no address"),
        ({"JAX_LOCAL_DEVICE_IDS": "0-3"}, "JAX_LOCAL_DEVICE_IDS='0-3'"),
    ],
)
def test_bad_variables(changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        find_cluster(THREE | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),  # one for each node takes all that it sees, not JAX's one
        (PER_GPU, (3,)),
        (PER_GPU | {"CUDA_VISIBLE_DEVICES": "3"}, None),  # --gpus-per-task=1: its own alone, whatever its number
        (PER_GPU | {"CUDA_VISIBLE_DEVICES": "3", "SLURM_GPUS_ON_NODE": ""}, None),
        (PER_GPU | {"SLURM_STEP_TASKS_PER_NODE": "4(x4)"}, (6, 7)),
        (PER_GPU | {"SLURM_STEP_TASKS_PER_NODE": "4(x4)", "CUDA_VISIBLE_DEVICES": "0,1"}, None),
        (PER_GPU | {"JAX_LOCAL_DEVICE_IDS": "5"}, (5,)),
        (PER_GPU | {"SLURM_STEP_TASKS_PER_NODE": "1,8", "SLURM_LOCALID": "2"}, (2,)),
    ],
)
def test_gpus_of_a_slurm_task(changes, expected):
    assert find_cluster(SLURM | changes).local_device_ids == expected


def test_gpus_that_slurm_tasks_cannot_share():
    with pytest.raises(InputError, match="3 tasks on this node, which share 8 GPUs"):
        find_cluster(SLURM | PER_GPU | {"SLURM_STEP_TASKS_PER_NODE": "3,3"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[003-004,7],other", "gpu003"), ("a1", "a1"), ("a1,b[2-3]", "a1"), ("x[12,14]", "x12"), ("x[5]", "x5")],
)
def test_coordinator_of_slurm(nodes, first):
    cluster = find_cluster(SLURM | {"SLURM_STEP_NODELIST": nodes})
    host, port = cluster.coordinator.split(":")
    assert host == first
    assert 1024 < int(port) < 65536
    assert (cluster.num_processes, cluster.process_id, cluster.on_other_machine) == (2, 1, True)
    other = find_cluster(SLURM | {"SLURM_JOB_ID": "4096002"})
    assert other.coordinator.split(":")[1] != port  # two jobs on one node
    given = find_cluster(SLURM | {"JAX_COORDINATOR_ADDRESS": "here:99", "SLURM_STEP_NODELIST": nodes})
    assert given.coordinator == "here:99"


@pytest.mark.parametrize(
    "environ",
    [
        {"TPU_WORKER_HOSTNAMES": "a,b"},
        {"TPU_PROCESS_ADDRESSES": "a:8471,b:8471"},
        {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"},
        {"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": "tpu,cpu"},
    ],
)
def test_tpu_pod(environ):
    cluster = find_cluster(environ)
    assert cluster is not None
    assert cluster.coordinator is None  # JAX finds it
