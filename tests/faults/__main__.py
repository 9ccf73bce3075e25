"""Runs the faults and prints what became of the runs. Exit status 1 if one was lost, or a phase was never hit."""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # this process only reads checkpoints

from . import damage, disks, kills
from .checks import complete_steps
from .jobs import Process, make_jobs
from .kills import Start
from .phases import strike
from .report import Result, table

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
Scenario = Callable[[], Sequence[Result]]


def main() -> int:
    """Runs what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some of the faults, in a minute or two")
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--folder", type=Path, help="where the runs are made, and kept; default: a temporary one")
    parser.add_argument("--json", type=Path, help="also writes the results to this file")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        results = run(
            folder, quick=arguments.quick, only=arguments.only, seed=arguments.seed, workers=arguments.workers
        )
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n" + table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=1))
    missed = [] if arguments.only else never_hit(results, quick=arguments.quick)
    if missed:
        print("never hit:", ", ".join(missed))
    return 1 if missed or any(result.end == "lost" for result in results) else 0


def run(folder: Path, *, quick: bool, only: str, seed: int, workers: int) -> list[Result]:
    """Makes the undisturbed runs, then disturbs others in all ways, a few at a time."""
    begin = time.monotonic()
    jobs = make_jobs(folder.resolve())
    start = functools.partial(Process, cache=folder / "cache")
    undisturbed = {name: folder / name for name in ("pretrain", "finetune")}
    start(jobs["pretrain"], undisturbed["pretrain"]).finish()
    halfway = folder / "halfway"
    process = start(jobs["pretrain"], halfway)
    strike(process, "step", signal.SIGKILL, random.Random(seed), from_step=33)
    process.wait()
    assert complete_steps(halfway)[-1] < jobs["pretrain"].n_steps, "it was to be killed before its end"
    start(jobs["finetune"], undisturbed["finetune"]).finish()
    print(f"undisturbed runs: {time.monotonic() - begin:.0f} s", flush=True)

    chosen = scenarios(start, jobs, folder / "runs", undisturbed, halfway, quick=quick, seed=seed)
    chosen = {name: scenario for name, scenario in chosen.items() if only in name}
    results: list[Result] = []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(scenario): name for name, scenario in chosen.items()}
        for future in concurrent.futures.as_completed(futures):
            found = future.result()
            results += found
            ends = ", ".join(f"{r.phase}: {r.end}" for r in found[:10]) + (" ..." if len(found) > 10 else "")
            print(f"{time.monotonic() - begin:4.0f} s  {futures[future]}  ({ends})", flush=True)
            for result in found:
                if result.end == "lost":
                    print(f"LOST {result}", flush=True)
    return sorted(results, key=lambda r: (r.fault, r.job, r.phase))


def scenarios(
    start: Start,
    jobs: Mapping[str, object],
    runs: Path,
    undisturbed: Mapping[str, Path],
    halfway: Path,
    *,
    quick: bool,
    seed: int,
) -> dict[str, Scenario]:
    """What is done, by name; the longest first."""
    pretrain, finetune, evaluate = jobs["pretrain"], jobs["finetune"], jobs["evaluate"]
    whole, tuned = undisturbed["pretrain"], undisturbed["finetune"]
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
    add("SIGTERM pretrain", kills.chain, start, pretrain, place("term"), whole, terminated, signal.SIGTERM, seed)
    for signum in (signal.SIGKILL, signal.SIGTERM):
        phases = ("save", "end") if quick else KILLED["finetune"]
        name = f"{signum.name} finetune"
        if not (quick and signum == signal.SIGTERM):
            add(name, kills.chain, start, finetune, place(name), tuned, phases, signum, seed + 7)
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


def never_hit(results: Sequence[Result], *, quick: bool) -> list[str]:
    """What of `KILLED` no signal has hit; of a quick run only whether SIGKILL hit enough."""
    hit = {(result.fault, result.job, result.phase) for result in results}
    wanted = [
        (signum, job, phase) for signum in ("SIGKILL", "SIGTERM") for job, phases in KILLED.items() for phase in phases
    ]
    kills_ = sum(result.fault == "SIGKILL" for result in results)
    few = [f"only {kills_} SIGKILL"] if kills_ < (6 if quick else 20) else []
    return few + ([] if quick else [" ".join(key) for key in wanted if key not in hit])


if __name__ == "__main__":
    sys.exit(main())
