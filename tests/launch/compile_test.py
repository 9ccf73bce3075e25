"""launch/compile.py: what it refuses, and a small step for v5e where the TPU's compiler is at hand."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--config.model.n_layer=1", "--config.model.n_embd=128", "--config.model.n_head=2", "--config.model.n_ctx=64")
TINY = (*SMALL, "--config.model.vocab_size=1000")
LIBTPU = os.environ.get("GPT1_LIBTPU", "")
"""Folder with the TPU's compiler: `pip install --no-deps --target=FOLDER 'libtpu==...'`, as its absence asks for."""


def launch(*arguments):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": LIBTPU}
    command = [sys.executable, "launch/compile.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_bad_input_ends_with_one_line_and_status_2(tmp_path):
    ended = launch("--config=configs/pretrain.py", "--topology=v9:2x4", f"--json={tmp_path}/figures.json")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: topology='v9:2x4' is unknown; chips: v4, v5e, v5p")
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "figures.json").exists()


needs_libtpu = pytest.mark.skipif(
    not LIBTPU and importlib.util.find_spec("libtpu") is None,
    reason="the TPU's compiler is not here: name a folder that has libtpu in GPT1_LIBTPU",
)


@pytest.mark.slow
@needs_libtpu
def test_a_small_step_for_v5e(tmp_path):
    ended = launch(
        "--config=configs/pretrain.py",
        "--topology=v5e:2x4",
        *(*SMALL, "--config.model.vocab_size=1000", "--config.model.dtype=bfloat16"),
        *("--config.mesh.fsdp=2", "--config.mesh.tensor=2", f"--json={tmp_path}/figures.json", f"--hlo={tmp_path}"),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert figures["mesh"] == {"data": 2, "fsdp": 2, "tensor": 2}
    assert figures["fits"]
    assert figures["estimated_step_ms"] > figures["flops_floor_ms"] > 0
    assert figures["loops_of_unknown_length"] == 0
    assert figures["kernel_floor_ms"] == 0
    axes = {c["axis"] for c in figures["collectives"]}
    assert axes >= {"fsdp", "tensor"}
    assert not any(axis.startswith("part of") for axis in axes)
    assert any(c["kind"] == "all-reduce" and "data" in c["axis"] for c in figures["collectives"])
    assert figures["compiled_flops"] == pytest.approx(figures["flops"], rel=0.3)
    assert figures["versions"]["jax"] in ended.stdout
    assert (tmp_path / "v5e-2x4.txt").read_text(encoding="utf-8").startswith("HloModule")


@pytest.mark.slow
@needs_libtpu
def test_two_slices_and_a_table(tmp_path):
    machines = "--topology=2xv5e:2x2,v5p:2x2x1"
    figures = tmp_path / "figures.json"
    ended = launch("--config=configs/finetune.py:race", machines, "--length=32", *TINY, f"--json={figures}")
    assert ended.returncode == 0, ended.stderr
    two, one = json.loads(figures.read_text(encoding="utf-8"))
    assert (two["n_chips"], two["collective_floor_ms"]) == (8, None)
    assert "send" in {c["kind"] for c in two["collectives"]}
    assert (one["n_chips"], one["n_streams"], one["n_ctx"]) == (4, 4, 32)
    assert one["collective_floor_ms"] > 0
    assert len([line for line in ended.stdout.splitlines() if line.startswith(("2xv5e:2x2  ", "v5p:2x2x1 "))]) == 2


@pytest.mark.slow
@needs_libtpu
def test_what_does_not_fit_is_refused_here():
    ended = launch("--config=configs/pretrain.py", "--topology=v5e:2x2", "--config.batch_size=16384", *SMALL)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: v5e:2x2: batch 16384 on mesh data=4, fsdp=1, tensor=1 does not fit")
    assert len(ended.stderr.splitlines()) == 1
