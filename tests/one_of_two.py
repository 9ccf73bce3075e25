"""What multiprocess_test.py has each of two processes do, one run after the other; writes down what it found."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from gpt1_jax import agreement, distributed, evaluate, finetune, pretrain
from gpt1_jax.data.hosts import host_rows
from gpt1_jax.errors import InputError
from gpt1_jax.sharding import AXES, row_blocks, to_global


def main(port: int, process_id: int, folder: Path, jobs: dict[str, Any]) -> None:
    """Does everything in the same order as the other process."""
    assert distributed.start(f"localhost:{port}", 2, process_id, timeout=60, heartbeat=20)
    found: dict[str, Any] = {"first": agreement.on_first(lambda: f"made by {process_id}"), "rows": rows_of_any_mesh()}
    found["long texts"] = [len(text) for text in agreement.on_each(lambda: "\N{OGHAM SPACE MARK}" * 5000 * process_id)]
    for name, work in {
        "bad on 1": lambda: agreement.on_all(lambda: fail_on(1, process_id, InputError("1 cannot read"))),
        "bad on 0": lambda: agreement.on_first(lambda: fail_on(0, process_id, InputError("0 cannot write"))),
        "bug on 1": lambda: agreement.on_all(lambda: fail_on(1, process_id, ZeroDivisionError("in 1"))),
        "in use": lambda: pretrain.run(jobs["pretrain"], folder / "in use"),
        "missing on 1": lambda: evaluate.run(folder / ("nowhere" if process_id else "resumed")),
        "other flags": lambda: pretrain.run(jobs["pretrain"] | {"batch_size": 8 + 8 * process_id}, folder / "other"),
        "not shared": lambda: pretrain.run(jobs["pretrain"], folder / f"of {process_id}" / "run"),
    }.items():
        found[name] = failure_of(work)
    for name in ("pretrain", "resumed"):
        found[name] = pretrain.run(jobs["pretrain"], folder / name).metrics
    pretrain.run(jobs["tensor"], folder / "tensor")
    found["finetune"] = finetune.run(jobs["finetune"], folder / "finetune", folder / "pretrain").metrics
    for name, (checkpoint, config) in jobs["evaluate"].items():
        found[name] = evaluate.run(folder / checkpoint, config)
    (folder / f"found.{process_id}.json").write_text(json.dumps(found), encoding="utf-8")


def fail_on(process: int, process_id: int, error: Exception) -> None:
    """Fails on one of the two."""
    if process_id == process:
        raise error


def failure_of(work: Callable[[], Any]) -> str:
    """Type and message of what it raises."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def rows_of_any_mesh() -> list[list[int]]:
    """A batch of the rows 0 to 15, put together from those that each process needs, on meshes that mix them."""
    numbers, batches = np.arange(jax.device_count()), []
    for order in (numbers.reshape(8, 1, 1), numbers.reshape(2, 4, 1).swapaxes(0, 1), numbers.reshape(2, 1, 4).T):
        mesh = Mesh(np.array(jax.devices())[order], AXES)
        mine = np.arange(16)[host_rows(16, **row_blocks(mesh))]
        batch = to_global({"row": mine}, mesh)["row"]
        batches.append(multihost_utils.process_allgather(batch, tiled=True).tolist())
        found = {n for shard in batch.addressable_shards for n in np.asarray(shard.data).tolist()}
        assert found == set(mine.tolist())  # nothing is read that is not needed
    return batches


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
