"""Which phase a run is in, told from what it has written and logged; and a signal in just that phase.

A run that is stopped (SIGSTOP) or dead writes nothing more, so what is seen then is where it was hit.
"""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Mapping

from gpt1_jax.tokenizers.protocol import MARKER

from .jobs import TIMEOUT_S, Process

_COMPILATION = re.compile(r"^(Compiling|Finished XLA compilation of) jit\((\w+|<lambda>)\)", re.MULTILINE)
_WIDTH_S: Mapping[str, float] = {
    "tokenizer": 0.15,
    "shards": 0.3,
    "preparation": 0.3,
    "compile": 0.5,
    "step": 0.03,
    "evaluation": 0.3,
    "save": 0.05,
    "end": 0.02,
}
"""About how long each phase lasts: how long the random wait in it may be."""


def phase_of(process: Process) -> str:
    """One of `_WIDTH_S`; "start" before there is anything to disturb."""
    job, workdir, log = process.job, process.workdir, process.log
    if "backend " not in log and job.name != "evaluate":
        return "start"
    if job.name == "pretrain":
        if not (workdir / "tokenizer" / MARKER).exists():
            return "tokenizer" if "training a SentencePiece" in log else "start"
        if not shards_are_complete(process):
            return "shards"
    if _is_compiling(log):
        return "compile"
    if job.name == "evaluate":
        return "evaluation" if "jit(lm_nll_sum)" in log else "start"
    if "updates; " not in log:
        return "preparation"
    checkpoints = workdir / "checkpoints"
    if any(checkpoints.glob("*.orbax-checkpoint-tmp")):
        return "save"
    if (checkpoints / str(job.n_steps)).exists():
        return "end"
    last = last_record(process)
    if last.get("step", 0) <= resumed_from(log):
        return "preparation"
    return "evaluation" if last["step"] % job.eval_every == 0 and job.evaluated not in last else "step"


def shards_are_complete(process: Process) -> bool:
    """Whether the token shards of a pre-training run are."""
    return any('"complete": true' in path.read_text() for path in process.workdir.glob("shards/part-*/manifest.json"))


def last_record(process: Process) -> dict[str, float]:
    """The last whole line of metrics.jsonl."""
    path = process.workdir / "metrics.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return json.loads(lines[-1]) if lines else {}


def resumed_from(log: str) -> int:
    """The step that a run went on from; 0 for a fresh one."""
    found = re.search(r"(?:continuing from|finished before, with) step (\d+)", log)
    return int(found[1]) if found else 0


def strike(
    process: Process, phase: str, signum: int, chance: random.Random, *, from_step: int = 0, freeze: bool = False
) -> str:
    """Sends a signal at a random moment of a phase, and tells in which phase the run was hit.

    Args:
      process: a fresh one.
      phase: the wanted phase.
      signum: the signal.
      chance: decides the moment.
      from_step: not before this step is done.
      freeze: leaves the process stopped, without the signal.

    Returns:
      the phase in which it was hit; "" if it ended before.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not process.ended:
        assert time.monotonic() < deadline, f"it never comes to {phase}:\n{process.log[-2000:]}"
        if phase_of(process) != phase or last_record(process).get("step", 0) < from_step:
            time.sleep(0.002)
            continue
        time.sleep(chance.uniform(0.0, _WIDTH_S[phase]))
        process.send(signal.SIGSTOP)
        time.sleep(0.01)  # it takes effect when a system call returns
        found = phase_of(process)
        if found != phase and phase in ("step", "evaluation", "save"):  # these come again
            process.send(signal.SIGCONT)
            continue
        if process.ended:
            break
        if not freeze:
            process.send(signum)
            process.send(signal.SIGCONT)
        return found
    return ""


def _is_compiling(log: str) -> bool:
    running: dict[str, int] = {}
    for verb, name in _COMPILATION.findall(log):
        running[name] = running.get(name, 0) + (1 if verb == "Compiling" else -1)
    return any(count > 0 for count in running.values())
