"""What every training workflow does around its loop: workdir, devices, the state it starts from, results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from absl import logging
from jax.sharding import Mesh

from gpt1_jax import agreement
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.config import to_dict
from gpt1_jax.data.windows import Batches, prefetch
from gpt1_jax.errors import LESS_MEMORY, InputError, counted
from gpt1_jax.files import write_json
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.memory_estimate import MemoryEstimate
from gpt1_jax.metrics import MetricsWriter
from gpt1_jax.mirror import checkpoints_of, remote_of
from gpt1_jax.model import GPT1, GPT1Config, ReadOut, describe_model
from gpt1_jax.optim import Schedule
from gpt1_jax.progress import TrainingProgress
from gpt1_jax.sharding import abstract_sharded, check_mesh, jit_init, place
from gpt1_jax.train import LoopConfig, Schedules, TrainState, TrainStep, fit, initial_state
from gpt1_jax.version import __version__
from gpt1_jax.workdir import RESERVE_BYTES, Workdir, finished_steps, open_workdir
from gpt1_jax.zero import made_whole

MUTABLE = (
    *("version", "best"),
    *(f"config.{name}" for name in ("loop", "log_every", "max_eval_batches", "predict_train", "predict_test", "plots")),
    *(f"config.{name}" for name in ("mesh", "require_accelerator", "shards")),
)
"""What may change when a run is continued: none of it changes what is learned, but for the rounding of sums (`mesh`).
`config.shards` is a place; what has to be there is in `corpus`."""

BYTES_PER_PARAMETER = 12  # of a checkpoint: the parameter and two moments, float32


def check_seed(seed: int) -> None:
    """Refuses a seed that one of the generators would not take.

    Raises:
      InputError: it is negative, or has more than 32 bits.
    """
    if not 0 <= seed < 1 << 32:
        raise InputError(f"seed={seed} must be from 0 to {(1 << 32) - 1}")


def check_sizes(config: Any, model: GPT1Config, mesh: Mesh) -> None:
    """Refuses sizes of a `PretrainConfig` or `FinetuneConfig` that do not divide over the mesh, see `check_mesh`."""
    check_mesh(
        mesh,
        batch_size=config.batch_size,
        **model.mesh_sizes,
        accumulation_steps=config.accumulation_steps,
        shard_optimizer=config.mesh.shard_optimizer,
    )


@contextlib.contextmanager
def open_run(
    workdir: Path,
    record: dict[str, Any],
    *,
    config_type: type,
    made_from: Mapping[str, tuple[str, ...]],
    n_parameters: int,
    n_checkpoints: int,
    require_accelerator: bool,
) -> Iterator[None]:
    """Prints the devices, then locks the workdir and writes its config.json, or checks it against a run begun before.

    A run that is refused before it has made anything takes its config.json with it. One that was refused or stopped
    later, but before its first checkpoint, leaves its folders to a corrected command in the same workdir, where they
    are not `made_from` what was corrected (see `open_workdir`). `config_type` is the dataclass of `record["config"]`.

    Raises:
      InputError: no accelerator where one is required, or a workdir that cannot be used.
    """
    backend = jax.default_backend()
    logging.info(
        "%s of %s (%s), %s",
        counted(jax.device_count(), "device"),
        backend,
        jax.devices()[0].device_kind,
        counted(jax.process_count(), "process", "processes"),
    )
    if require_accelerator and backend == "cpu":
        raise InputError(
            "require_accelerator=True, but JAX found only the CPU; install gpt1-jax[tpu] or gpt1-jax[cuda12], "
            "or check that the accelerator is free"
        )
    record = {"version": __version__, **record}
    defaults = {
        "config": to_dict(config_type()),
        "model": to_dict(GPT1Config()),
        "readout": to_dict(ReadOut("multiple_choice")),
        "init_from": None,
    }
    space = space_needed(workdir, n_parameters, n_checkpoints)
    with open_workdir(
        workdir, record, mutable=MUTABLE, made_from=made_from, defaults=defaults, min_free_bytes=space
    ) as opened:
        try:
            _check_shared(opened)
            yield
        except InputError:
            opened.forget()
            raise


def space_needed(workdir: Path, n_parameters: int, n_checkpoints: int) -> int:
    """Bytes on the disk of a workdir for those of so many checkpoints that it does not have; few, of a bucket's."""
    n_missing = max(1, n_checkpoints - len(finished_steps(workdir))) if remote_of(workdir) is None else 0
    return n_missing * n_parameters * BYTES_PER_PARAMETER + RESERVE_BYTES


def _check_shared(opened: Workdir) -> None:
    """Refuses a workdir that is another folder for another process; or what process 0 alone was refused."""
    user = agreement.on_first(opened.user)
    if opened.user() != user and remote_of(opened.path) is None:  # each machine has a mirror of its own
        raise InputError(
            f"workdir={opened.path} is another folder on {socket.gethostname()} than for process 0, whose checkpoints "
            "need a part of every process: choose one on a disk that all machines share, or gs://bucket/run"
        )


def describe_run(
    workdir: Path,
    mesh: Mesh,
    model: GPT1,
    *,
    memory: MemoryEstimate,
    n_steps: int,
    learning_rate: Schedule,
    shard_optimizer: bool = False,
    **numbers: int,
) -> None:
    """Prints what is about to happen, and warns where nothing is learned."""
    with jax.set_mesh(mesh):
        kernel = model.config.attention_kernel(model.config.n_ctx)
    shape = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    shape += ", optimizer sharded" * shard_optimizer
    how = (
        "" if model.config.trunk == "lstm" else f"; attention {kernel}{' (auto)' * (model.config.attention == 'auto')}"
    )
    logging.info("mesh %s%s", shape, how)
    logging.info("model: %s", describe_model(model.config, model.readout))
    logging.info("memory of a device: %s", memory)
    if not memory.fits:
        logging.warning("this may be more than a device has: if it is, use %s", LESS_MEMORY)
    logging.info(
        "%s updates; %s", f"{n_steps:,}", ", ".join(f"{n:,} {s.replace('_', ' ')}" for s, n in numbers.items())
    )
    logging.info("results go to %s", workdir)
    if n_steps == 1 and not learning_rate(0):
        logging.warning(
            "the rate of a run's first update is 0 under a warm-up: this one, of one update, learns nothing; give it "
            "more, or optimizer.warmup_steps=0 (warmup_fraction=0 where it has none)"
        )


@dataclasses.dataclass(frozen=True)
class Trained:
    """What `train` gives.

    Attributes:
      params: the parameters of the best checkpoint, or of the last update where none is kept as the best.
      step: the update they are from.
      last_step: the last update; fewer than planned if the run ran out of patience.
      metrics: the evaluation after the last update; None if there was nothing left to do.
    """

    params: Any
    step: int
    last_step: int
    metrics: dict[str, float] | None


def train(
    workdir: Path,
    model: GPT1,
    optimizer: optax.GradientTransformationExtraArgs,
    train_step: TrainStep,
    batches: Batches,
    *,
    schedules: Schedules,
    n_steps: int,
    mesh: Mesh,
    loop: LoopConfig,
    seed: int,
    evaluate: Callable[[Any], dict[str, float]] | None,
    params: Any = None,
    best: Mapping[str, Any] | None = None,
    patience: int = 0,
    flops_per_token: Callable[[int], float] | None = None,
) -> Trained:
    """Trains in a workdir from its latest checkpoint, or from the start, to the end.

    Args:
      workdir: open, see `open_run`.
      model: the network.
      optimizer: its optimizer.
      train_step: compiled, see `gpt1_jax.train.jit_train_step`.
      batches: this host's part of the batch of every step.
      schedules: what changes with the step.
      n_steps: updates in all.
      mesh: device mesh.
      loop: intervals.
      seed: of the initial parameters and of dropout.
      evaluate: parameters -> metrics.
      params: initial parameters by name, where they are not to be drawn.
      best: `best_metric` and `best_mode` of the `Checkpointer`.
      patience: ends the run where the best checkpoint is so many updates old; 0 never does.
      flops_per_token: sequence length -> FLOPs of a token, for the MFU; None: L1 with the whole model.
    """
    agreement.ready()
    keep_every = loop.keep_every or None
    best = dict(best or {})
    whole = made_whole(model, mesh)
    with Checkpointer(
        checkpoints_of(workdir), keep_latest=loop.keep_latest, keep_every=keep_every, **best
    ) as checkpointer:
        state = restore_or_init(model, optimizer, seed, mesh, checkpointer, params=params)
        step = int(state.step)
        if step >= n_steps:
            logging.info("this run was finished before, with step %d: nothing is left to train", step)
        elif step:
            logging.info("continuing from step %d", step)

        def out_of_patience(step: int) -> bool:  # a question to what is on the disk, so that a resume asks the same
            return step - (checkpointer.best_step() or 0) >= patience

        with (
            contextlib.closing(prefetch(batches, step)) as ahead,
            agreement.on_all(lambda: MetricsWriter(workdir, resume_step=step)) as writer,
            TrainingProgress(n_steps, start_step=step, show=jax.process_index() == 0) as progress,
        ):
            state, metrics = fit(
                state,
                train_step,
                ahead,
                schedules=schedules,
                n_steps=n_steps,
                mesh=mesh,
                loop=loop,
                checkpointer=checkpointer,
                writer=writer,
                progress=progress,
                flops_per_token=flops_per_token or functools.partial(train_flops_per_token, model.config),
                evaluate=None if evaluate is None else lambda state: evaluate(whole(state.params)),
                stop_early=out_of_patience if patience else None,
            )
        last_step = int(state.step)
        step = (checkpointer.best_step() if best else None) or last_step
        kept = state.params if step == last_step else checkpointer.restore_params(step, state.params)
    return Trained(whole(kept), step, last_step, metrics)


def restore_or_init(
    model: GPT1,
    optimizer: optax.GradientTransformationExtraArgs,
    seed: int,
    mesh: Mesh,
    checkpointer: Checkpointer,
    *,
    params: Any = None,
) -> TrainState:
    """The state to go on from: the latest checkpoint, or a fresh one with those `params` that are given by name."""
    step = checkpointer.latest_step()
    if step is not None:
        abstract = abstract_sharded(lambda: initial_state(model, optimizer, seed), mesh)
        return checkpointer.restore(abstract, step)
    init, shardings = _compiled_init(model, optimizer, mesh)
    state = init(np.uint32(seed))
    if params is not None:
        given = place(params, {name: shardings.params[name] for name in params})
        state = state.replace(params={**state.params, **given})
    return state


@functools.lru_cache(maxsize=8)
def _compiled_init(
    model: GPT1, optimizer: optax.GradientTransformationExtraArgs, mesh: Mesh
) -> tuple[Callable[[Any], TrainState], TrainState]:
    # The seed is an input: the runs of several seeds, or of a sweep, share one compilation.
    return jit_init(lambda seed: initial_state(model, optimizer, seed), mesh)


def write_results(workdir: Path, results: dict[str, Any]) -> None:
    """Writes results.json (process 0 only), whole or not at all."""
    if jax.process_index() == 0:
        write_json(workdir / "results.json", results)
