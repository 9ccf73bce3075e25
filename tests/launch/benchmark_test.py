"""launch/benchmark.py: what it refuses, and a whole run with its files."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import xla_flags

ROOT = Path(__file__).resolve().parents[2]
TINY = [f"--config.model.{name}" for name in ("vocab_size=380", "n_layer=1", "n_embd=16", "n_head=2", "n_ctx=16")]


def command(*arguments):
    return [sys.executable, "launch/benchmark.py", *TINY, *map(str, arguments)]


def environment():
    return os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags.quick()}


def launch(*arguments):
    return subprocess.run(
        command(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


BAD_INPUT = [
    (["--parts=pretrian"], "error: --parts=pretrian is unknown; use some of pretrain,"),
    (["--batch_sizes=2,x"], "error: --batch_sizes=2,x: numbers are expected, such as 2,8"),
    (["--json=nowhere/figures.json"], "error: --json=nowhere/figures.json: there is no folder nowhere"),
    (["--json=tests"], "error: --json=tests: is a folder; name a file in it"),
    (["--plot=ratios.xyz"], "error: --plot=ratios.xyz: no drawing ends with '.xyz'; use .png, or one of"),
    (["--seconds=inf"], "error: --seconds=inf must be a number from 0 up"),
    (["--source=text:nowhere/*"], "error: source='text:nowhere/*': no file matches"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [pytest.param(*case, marks=pytest.mark.slow if i % 3 else ()) for i, case in enumerate(BAD_INPUT)],  # CI runs all
)
def test_bad_input_ends_with_one_line_and_status_2(arguments, message):
    ended = launch(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith(message)
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.slow  # CI runs it
def test_a_run_with_its_files(tmp_path):
    files = (f"--json={tmp_path}/figures.json", f"--plot={tmp_path}/ratios.png")
    ended = launch("--parts=pretrain", "--peer=naive", "--repeats=2", "--batch_sizes=2", *files)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("1 case (pretrain 1), 2 contestants; at most 2 rounds or 60 s each")
    record = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert [figure["name"] for figure in record["figures"]] == ["gpt1_jax", "naive", "matrix product"]
    assert all(figure["rounds"] == 2 for figure in record["figures"])
    assert record["command"].startswith("python launch/benchmark.py --config=configs/pretrain.py --config.model.vocab")
    assert record["config"]["model"]["n_embd"] == 16
    assert (tmp_path / "ratios.png").exists()
    assert record["date"] in ended.stdout


@pytest.mark.slow  # CI runs it
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_what_was_measured(signum, tmp_path):
    arguments = (
        "--parts=pretrain",
        "--repeats=1000000",
        "--seconds=1e6",
        "--batch_sizes=2",
        f"--json={tmp_path}/f.json",
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child of what a shell runs with & ignores it
    with subprocess.Popen(command(*arguments), cwd=ROOT, env=environment(), **pipes) as process:
        signal.signal(signal.SIGINT, before)
        while "round 2:" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signum)
        output, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    assert "Traceback" not in error
    record = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))
    assert record["interrupted"]
    assert record["figures"][0]["rounds"] >= 2
    assert "tokens/s" in output


@pytest.mark.slow
def test_the_start_of_a_resumed_run(tmp_path):
    ended = launch("--parts=start", "--repeats=2", f"--json={tmp_path}/figures.json")
    assert ended.returncode == 0, ended.stderr
    [figure] = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["figures"]
    assert figure["rounds"] == 2
    assert 0 < figure["seconds"]["median"] < 300
