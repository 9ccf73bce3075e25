"""The runs that are disturbed: real programs on a tiny model, and text that is made up here."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600.0
"""For anything that a run does; generous, since the machine may be shared."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A command, and what its phases can be told by.

    Attributes:
      name: the program.
      arguments: without the workdir.
      n_steps: updates in all.
      eval_every: updates between two evaluations, which are saved as well.
      evaluated: a metric that only an evaluation writes.
    """

    name: str
    arguments: Sequence[str]
    n_steps: int = 0
    eval_every: int = 0
    evaluated: str = ""

    def changed(self, *arguments: str) -> Job:
        """The same command with other settings; the last of a flag counts."""
        return dataclasses.replace(self, arguments=(*self.arguments, *arguments))


class Process:
    """One start of a job.

    Args:
      job: the command.
      workdir: of the run.
      cache: where compiled programs are kept.
      compiles: without that, so that compilation takes its time.
      logs: folder for its output; None is one beside the workdir.
    """

    def __init__(
        self, job: Job, workdir: Path, *, cache: Path | None, compiles: bool = False, logs: Path | None = None
    ) -> None:
        self.job, self.workdir = job, workdir
        logs = logs or workdir.parent / f"{workdir.name}.logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log_file = logs / f"{len(list(logs.iterdir()))}.log"
        place = () if job.name == "evaluate" else (f"--workdir={workdir}",)
        self.started = time.time()
        with self.log_file.open("wb") as log:
            self._popen = subprocess.Popen(
                [sys.executable, f"launch/{job.name}.py", *job.arguments, *place],
                cwd=ROOT,
                env=_environment(None if compiles else cache),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """All that it has printed."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._popen.poll() is not None

    def send(self, signum: int) -> None:
        """Sends a signal; one that comes too late is no error."""
        self._popen.send_signal(signum)

    def wait(self) -> int:
        """Its exit status as a shell gives it: 128 + signal if one ended it."""
        try:
            status = self._popen.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            raise AssertionError(f"it hangs:\n{self.log[-2000:]}") from None
        return 128 - status if status < 0 else status

    def finish(self) -> str:
        """Waits for a good end; gives the log."""
        status = self.wait()
        assert status == 0, f"status {status}:\n{self.log[-3000:]}"
        return self.log

    def refused(self, status: int = 2) -> str:
        """Waits for an end with one message; gives that."""
        found = self.wait()
        assert found == status, f"status {found}, not {status}:\n{self.log[-3000:]}"
        assert "Traceback" not in self.log, self.log[-3000:]
        return self.log.rstrip().splitlines()[-1]

    def stop(self) -> None:
        """Ends it if it still runs."""
        if not self.ended:
            self.send(signal.SIGKILL)
            self._popen.wait()


def _environment(cache: Path | None) -> dict[str, str]:
    """One device, quick compilation, and log lines that tell when something compiles."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_LOG_COMPILES": "1",
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    if cache is None:
        return environment
    return environment | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def make_jobs(folder: Path) -> Mapping[str, Job]:
    """Writes the text into `folder`, and gives the jobs by name.

    `finetune` and `evaluate` take the model in `folder/pretrain`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = ["".join(rng.choice(letters, rng.integers(2, 8))) for _ in range(1500)]
    with open(folder / "text.jsonl", "w", encoding="utf-8") as file:
        for _ in range(2000):
            file.write(json.dumps({"text": " ".join(rng.choice(words, 100))}) + "\n")
    for split, n in (("train", 96), ("validation", 160), ("test", 160)):
        with open(folder / f"{split}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for i in range(n):
                text = " ".join([*rng.choice(words, rng.integers(2, 6)), ("bad", "good")[i % 2]])
                writer.writerow([text, ("negative", "positive")[i % 2]])
    pretrain = _flags(
        source=f"jsonl:{folder}/text.jsonl#text",
        heldout_fraction=0.08,
        batch_size=8,
        n_steps=60,
        model={"vocab_size": 600, "n_ctx": 32, "n_embd": 32, "n_head": 4, "n_layer": 2},
        optimizer={"learning_rate": 3e-3, "warmup_steps": 5},
        loop={"log_every": 1, "eval_every": 10, "save_every": 10},
    )
    finetune = _flags(
        task={"train": folder / "train.csv", "validation": folder / "validation.csv", "test": folder / "test.csv"},
        batch_size=8,
        epochs=3,
        n_buckets=1,
        log_every=1,
        optimizer={"learning_rate": 3e-3},
    )
    model = folder / "pretrain"
    return {
        "pretrain": Job(
            "pretrain", ("--config=configs/pretrain.py", *pretrain), n_steps=60, eval_every=10, evaluated="heldout_loss"
        ),
        "finetune": Job(
            "finetune",
            ("--config=configs/finetune.py:custom", f"--init_from={model}", *finetune),
            n_steps=36,
            eval_every=12,
            evaluated="validation_accuracy",
        ),
        "evaluate": Job("evaluate", (f"--checkpoint={model}", "--batch_size=4")),
    }


def _flags(prefix: str = "config", **values: object) -> list[str]:
    flags = []
    for name, value in values.items():
        if isinstance(value, dict):
            flags += _flags(f"{prefix}.{name}", **value)
        else:
            flags.append(f"--{prefix}.{name}={value}")
    return flags
