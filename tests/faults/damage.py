"""What is damaged or lost between two starts, by a disk or by hand."""

from __future__ import annotations

import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpt1_jax.errors import InputError

from .checks import arrays, assert_same_run, complete_steps, load_arrays
from .jobs import Job
from .kills import Start
from .phases import strike
from .report import Result

KINDS = ("missing", "truncated", "bit flipped")
_UNUSED = ("_CHECKPOINT_METADATA", "commit_success.txt")  # at the top of a checkpoint: nothing is read from these


def inflict(file: Path, kind: str, chance: random.Random) -> None:
    """Damages a file."""
    content = bytearray(file.read_bytes())
    if kind == "missing":
        file.unlink()
    elif kind == "truncated":
        file.write_bytes(content[: chance.randrange(len(content))])
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)


def every_file(halfway: Path, folder: Path) -> list[Result]:
    """Each file of a real checkpoint, damaged in each way: never loaded, and the message names it and what to do."""
    chance = random.Random(0)
    step = complete_steps(halfway)[-1]
    names = sorted(str(f.relative_to(halfway)) for f in (halfway / f"checkpoints/{step}").rglob("*") if f.is_file())
    intact = arrays(halfway, step)
    results = []
    for kind in KINDS:
        for number, name in enumerate(names):
            copy = folder / f"{KINDS.index(kind)}-{number}"
            shutil.copytree(halfway / "checkpoints", copy / "checkpoints")
            inflict(copy / name, kind, chance)
            fault, end, note = f"checkpoint file {kind}", "refused", ""
            try:
                if arrays(copy, step) == intact and Path(name).name in _UNUSED and name.count("/") == 2:
                    end = "continued"
                else:
                    end, note = "lost", f"{name} is {kind} and was loaded"
            except InputError as error:
                note = str(error)
                found = re.search(r"Delete the folder (\S+) and start the same command again", note)
                if not found or name.split("/", 2)[2] not in note:
                    end = "lost"
                else:
                    shutil.rmtree(found[1])
                    load_arrays(copy, complete_steps(copy)[-1])
            except Exception as error:
                end, note = "lost", f"{name} is {kind}: {type(error).__name__}: {error}"
            results.append(Result(fault, "Checkpointer", Path(name).parts[2].replace(".json", ""), end, note))
            shutil.rmtree(copy)
    return results


def checkpoint(start: Start, job: Job, workdir: Path, undisturbed: Path, halfway: Path, kind: str, part: str) -> Result:
    """A damaged checkpoint through the program: refused, and what the message says gives the undisturbed run."""

    def disturb() -> str:
        shutil.copytree(halfway, workdir)
        step = complete_steps(workdir)[-1]
        files = [path for path in (workdir / "checkpoints" / str(step)).glob(part) if path.is_file()]
        inflict(max(files, key=lambda path: path.stat().st_size), kind, random.Random(part))
        message = start(job, workdir).refused()
        assert f"the checkpoint of step {step} is damaged" in message, message
        found = re.search(r"Delete the folder (\S+) and start the same command again: it continues from", message)
        assert found, message
        shutil.rmtree(found[1])
        return message

    return _then_as_undisturbed(start, job, workdir, undisturbed, f"checkpoint file {kind}", part, disturb)


def torn_line(start: Start, job: Job, workdir: Path, undisturbed: Path, halfway: Path, tail: bytes) -> Result:
    """The end of metrics.jsonl is not a line."""

    def disturb() -> str:
        shutil.copytree(halfway, workdir)
        with (workdir / "metrics.jsonl").open("ab") as file:
            file.write(tail)
        return ""

    return _then_as_undisturbed(start, job, workdir, undisturbed, "torn last line", "metrics.jsonl", disturb)


def deleted(start: Start, job: Job, workdir: Path, undisturbed: Path, halfway: Path, which: str) -> Result:
    """Checkpoint folders are deleted by hand: the latest, all of them, or the latest while the run is running."""

    def disturb() -> str:
        if which == "while running":
            process = start(job, workdir)
            strike(process, "step", 0, random.Random(which), from_step=12, freeze=True)
            shutil.rmtree(workdir / "checkpoints" / str(complete_steps(workdir)[-1]))
            process.send(signal.SIGCONT)
            process.finish()
            return ""
        shutil.copytree(halfway, workdir)
        for step in complete_steps(workdir)[-1 if which == "the latest" else 0 :]:
            shutil.rmtree(workdir / "checkpoints" / str(step))
        return ""

    return _then_as_undisturbed(start, job, workdir, undisturbed, "checkpoint deleted", which, disturb)


def second_run(start: Start, job: Job, workdir: Path, undisturbed: Path) -> Result:
    """A second run in the same workdir is refused; the first one does not notice."""

    def disturb() -> str:
        first = start(job, workdir)
        try:
            strike(first, "step", 0, random.Random(0), from_step=15, freeze=True)
            message = start(job, workdir).refused()
            assert re.search(r"is in use by process \d+ on .*choose another workdir", message), message
            first.send(signal.SIGCONT)
            first.finish()
        finally:
            first.stop()
        return message

    return _then_as_undisturbed(start, job, workdir, undisturbed, "second run", "step", disturb)


def diverged(start: Start, job: Job, workdir: Path) -> Result:
    """The loss is not a number any more: the last checkpoint is good, and another rate is refused by name."""
    job = job.changed(
        "--config.optimizer.learning_rate=1e38",
        "--config.optimizer.warmup_steps=1",
        "--config.optimizer.clip_norm=0.0",
        "--config.loop.save_every=1",
    )
    try:
        for _ in range(2):  # the second start goes on, and ends in the same way
            message = start(job, workdir).refused(status=1)
            step = complete_steps(workdir)[-1]
            assert f"the last good checkpoint is step {step}" in message, message
            assert re.search(r"Lower optimizer.learning_rate .* new workdir", message), message
            found = load_arrays(workdir, step)
            spoilt = [name for name, array in found.items() if not np.isfinite(array.astype(np.float64)).all()]
            assert not spoilt, f"step {step} has numbers that are not finite in {spoilt}"
        other = start(job.changed("--config.optimizer.learning_rate=0.001"), workdir).refused()
        assert "config.optimizer.learning_rate is 1e+38 there, 0.001 here" in other, other
    except Exception as error:
        return Result("NaN in the loss", job.name, "step", "lost", f"{type(error).__name__}: {error}")
    return Result("NaN in the loss", job.name, "step", "refused", message)


def _then_as_undisturbed(
    start: Start,
    job: Job,
    workdir: Path,
    undisturbed: Path,
    fault: str,
    phase: str,
    disturb: Callable[[], str],
) -> Result:
    try:
        message = disturb()
        start(job, workdir).finish()
        assert_same_run(workdir, undisturbed)
    except Exception as error:
        return Result(fault, job.name, phase, "lost", f"{type(error).__name__}: {error}")
    return Result(fault, job.name, phase, "refused" if message else "continued", message)
