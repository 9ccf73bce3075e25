"""A disk that is full or read-only. As root, on a small disk in memory; others cannot make one, and skip these."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .checks import assert_same_run, complete_steps
from .jobs import Job, Process
from .kills import Start
from .phases import strike
from .report import Result

_SIZE = "160m"  # a run wants 64 MB to start


class Unavailable(Exception):
    """Says why such a disk cannot be made on this machine."""


class SmallDisk:
    """A mounted one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Leaves no byte."""
        block = bytes(1 << 20)
        with contextlib.suppress(OSError), open(self._filler, "ab", buffering=0) as file:
            while block:
                if file.write(block) < len(block):
                    block = block[: len(block) // 2]

    def free(self) -> None:
        """Takes it back."""
        self._filler.unlink(missing_ok=True)

    def remount(self, mode: str) -> None:
        """Makes it "ro" or "rw"."""
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.folder)], check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mounts one at `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        raise Unavailable("only root may mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Unavailable(f"no small disk can be mounted here: {made.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def full_in(start: Start, job: Job, folder: Path, undisturbed: Path, phase: str, from_step: int = 0) -> Result:
    """The disk becomes full in a phase; the run says so, and goes on once there is space."""

    def disturb(start: Start, disk: SmallDisk, workdir: Path) -> str:
        process = start(job, workdir)
        _freeze(process, phase, from_step)
        before = complete_steps(workdir)
        disk.fill()
        process.send(signal.SIGCONT)
        while not process.ended:  # again and again: old checkpoints are deleted
            disk.fill()
            time.sleep(0.005)
        message = process.refused()
        assert "start the same command again" in message, message
        assert "No space left" in message, message
        assert complete_steps(workdir)[-1:] == before[-1:], f"had {before}, has {complete_steps(workdir)}"
        disk.free()
        start(job, workdir).finish()
        return message

    return _on_small_disk(disturb, start, "disk full", job, folder, undisturbed, "save" if phase == "step" else phase)


def metrics_full(start: Start, job: Job, folder: Path, undisturbed: Path) -> Result:
    """The disk is full for some lines of metrics.jsonl, between two saves; they are written later."""
    job = job.changed(f"--config.loop.save_every={job.n_steps}")

    def disturb(start: Start, disk: SmallDisk, workdir: Path) -> str:
        process = start(job, workdir)
        _freeze(process, "step", 12)
        disk.fill()
        process.send(signal.SIGCONT)
        while "metrics.jsonl cannot be written" not in process.log and not process.ended:
            time.sleep(0.002)
        process.send(signal.SIGSTOP)
        disk.free()
        process.send(signal.SIGCONT)
        process.finish()
        shutil.copy(undisturbed / "config.json", workdir / "config.json")  # differs in save_every
        return ""

    return _on_small_disk(disturb, start, "disk full", job, folder, undisturbed, "metrics.jsonl")


def read_only(start: Start, job: Job, folder: Path, undisturbed: Path, halfway: Path) -> Result:
    """The workdir of a run that was stopped cannot be written any more."""

    def disturb(start: Start, disk: SmallDisk, workdir: Path) -> str:
        shutil.copytree(halfway, workdir)
        disk.remount("ro")
        message = start(job, workdir).refused()
        assert "Read-only file system" in message, message
        assert "Choose a folder that you may write to" in message, message
        disk.remount("rw")
        start(job, workdir).finish()
        return message

    return _on_small_disk(disturb, start, "read-only workdir", job, folder, undisturbed, "start")


def full_at_start(start: Start, job: Job, folder: Path, undisturbed: Path, halfway: Path) -> Result:
    """There is no space for what the run will save: it says so before any work."""

    def disturb(start: Start, disk: SmallDisk, workdir: Path) -> str:
        shutil.copytree(halfway, workdir)
        disk.fill()
        message = start(job, workdir).refused()
        assert "Make space" in message or "free space" in message, message
        disk.free()
        start(job, workdir).finish()
        return message

    return _on_small_disk(disturb, start, "disk full", job, folder, undisturbed, "start")


def _freeze(process: Process, phase: str, from_step: int) -> None:
    """Stops the process in a phase, without the right to go on."""
    found = strike(process, phase, 0, random.Random(phase), from_step=from_step, freeze=True)
    assert found == phase, f"it was in {found or 'no'} phase, not in {phase}"


def _on_small_disk(
    disturb: Callable[[Start, SmallDisk, Path], str],
    start: Start,
    fault: str,
    job: Job,
    folder: Path,
    undisturbed: Path,
    phase: str,
) -> Result:
    start = functools.partial(start, logs=Path(f"{folder}.logs"))  # which must not be full
    try:
        with small_disk(folder) as disk:
            workdir = folder / "run"
            message = disturb(start, disk, workdir)
            assert_same_run(workdir, undisturbed)
    except Unavailable as reason:
        return Result(fault, job.name, phase, "skipped", str(reason))
    except Exception as error:
        return Result(fault, job.name, phase, "lost", f"{type(error).__name__}: {error}")
    return Result(fault, job.name, phase, "refused" if message else "continued", message)
