"""Curves have no duplicate and no gap, whatever happened to the run."""

import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.metrics import MetricsWriter, read_metrics


def steps(workdir: Path) -> list[int]:
    return [record["step"] for record in read_metrics(workdir)]


def write_steps(workdir: Path, numbers: range, resume_step: int | None = None) -> None:
    with MetricsWriter(workdir, resume_step=resume_step) as writer:
        for step in numbers:
            writer.write(step, {"loss": 1 / (1 + step)})


# --- metrics.jsonl --------------------------------------------------------------------------------------------------


def test_a_line_is_standard_json_with_sorted_fields(tmp_path: Path):
    values = {
        "loss": jnp.float32(0.5),
        "bf16": jnp.bfloat16(0.25),
        "count": np.int64(3),
        "ratio": np.array([0.1]),
        "ok": True,
        "phase": "train",
        "none": None,
        "a": math.nan,
        "b": jnp.float32(-np.inf),
        "c": np.inf,
    }
    with MetricsWriter(tmp_path) as writer:
        writer.write(7, values)
        text = (tmp_path / "metrics.jsonl").read_text()  # before it is closed
        with pytest.raises(TypeError, match="'grid'"):
            writer.write(8, {"grid": np.zeros((2, 2))})
    assert text == (
        '{"step": 7, "a": "NaN", "b": "-Infinity", "bf16": 0.25, "c": "Infinity", "count": 3, "loss": 0.5, '
        '"none": null, "ok": true, "phase": "train", "ratio": 0.1}\n'
    )
    (record,) = read_metrics(tmp_path)
    assert math.isnan(record.pop("a"))
    assert record == {"step": 7, "b": -math.inf, "bf16": 0.25, "c": math.inf, "count": 3, "loss": 0.5} | {
        "none": None,
        "ok": True,
        "phase": "train",
        "ratio": 0.1,
    }


def test_a_resumed_run_leaves_no_duplicate_and_no_gap(tmp_path: Path):
    write_steps(tmp_path, range(1, 8))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')  # killed here; the checkpoint is of step 5
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7]
    write_steps(tmp_path, range(6, 11), resume_step=5)
    assert steps(tmp_path) == list(range(1, 11))
    write_steps(tmp_path, range(1, 3))  # killed before the first checkpoint
    assert steps(tmp_path) == [1, 2]
    before = (tmp_path / "metrics.jsonl").stat()
    write_steps(tmp_path, range(0), resume_step=2)
    assert (tmp_path / "metrics.jsonl").stat().st_ino == before.st_ino  # nothing to drop: not rewritten


def test_an_evaluation_that_is_done_again_after_a_resume_is_one_line(tmp_path: Path):
    """The run was killed after the line and before its checkpoint had the result."""
    with MetricsWriter(tmp_path) as writer:
        writer.write(5, {"loss": 1.0})
        writer.write(5, {"heldout_loss": 2.0})
    with MetricsWriter(tmp_path, resume_step=5) as writer:
        writer.write(5, {"heldout_loss": 2.0})
        writer.write(5, {"accuracy": 0.5})
        writer.write(6, {"heldout_loss": 1.5})
    assert read_metrics(tmp_path) == [
        {"step": 5, "loss": 1.0},
        {"step": 5, "heldout_loss": 2.0},
        {"step": 5, "accuracy": 0.5},
        {"step": 6, "heldout_loss": 1.5},
    ]


def test_a_complete_last_line_without_its_newline_counts(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}')
    assert steps(tmp_path) == [1, 2]
    write_steps(tmp_path, range(3, 4), resume_step=2)
    assert steps(tmp_path) == [1, 2, 3]


def test_unreadable_lines_are_named_and_dropped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with pytest.raises(InputError, match=r"metrics.jsonl does not exist"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n\x00\x00\n[2]\n{"loss": 1}\n{"step": 5}\n')
    with pytest.raises(InputError, match="line 2 is not"):
        read_metrics(tmp_path)
    write_steps(tmp_path, range(6, 7), resume_step=5)
    assert steps(tmp_path) == [1, 5, 6]
    assert "3 lines" in caplog.text


def test_only_process_0_writes(tmp_path: Path):
    with MetricsWriter(tmp_path, process_index=1) as writer:
        writer.write(1, {"loss": 1.0})
        writer.flush()
    assert list(tmp_path.iterdir()) == []


def test_lines_wait_for_space(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """In a child, where the largest file may have 100 bytes for a while."""
    run_here("full_disk", tmp_path)
    assert [(record["step"], record["text"]) for record in read_metrics(tmp_path)] == [
        (step, "x" * 40) for step in range(1, 7)
    ]


def full_disk(directory: str) -> None:
    with MetricsWriter(directory) as writer:
        for step in range(1, 7):
            if step == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            if step == 5:
                whole = read_metrics(directory)
                assert [record["step"] for record in whole] == [1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            writer.write(step, {"text": "x" * 40})


def test_killed_while_writing(tmp_path: Path):
    process = subprocess.Popen([sys.executable, __file__, "write_forever", str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"started\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = steps(tmp_path)
    assert len(found) >= 100
    assert found == list(range(1, len(found) + 1))
    write_steps(tmp_path, range(101, 104), resume_step=100)
    assert steps(tmp_path) == list(range(1, 104))


def write_forever(directory: str) -> None:
    with MetricsWriter(directory, process_index=0) as writer:
        for step in range(1, 10**9):
            writer.write(step, {"loss": step})
            if step == 100:
                print("started", flush=True)


def run_here(function: str, directory: Path) -> None:
    """Calls a function of this file in a fresh process."""
    subprocess.run(
        [sys.executable, __file__, function, str(directory)],
        check=True,
        timeout=60,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


# --- TensorBoard ----------------------------------------------------------------------------------------------------


def tensorboard_curve(workdir: Path, tag: str) -> dict[int, float]:
    """What TensorBoard shows: files in the order of their names, each restart hiding what is at or past its step."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    shown: list[tuple[int, float]] = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")  # length, checksum, event, checksum
            event = Event.FromString(content[12 : 12 + length])
            content = content[12 + length + 4 :]
            if event.session_log.status == SessionLog.START:
                shown = [(step, value) for step, value in shown if step < event.step]
            shown += [(event.step, value.simple_value) for value in event.summary.value if value.tag == tag]
    assert len({step for step, _ in shown}) == len(shown)
    return dict(shown)


def test_tensorboard_shows_each_step_once(tmp_path: Path):
    write_steps(tmp_path, range(1, 8))
    write_steps(tmp_path, range(6, 11), resume_step=5)
    assert tensorboard_curve(tmp_path, "loss") == pytest.approx({step: 1 / (1 + step) for step in range(1, 11)})
    write_steps(tmp_path, range(3))
    assert list(tensorboard_curve(tmp_path, "loss")) == [0, 1, 2]


def test_a_failing_tensorboard_is_given_up_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "tensorboard").write_text("a file, where the folder should be")
    write_steps(tmp_path, range(1, 30))
    assert steps(tmp_path) == list(range(1, 30))
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["no TensorBoard events from here on"]


def test_a_tensorboard_that_fails_later_is_given_up_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"loss": 1.0})
        monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.write_event", full)
        for step in range(2, 40):
            writer.write(step, {"loss": 1.0})
    assert steps(tmp_path) == list(range(1, 40))
    assert len(caplog.records) == 1


def test_reading_metrics_needs_no_tensorboard(tmp_path: Path):
    write_steps(tmp_path, range(1, 2))
    code = f"""
import sys
from gpt1_jax.metrics import read_metrics
print(len(read_metrics({str(tmp_path)!r})), [name for name in ("tensorboardX", "tensorflow") if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out.split()[0]) == 1
    assert out.split()[1] == "[]"


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
