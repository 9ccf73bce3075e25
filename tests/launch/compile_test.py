"""launch/compile.py: what it refuses, and a small step for v5e where the TPU's compiler can be had."""

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import pip_install

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--config.model.n_layer=1", "--config.model.n_embd=128", "--config.model.n_head=2", "--config.model.n_ctx=64")
TINY = (*SMALL, "--config.model.vocab_size=1000")


def launch(*arguments, path=""):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    command = [sys.executable, "launch/compile.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="session")
def for_tpu(tmp_path_factory):
    """`launch` with the TPU's compiler: the one that is installed, in the folder $GPT1_LIBTPU, or else fetched."""
    path = os.environ.get("GPT1_LIBTPU", "")
    if not path and importlib.util.find_spec("libtpu") is None:
        wanted = next(r.split(";")[0] for r in importlib.metadata.requires("jax") if r.startswith("libtpu"))
        path = str(tmp_path_factory.mktemp("libtpu"))
        pip_install(path, "--no-deps", wanted)
    return functools.partial(launch, path=path)


def test_bad_input_ends_with_one_line_and_status_2(tmp_path):
    ended = launch("--config=configs/pretrain.py", "--topology=v9:2x4", f"--json={tmp_path}/figures.json")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: topology='v9:2x4' is unknown; chips: v4, v5e, v5p")
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "figures.json").exists()


@pytest.mark.slow
def test_a_small_step_for_v5e(for_tpu, tmp_path):
    ended = for_tpu(
        "--config=configs/pretrain.py",
        "--topology=v5e:2x4",
        *(*SMALL, "--config.model.vocab_size=1000", "--config.model.dtype=bfloat16"),
        *("--config.mesh.fsdp=2", "--config.mesh.tensor=2", f"--json={tmp_path}/figures.json", f"--hlo={tmp_path}"),
    )
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(r"done in \d\d:\d\d\n", ended.stderr)
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert figures["mesh"] == {"data": 2, "fsdp": 2, "tensor": 2}
    assert figures["fits"]
    assert figures["estimated_step_ms"] > figures["flops_floor_ms"] > 0
    assert figures["loops_of_unknown_length"] == 0
    assert figures["attention"] == "tpu"
    assert 0 < figures["kernel_floor_ms"] < figures["estimated_step_ms"]
    axes = {c["axis"] for c in figures["collectives"]}
    assert axes >= {"fsdp", "tensor"}
    assert not any(axis.startswith("part of") for axis in axes)
    assert any(c["kind"] == "all-reduce" and "data" in c["axis"] for c in figures["collectives"])
    assert figures["compiled_flops"] == pytest.approx(figures["flops"], rel=0.3)
    assert figures["versions"]["jax"] in ended.stdout
    assert (tmp_path / "v5e-2x4.txt").read_text(encoding="utf-8").startswith("HloModule")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_kernel_of_attention(dtype, for_tpu, tmp_path):
    """Two heads to 128 lanes of four blocks of tokens, on all chips that it is meant for."""
    sizes = {"n_layer": 1, "n_embd": 128, "n_head": 2, "vocab_size": 1000, "dtype": dtype}
    ended = for_tpu(
        *("--config=configs/pretrain.py", "--topology=v5e:2x4,v5p:2x2x1,v6e:2x4", f"--json={tmp_path}/figures.json"),
        *(f"--config.model.{name}={value}" for name, value in sizes.items()),
    )
    assert ended.returncode == 0, ended.stderr
    for figures in json.loads((tmp_path / "figures.json").read_text(encoding="utf-8")):
        assert figures["attention"] == "tpu"
        assert figures["kernel_floor_ms"] > 0
        assert figures["without_estimate"]["custom-call tpu_custom_call"] == 2


@pytest.mark.slow
def test_two_slices_and_a_table(for_tpu, tmp_path):
    machines = "--topology=2xv5e:2x2,v5p:2x2x1"
    figures = tmp_path / "figures.json"
    ended = for_tpu("--config=configs/finetune.py:race", machines, "--length=32", *TINY, f"--json={figures}")
    assert ended.returncode == 0, ended.stderr
    two, one = json.loads(figures.read_text(encoding="utf-8"))
    assert (two["n_chips"], two["collective_floor_ms"]) == (8, None)
    assert "send" in {c["kind"] for c in two["collectives"]}
    assert (one["n_chips"], one["n_streams"], one["n_ctx"]) == (4, 4, 32)
    assert one["collective_floor_ms"] > 0
    assert len([line for line in ended.stdout.splitlines() if line.startswith(("2xv5e:2x2  ", "v5p:2x2x1 "))]) == 2


@pytest.mark.slow
def test_what_does_not_fit_is_refused_here(for_tpu):
    ended = for_tpu("--config=configs/pretrain.py", "--topology=v5e:2x2", "--config.batch_size=16384", *SMALL)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: v5e:2x2: batch 16384 on mesh data=4, fsdp=1, tensor=1 does not fit")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.slow
def test_compiled_memory_falls_with_remat(for_tpu, tmp_path):
    """For a TPU: XLA's CPU compiler schedules all of what is recomputed before the backward pass, and saves nothing."""
    sizes = {"n_embd": 256, "n_head": 4, "n_ctx": 128, "vocab_size": 1000, "n_layer": 4}
    temporary = {}
    for remat in ("none", "full"):
        model = [f"--config.model.{name}={value}" for name, value in {**sizes, "remat": remat}.items()]
        ended = for_tpu(
            *("--config=configs/pretrain.py", "--topology=v5e:2x4", *model),
            *("--config.batch_size=128", "--config.loss.chunk=32", f"--json={tmp_path / remat}.json"),
        )
        assert ended.returncode == 0, ended.stderr
        temporary[remat] = json.loads((tmp_path / f"{remat}.json").read_text(encoding="utf-8"))["temp_bytes"]
    assert temporary["full"] < 0.8 * temporary["none"]  # seen: 22.3 and 30.7 MB
