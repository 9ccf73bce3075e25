"""The fault harness: what it finds wrong, and, among the slow tests, that it finds nothing."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from faults.checks import assert_same_run
from faults.report import Result, table
from gpt1_jax import InputError
from gpt1_jax.checkpoint import Checkpointer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a finished run leaves, made by hand."""
    workdir = tmp_path_factory.mktemp("runs") / "undisturbed"
    with Checkpointer(workdir / "checkpoints") as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"params": {"w": np.full(3, step, np.float32)}, "step": np.int32(step)})
    lines = [{"step": step, "loss": 5 / step, "steps_per_second": 10.5 * step} for step in (1, 2)]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("config.json", "results.json", "tokenizer/model", "predictions/test.jsonl"):
        (workdir / name).parent.mkdir(exist_ok=True)
        (workdir / name).write_text('{"heldout_loss": 2.5}')
    return workdir


@pytest.mark.parametrize(
    ("name", "old", "new", "noticed"),
    [
        ("metrics.jsonl", b"10.5", b"11.5", False),
        ("metrics.jsonl", b'"loss": 5', b'"loss": 6', True),
        ("metrics.jsonl", b'{"step": 1,', b'{"step": 1}\n{"step": 1,', True),
        ("results.json", b"2.5", b"2.6", True),
        ("predictions/test.jsonl", b"2.5", b"2.6", True),
        ("checkpoints/2/state/_METADATA", b"params", b"parans", True),
        ("checkpoints/3.orbax-checkpoint-tmp", b"", b"half", True),
        (".results.json.17.tmp", b"", b"half", True),
    ],
)
def test_a_run_that_is_not_the_undisturbed_one_is_noticed(undisturbed, tmp_path, name, old, new, noticed):
    shutil.copytree(undisturbed, tmp_path / "run")
    file = tmp_path / "run" / name
    content = file.read_bytes() if file.exists() else b""
    assert old in content
    file.write_bytes(content.replace(old, new, 1))
    with pytest.raises((AssertionError, InputError)) if noticed else contextlib.nullcontext():
        assert_same_run(tmp_path / "run", undisturbed)


def test_another_number_in_an_array_is_noticed(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "2")
    with Checkpointer(tmp_path / "run" / "checkpoints") as checkpointer:
        checkpointer.save(2, {"params": {"w": np.array([2, 2, 2.0000002], np.float32)}, "step": np.int32(2)})
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "run", undisturbed)


def test_the_table_counts_what_was_lost():
    results = [
        Result("SIGKILL", "pretrain", "step", "continued"),
        Result("SIGKILL", "pretrain", "step", "lost", "why"),
        Result("SIGTERM", "finetune", "save", "continued", seconds=1.5),
        Result("disk full", "pretrain", "save", "skipped", "only root may"),
    ]
    text = table(results)
    assert "SIGKILL    pretrain  step   2      1          -        1     -" in text
    assert "lost: SIGKILL, pretrain, step: why" in text
    assert "skipped: disk full, pretrain, save: only root may" in text
    assert text.endswith("slowest end after SIGTERM: 1.5 s\nfaults tried: 3 (2 SIGKILL), runs lost: 1")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        ("OSError(28, 'No space left on device', '/w/a')", 2, "error: /w/a: No space left on device. Make space"),
        ("OSError(30, 'Read-only file system')", 2, "error: Read-only file system. Make space there, or make it w"),
        ("OSError(5, 'Input/output error')", 1, "OSError: [Errno 5] Input/output error"),
    ],
)
def test_a_program_that_meets_a_full_disk_says_what_to_do(error, status, message):
    code = f"from gpt1_jax import cli\ndef main(): raise {error}\ncli.run(main)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, message in result.stderr) == (status, True), result.stderr
    assert ("Traceback" in result.stderr) == (status == 1)


@pytest.mark.slow
def test_no_run_is_lost(tmp_path):
    command = [sys.executable, "-m", "tests.faults", f"--folder={tmp_path}/runs", f"--json={tmp_path}/results.json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    print(result.stdout[-20000:], result.stderr[-5000:])
    assert result.returncode == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert sum(one["fault"] == "SIGKILL" for one in results) >= 20
    assert [one for one in results if one["end"] == "lost"] == []
