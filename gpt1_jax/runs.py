"""What every training workflow does around its loop: workdir, devices, the state it starts from, results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import optax
from absl import logging
from jax.sharding import Mesh

from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.errors import InputError
from gpt1_jax.files import write_json
from gpt1_jax.model import GPT1
from gpt1_jax.sharding import abstract_sharded, init_sharded, tree_shardings
from gpt1_jax.train import TrainState, initial_state
from gpt1_jax.version import __version__
from gpt1_jax.workdir import open_workdir

MUTABLE = ("version", "config.loop", "config.mesh", "config.require_accelerator", "config.max_eval_batches")
"""What may change when a run is continued: none of it changes the numbers."""


@contextlib.contextmanager
def open_run(workdir: Path, record: dict[str, Any], *, require_accelerator: bool) -> Iterator[None]:
    """Prints the devices, then locks the workdir and writes its config.json, or checks it against a run begun before.

    Raises:
      InputError: no accelerator where one is required, or a workdir that cannot be used.
    """
    backend = jax.default_backend()
    logging.info("backend %s, %d devices, %d processes", backend, jax.device_count(), jax.process_count())
    if require_accelerator and backend == "cpu":
        raise InputError(
            "require_accelerator=True, but JAX found only the CPU; install gpt1-jax[tpu] or gpt1-jax[cuda12], "
            "or check that the accelerator is free"
        )
    with open_workdir(workdir, {"version": __version__, **record}, mutable=MUTABLE):
        yield


def describe_run(mesh: Mesh, *, n_steps: int, **numbers: int) -> None:
    """Prints what is about to happen."""
    logging.info("mesh %s", ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items()))
    logging.info("%d updates; %s", n_steps, ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in numbers.items()))


def restore_or_init(
    model: GPT1,
    optimizer: optax.GradientTransformationExtraArgs,
    seed: int,
    mesh: Mesh,
    checkpointer: Checkpointer,
    *,
    params: Any = None,
) -> tuple[TrainState, TrainState]:
    """The state to go on from and its shardings: the latest checkpoint, or fresh, with those `params` that
    are given by name.
    """

    def init() -> TrainState:
        return initial_state(model, optimizer, seed)

    step = checkpointer.latest_step()
    if step is not None:
        state, _ = checkpointer.restore(abstract_sharded(init, mesh), step)
        logging.info("continuing from step %d", step)
        return state, tree_shardings(jax.eval_shape(init), mesh)
    state, shardings = init_sharded(init, mesh)
    if params is not None:
        state = state.replace(
            params={**state.params, **jax.device_put(params, {k: shardings.params[k] for k in params})}
        )
    return state, shardings


def write_results(workdir: Path, results: dict[str, Any]) -> None:
    """Writes results.json (process 0 only), whole or not at all."""
    if jax.process_index() == 0:
        write_json(workdir / "results.json", results)
