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
from collections.abc import Sequence
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # this process only reads checkpoints

from .checks import complete_steps
from .jobs import Process, make_jobs
from .phases import strike
from .report import Result, table
from .scenarios import KILLED, Ground, again, scenarios

ALONE_S = 15.0
"""What the undisturbed run of pre-training takes at most on two cores that have nothing else to do."""


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
    missed = [] if arguments.only or arguments.quick else never_hit(results)
    if missed:
        print("never hit:", ", ".join(map(" ".join, missed)))
    return 1 if missed or any(result.end == "lost" for result in results) else 0


def run(folder: Path, *, quick: bool, only: str, seed: int, workers: int) -> list[Result]:
    """Makes the undisturbed runs, then disturbs others in all ways, a few at a time."""
    begin = time.monotonic()
    jobs = make_jobs(folder.resolve())
    start = functools.partial(Process, cache=folder / "cache")
    start(jobs["pretrain"], folder / "pretrain").finish()
    slowness = max(1.0, (time.monotonic() - begin) / ALONE_S)
    halfway = folder / "halfway"
    process = start(jobs["pretrain"], halfway)
    strike(process, "step", signal.SIGKILL, random.Random(seed), from_step=33)
    process.wait()
    assert complete_steps(halfway)[-1] < jobs["pretrain"].n_steps, "it was to be killed before its end"
    start(jobs["finetune"], folder / "finetune").finish()
    print(f"undisturbed runs: {time.monotonic() - begin:.0f} s (slowness {slowness:.1f})", flush=True)

    ground = Ground(start, jobs, folder, slowness)
    chosen = scenarios(ground, quick=quick, seed=seed)
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
    for attempt in range(0 if only or quick else 3):
        for fault, job, phase in never_hit(results):
            results += again(ground, fault, job, phase, seed + 100 * (attempt + 1))
            print(f"{time.monotonic() - begin:4.0f} s  once more: {fault} {job} {phase}", flush=True)
    return sorted(results, key=lambda r: (r.fault, r.job, r.phase))


def never_hit(results: Sequence[Result]) -> list[tuple[str, str, str]]:
    """What of `KILLED` neither signal has hit."""
    hit = {(result.fault, result.job, result.phase) for result in results}
    wanted = [
        (fault, job, phase) for fault in ("SIGKILL", "SIGTERM") for job, phases in KILLED.items() for phase in phases
    ]
    return [one for one in wanted if one not in hit]


if __name__ == "__main__":
    sys.exit(main())
