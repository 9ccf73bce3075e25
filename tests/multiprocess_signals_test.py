"""Programs of two processes that are told to stop, or lose one of the two: they end together, and nothing is lost."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from two import ROOT, logs, two

from gpt1_jax.metrics import read_metrics

pytestmark = pytest.mark.slow

ENVIRON = {
    "JAX_COORDINATOR_ADDRESS": "localhost:PORT",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "PROCESS",
}
LIMIT_S = 300.0
SIZES = {"vocab_size": 380, "n_ctx": 32, "n_embd": 32, "n_head": 4, "n_layer": 2}


def command(corpus: Path, workdir: Path, **changes: Any) -> list[str]:
    """A pre-training run that would last for hours."""
    values = {f"model.{name}": value for name, value in SIZES.items()}
    values |= {"source": f"jsonl:{corpus}/corpus.jsonl#text", "heldout_fraction": 0.1, "batch_size": 8}
    values |= {"n_steps": 100_000, "optimizer.warmup_steps": 2, "loop.log_every": 1, "loop.save_every": 5} | changes
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    return [
        str(ROOT / "launch/pretrain.py"),
        f"--config={ROOT}/configs/pretrain.py:small",
        f"--workdir={workdir}",
        *flags,
    ]


def wait_for(condition: Callable[[], bool], folder: Path) -> None:
    """Until it holds; fails with the logs."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, logs(folder)
        time.sleep(0.1)


def last_step(workdir: Path) -> int:
    return (
        max((line["step"] for line in read_metrics(workdir)), default=0) if (workdir / "metrics.jsonl").exists() else 0
    )


def saved(workdir: Path) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())


def ends(processes: list[subprocess.Popen], within: float) -> list[int]:
    """Exit statuses as a shell has them."""
    end = time.monotonic() + within
    statuses = [process.wait(max(0.1, end - time.monotonic())) for process in processes]
    return [128 - status if status < 0 else status for status in statuses]


@pytest.mark.parametrize(
    ("signum", "told", "statuses"),
    [(signal.SIGTERM, [1], [143, 143]), (signal.SIGTERM, [0, 1], [143, 143]), (signal.SIGINT, [0], [130, 143])],
)
def test_told_to_stop(corpus, tmp_path, signum, told, statuses):
    workdir = tmp_path / "run"
    with two(*command(corpus, workdir), folder=tmp_path, n_devices=2, **ENVIRON) as processes:
        wait_for(lambda: last_step(workdir) >= 7, tmp_path)
        for process in told:
            processes[process].send_signal(signum)
        assert ends(processes, 60) == statuses, logs(tmp_path)
    step = last_step(workdir)
    assert saved(workdir)[-1] == step, logs(tmp_path)
    assert f"after step {step}: saved" in (tmp_path / "log.0").read_text()
    assert "loss" not in (tmp_path / "log.1").read_text()  # process 0 alone shows and prints


def test_told_to_stop_in_an_evaluation(corpus, tmp_path):
    workdir = tmp_path / "run"
    changes = {"heldout_fraction": 0.9, "n_steps": 5, "loop.eval_every": 5, "batch_size": 4}
    with two(*command(corpus, workdir, **changes), folder=tmp_path, n_devices=2, **ENVIRON) as processes:
        wait_for(lambda: last_step(workdir) >= 5, tmp_path)
        processes[0].send_signal(signal.SIGTERM)
        assert ends(processes, 60) == [143, 143], logs(tmp_path)
    assert saved(workdir) == [5]
    with two(*command(corpus, workdir, **changes), folder=tmp_path, n_devices=2, **ENVIRON) as processes:
        assert ends(processes, LIMIT_S) == [0, 0], logs(tmp_path)
    assert [line["step"] for line in read_metrics(workdir) if "heldout_loss" in line] == [5]
    assert json.loads((workdir / "results.json").read_text())["n_steps"] == 5


def test_told_to_stop_while_the_first_prepares(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(" ".join(str(i * j % 9973) for j in range(200)) for i in range(40_000)))
    changes = {"source": f"text:{text}", "heldout_fraction": 0.0}
    workdir = tmp_path / "run"
    with two(*command(tmp_path, workdir, **changes), folder=tmp_path, n_devices=2, **ENVIRON) as processes:
        wait_for(lambda: "training a SentencePiece" in (tmp_path / "log.0").read_text(), tmp_path)
        processes[1].send_signal(signal.SIGTERM)
        assert ends(processes, 30) == [143, 143], logs(tmp_path)
    assert "SIGTERM: nothing is lost" in (tmp_path / "log.0").read_text()


def test_killed_process_ends_the_other(corpus, tmp_path):
    workdir = tmp_path / "run"
    with two(*command(corpus, workdir), folder=tmp_path, n_devices=2, **ENVIRON) as processes:
        wait_for(lambda: last_step(workdir) >= 7, tmp_path)
        processes[1].kill()
        assert 0 not in ends(processes, 150), logs(tmp_path)
    assert re.search(r"unhealthy|Gloo|coordination service", (tmp_path / "log.0").read_text())
    assert saved(workdir)[-1] >= 5


def test_failure_of_one_is_the_message_of_both(corpus, tmp_path):
    """Process 0 alone looks at the workdir; what it finds ends both programs at once."""
    workdir = tmp_path / "run"
    workdir.write_text("a file")
    with two(*command(corpus, workdir), folder=tmp_path, n_devices=2, **ENVIRON) as processes:
        assert ends(processes, 120) == [2, 2], logs(tmp_path)
    first, second = ((tmp_path / f"log.{process}").read_text() for process in range(2))
    assert f"error: workdir={workdir} cannot be written" in first
    assert "Traceback" not in first + second
