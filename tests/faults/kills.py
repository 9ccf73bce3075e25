"""Runs that are killed (SIGKILL) or told to stop (SIGTERM), again and again, in one phase after the other."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpt1_jax.tokenizers.protocol import MARKER

from .checks import assert_same_run, complete_steps
from .jobs import Job, Process
from .phases import last_record, resumed_from, shards_are_complete, strike
from .report import Result

Start = Callable[..., Process]
MAX_STOP_S = 30.0
"""How long a run may take to end after SIGTERM, on a machine that has nothing else to do."""


def chain(
    start: Start,
    job: Job,
    workdir: Path,
    undisturbed: Path,
    phases: Sequence[str],
    signum: signal.Signals,
    seed: int,
    slowness: float = 1.0,
) -> list[Result]:
    """One run that is hit in each of the phases in turn, and then left alone.

    After each hit the same command is started again: it has to go on from the last complete step, with what else was
    finished, and ends as the undisturbed run did. `slowness` is how much longer than alone a machine takes.
    """
    chance = random.Random(seed)
    fault = signum.name
    hits: list[Result] = []

    def hit_in(phase: str) -> None:
        steps = complete_steps(workdir)
        first = max(steps, default=0)
        last = job.n_steps if phase == "end" else max(first, min(first + job.eval_every, job.n_steps - job.eval_every))
        process = start(job, workdir, compiles=phase == "compile")
        try:
            expect = _finished(process)
            from_step = last if phase == "end" else chance.randint(first, last) if phase in _IN_THE_LOOP else 0
            found = strike(process, phase, signum, chance, from_step=from_step)
            sent = time.monotonic()
            status = process.wait()
        finally:
            process.stop()
        if not found:
            assert status == 0, f"status {status}:\n{process.log[-3000:]}"
            return
        seconds = time.monotonic() - sent if signum == signal.SIGTERM else None
        hits.append(Result(fault, job.name, found, "continued", seconds=seconds))
        expect(process.log)
        if signum == signal.SIGTERM:
            _check_clean_end(process, status, first)
            assert seconds < MAX_STOP_S * slowness, f"it took {seconds:.1f} s to end (slowness {slowness:.1f})"
        else:
            assert status == 128 + signum, f"status {status}"

    try:
        for phase in phases:
            hit_in(phase)
        process = start(job, workdir)
        expect = _finished(process)
        expect(process.finish())
        assert_same_run(workdir, undisturbed)
    except Exception as error:
        done = [hit.phase for hit in hits]
        last = hits[-1] if hits else Result(fault, job.name, "start", "lost")
        note = f"{workdir}, seed {seed}, hit in {done}: {error}"
        return [*hits[:-1], Result(fault, job.name, last.phase, "lost", note, last.seconds)]
    shutil.rmtree(workdir)
    return hits


_IN_THE_LOOP = ("step", "evaluation", "save")


def _finished(process: Process) -> Callable[[str], None]:
    """Notes what is complete when a process starts; the check that the process went on from there, by its log."""
    steps, workdir = complete_steps(process.workdir), process.workdir
    has_tokenizer = (workdir / "tokenizer" / MARKER).exists()
    has_shards = shards_are_complete(process)

    def check(log: str) -> None:
        if "updates; " in log and (goes_on := resumed_from(log) or None) is not None:
            assert goes_on == max(steps, default=None), f"went on from step {goes_on}, complete were {steps}"
        if has_tokenizer:
            assert "training a SentencePiece" not in log, "the tokenizer was trained again"
        if has_shards:
            assert "documents of" not in log, "the shards were made again"

    return check


def _check_clean_end(process: Process, status: int, first: int) -> None:
    assert status == 128 + signal.SIGTERM, f"status {status} after SIGTERM:\n{process.log[-3000:]}"
    assert "Traceback" not in process.log, process.log[-3000:]
    done = int(last_record(process).get("step", 0))
    if "step " in process.log and done > first:  # a step was done in this process
        saved = max(complete_steps(process.workdir), default=None)
        assert saved == done, f"step {done} was done, step {saved} is saved"


def evaluation(start: Start, job: Job, folder: Path, undisturbed: Path, phase: str, signum: signal.Signals) -> Result:
    """`evaluate` writes nothing into the workdir: it is simply run again."""
    output = folder / f"evaluate-{phase}-{signum.name}" / "results.json"
    job = job.changed(f"--output={output}")
    process = start(job, output.parent, compiles=phase == "compile")
    try:
        found = strike(process, phase, signum, random.Random(f"{phase}{signum}"))
        sent = time.monotonic()
        status = process.wait()
    finally:
        process.stop()
    seconds = time.monotonic() - sent if signum == signal.SIGTERM else None
    try:
        assert status == 128 + signum, f"status {status}"
        assert not output.exists()
        start(job, output.parent).finish()
        again = json.loads(output.read_text())
        stored = json.loads((undisturbed / "results.json").read_text())
        for name, value in again.items():  # in other batches than those of the run
            assert abs(stored[f"heldout_{name}"] / value - 1) < 1e-5, (name, stored, again)
    except Exception as error:
        return Result(signum.name, "evaluate", found, "lost", str(error), seconds)
    return Result(signum.name, "evaluate", found, "continued", seconds=seconds)
