"""What is done to the runs."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import damage, disks, kills
from .jobs import Job
from .kills import Start
from .report import Result

Scenario = Callable[[], Sequence[Result]]

KILLED = {
    "pretrain": ("tokenizer", "shards", "preparation", "compile", "step", "evaluation", "save", "end"),
    "finetune": ("preparation", "compile", "step", "evaluation", "save", "end"),
    "evaluate": ("compile", "evaluation"),
}
"""The phases in which each program is hit by SIGKILL and by SIGTERM."""

_CHAINS = (  # three runs of pre-training
    KILLED["pretrain"],
    ("tokenizer", "shards", "compile", "save", "step", "save", "evaluation", "end"),
    ("shards", "compile", "step", "evaluation", "save", "step", "save", "end"),
)


@dataclasses.dataclass(frozen=True)
class Ground:
    """What the scenarios start from.

    Attributes:
      start: starts a job in a workdir.
      jobs: by name.
      folder: has the undisturbed runs, by the names of their jobs, and `halfway`, a run of pre-training that was
        killed after half of its updates. What is disturbed goes into `runs`.
      slowness: how much longer than alone the machine takes.
    """

    start: Start
    jobs: Mapping[str, Job]
    folder: Path
    slowness: float


def scenarios(ground: Ground, *, quick: bool, seed: int) -> dict[str, Scenario]:
    """What is done, by name; the longest first."""
    start, runs, slowness = ground.start, ground.folder / "runs", ground.slowness
    pretrain, finetune, evaluate = (ground.jobs[name] for name in ("pretrain", "finetune", "evaluate"))
    whole, tuned, halfway = (ground.folder / name for name in ("pretrain", "finetune", "halfway"))
    found: dict[str, Scenario] = {}

    def add(name: str, function: Callable[..., Result | Sequence[Result]], *arguments: object) -> None:
        def scenario() -> Sequence[Result]:
            result = function(*arguments)
            return [result] if isinstance(result, Result) else result

        found[name] = scenario

    def place(name: str) -> Path:
        return runs / name.replace(" ", "-")

    for number, phases in enumerate(_CHAINS[:1] if quick else _CHAINS):
        name = f"SIGKILL pretrain {number}"
        add(name, kills.chain, start, pretrain, place(name), whole, phases, signal.SIGKILL, seed + number)
    terminated = ("shards", "compile", "step", "end") if quick else KILLED["pretrain"]
    add(
        "SIGTERM pretrain",
        kills.chain,
        start,
        pretrain,
        place("term"),
        whole,
        terminated,
        signal.SIGTERM,
        seed,
        slowness,
    )
    for signum in (signal.SIGKILL, signal.SIGTERM):
        phases = ("save", "end") if quick else KILLED["finetune"]
        name = f"{signum.name} finetune"
        if not (quick and signum == signal.SIGTERM):
            add(name, kills.chain, start, finetune, place(name), tuned, phases, signum, seed + 7, slowness)
        for phase in () if quick else KILLED["evaluate"]:
            add(f"{signum.name} evaluate {phase}", kills.evaluation, start, evaluate, runs, whole, phase, signum)

    add("disk full save", disks.full_in, start, pretrain, place("full-save"), whole, "step", 12)
    add("second run", damage.second_run, start, pretrain, place("second"), whole)
    add("checkpoint files", damage.every_file, halfway, place("files"))
    broken = [
        ("bit flipped", "state/ocdbt.process_0/d/*"),
        ("truncated", "state/_METADATA"),
        ("missing", "manifest.json"),
    ]
    for kind, part in broken[:1] if quick else broken:
        name = f"checkpoint {kind}"
        add(name, damage.checkpoint, start, pretrain, place(name), whole, halfway, kind, part)
    tails = {"half a line": b'{"step": 34, "grad_no', "zeros": bytes(512)}
    for kind, tail in list(tails.items())[: 1 if quick else 2]:
        add(f"metrics {kind}", damage.torn_line, start, pretrain, place(f"torn-{kind}"), whole, halfway, tail)
    if quick:
        return found
    for phase in ("tokenizer", "shards"):
        add(f"disk full {phase}", disks.full_in, start, pretrain, place(f"full-{phase}"), whole, phase)
    add("disk full end", disks.full_in, start, finetune, place("full-end"), tuned, "end", finetune.n_steps)
    add("disk full metrics", disks.metrics_full, start, pretrain, place("full-metrics"), whole)
    add("disk full start", disks.full_at_start, start, pretrain, place("full-start"), whole, halfway)
    add("read-only", disks.read_only, start, pretrain, place("read-only"), whole, halfway)
    for which in ("the latest", "all", "while running"):
        add(f"deleted {which}", damage.deleted, start, pretrain, place(f"deleted-{which}"), whole, halfway, which)
    add("diverged", damage.diverged, start, pretrain, place("diverged"))
    return found


def again(ground: Ground, fault: str, job: str, phase: str, seed: int) -> Sequence[Result]:
    """A fresh run for a phase that was over before the signal came."""
    signum, workdir = signal.Signals[fault], ground.folder / "runs" / f"again-{fault}-{job}-{phase}-{seed}"
    whole = ground.folder / ("pretrain" if job == "evaluate" else job)
    if job == "evaluate":
        return [kills.evaluation(ground.start, ground.jobs[job], workdir, whole, phase, signum)]
    return kills.chain(ground.start, ground.jobs[job], workdir, whole, [phase], signum, seed, ground.slowness)
