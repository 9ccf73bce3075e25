"""What is compared after a fault: a disturbed run ends with the very bits of an undisturbed one."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.lock import LOCK
from gpt1_jax.manifest import Manifest

_SPEED = {"steps_per_second", "tokens_per_second", "mfu"}
_one_at_a_time = threading.Lock()


def complete_steps(workdir: Path) -> list[int]:
    """The steps of the complete checkpoints."""
    folder = workdir / "checkpoints"
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal())


def load_arrays(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """Every array of a checkpoint by name: parameters, optimizer, step and random key.

    Raises:
      gpt1_jax.InputError: it is damaged.
    """
    folder = workdir / "checkpoints" / str(step)
    try:
        specs = Manifest.read(epath.Path(folder)).arrays
    except ValueError:
        specs = {}  # `restore` says what is wrong with it
    wanted = unflatten_dict({name: np.empty(spec.shape, spec.dtype) for name, spec in specs.items()}, sep="/")
    with _one_at_a_time, Checkpointer(folder.parent, read_only=True) as checkpointer:
        found = checkpointer.restore(wanted, step)
    return flatten_dict(found, sep="/")


def arrays(workdir: Path, step: int) -> dict[str, str]:
    """`load_arrays` as name -> SHA-256 of the bytes."""
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in load_arrays(workdir, step).items()}


def curve(workdir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without how fast it was."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in _SPEED} for line in lines]


def outcome(workdir: Path) -> dict[str, str]:
    """What a finished run leaves beside checkpoints and curve: relative path -> SHA-256."""
    paths = [workdir / "config.json", workdir / "results.json"]
    for folder in ("tokenizer", "shards", "predictions"):
        paths += sorted(path for path in (workdir / folder).rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(workdir)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def assert_same_run(workdir: Path, undisturbed: Path) -> None:
    """Parameters, optimizer, curve, tokenizer, shards and results, bit for bit; and nothing half is left."""
    steps = complete_steps(undisturbed)
    assert complete_steps(workdir)[-1] == steps[-1]
    assert differing(arrays(workdir, steps[-1]), arrays(undisturbed, steps[-1])) == []
    assert curve(workdir) == curve(undisturbed)
    assert differing(outcome(workdir), outcome(undisturbed)) == []
    assert leftovers(workdir) == []


def differing(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """What is in one of the two only, or is not the same."""
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def leftovers(workdir: Path) -> list[str]:
    """Temporary files that nobody needs any more."""
    return sorted(
        str(path.relative_to(workdir))
        for path in workdir.rglob("*")
        if path.name.endswith(("tmp", ".deleted")) or path.name.startswith(".probe") or path.name == "deleted"
    )
