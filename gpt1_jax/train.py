"""TrainState, the sharded train and eval steps, and the one training loop.

A train step is `(state, batch, schedules) -> (state, metrics)`. The batch of step s and its randomness are pure
functions of (seed, s), so a run that stops at any step and goes on elsewhere is the same run.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.config import check_fields
from gpt1_jax.errors import InputError
from gpt1_jax.losses import Batch, Metrics, Objective
from gpt1_jax.metrics import MetricsWriter
from gpt1_jax.model import GPT1
from gpt1_jax.optim import Schedule
from gpt1_jax.precision import cast_matrices
from gpt1_jax.progress import TrainingProgress
from gpt1_jax.sharding import batch_sharding, computes_side_by_side, summed_over_data, to_global, tree_shardings
from gpt1_jax.stop import Interrupted as Interrupted  # part of what `fit` raises
from gpt1_jax.stop import raise_if_stopped, stop_signals
from gpt1_jax.zero import DataLayout, ShardedOverData, renamed

HostBatch = Mapping[str, np.ndarray]


def updates_ahead(mesh: Mesh) -> int:
    """Updates that may be dispatched beyond the one that runs: enough to keep devices busy.

    Without a limit hundreds of batches pile up, and a stop waits for all of them.
    """
    return 0 if computes_side_by_side(mesh) else 8


class TrainState(flax.struct.PyTreeNode):
    """All that a run has to remember.

    Attributes:
      step: int32 [], updates done.
      params: the model's parameters, float32.
      opt_state: the optimizer's state.
      key: typed random key of the run; step s uses `fold_in(key, s)`.
    """

    step: Array
    params: Any
    opt_state: Any
    key: Array


def initial_state(
    model: GPT1, optimizer: optax.GradientTransformation, seed: int | np.uint32 | jax.Array
) -> TrainState:
    """The state before step 1, its arrays in Flax's partitioning boxes (see `sharding.jit_init`)."""
    key = jax.random.key(seed)
    params = model.init_partitioned(jax.random.fold_in(key, 0x1417))  # no step's key
    params = renamed(params) if isinstance(optimizer, ShardedOverData) else params
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), key)


def state_shardings(model: GPT1, optimizer: optax.GradientTransformationExtraArgs, mesh: Mesh) -> TrainState:
    """Shardings of a `TrainState`, in its shape."""
    return tree_shardings(jax.eval_shape(lambda: initial_state(model, optimizer, 0)), mesh)


Schedules = Mapping[str, Schedule]
TrainStep = Callable[[TrainState, Batch, Schedules], tuple[TrainState, Metrics]]
JittedStep = jax.stages.Wrapped
"""A `TrainStep` that is compiled when it is called, or ahead of that through its `lower`."""


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformationExtraArgs,
    *,
    accumulation_steps: int = 1,
    layout: DataLayout | None = None,
    gradient_dtype: str = "auto",
) -> TrainStep:
    """One update from one global batch.

    The batch is worked off in `accumulation_steps` micro-batches; since the objective's weights are normalised over the
    whole batch first, their gradients simply add up to the gradients of one large batch.

    Args:
      objective: what is minimised.
      optimizer: of the raw gradients.
      accumulation_steps: number of micro-batches.
      layout: with an optimizer that is sharded over `data`, see zero.py.
      gradient_dtype: in which the gradients of matrices are summed over `data`, see `sharding.MeshConfig`.

    Returns:
      (state, batch, schedules) -> (state, metrics). The schedules are "learning_rate" and what else the objective asks
      for; the metrics are float32 scalars: those of the objective, "grad_norm" (before clipping) and the scheduled
      values.
    """
    value_and_grad = jax.value_and_grad(objective.loss, has_aux=True)
    wire = gradient_dtype
    if wire == "auto":
        wire = objective.dtype if accumulation_steps == 1 else "float32"  # a sum of many has more digits than each

    def at_once(params: Any, *inputs: Any) -> tuple[Any, Metrics]:
        (_, metrics), grads = value_and_grad(params, *inputs)
        return jax.tree.map(lambda grad: grad.astype(jnp.float32), grads), metrics

    def gradients(params: Any, batch: Batch, rows: Array, key: Array, scheduled: Metrics) -> tuple[Any, Metrics]:
        """Of the given rows of the normalised batch, added up."""
        if accumulation_steps == 1:
            return at_once(params, batch, rows, key, scheduled)
        # Micro-batch i takes every k-th row from i on, so that each device keeps the rows it holds.
        micro = jax.tree.map(lambda x: x.reshape(-1, accumulation_steps, *x.shape[1:]).swapaxes(0, 1), (batch, rows))

        def part(piece: tuple[Batch, Array]) -> tuple[Any, Metrics]:
            return at_once(params, *piece, key, scheduled)

        def add(total: tuple[Any, Metrics], piece: tuple[Batch, Array]) -> tuple[tuple[Any, Metrics], None]:
            return jax.tree.map(jnp.add, total, part(piece)), None

        shapes = jax.eval_shape(part, jax.tree.map(lambda x: x[0], micro))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(add, zeros, micro)[0]

    def train_step(state: TrainState, batch: Batch, schedules: Schedules) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(state.key, state.step)
        scheduled = {name: schedule(state.step) for name, schedule in schedules.items()}
        batch = objective.normalize(batch)
        rows = jnp.arange(next(iter(batch.values())).shape[0])
        params = state.params
        if layout is not None:  # cast before they travel, in bfloat16 at half the bytes
            params = layout.gather(cast_matrices(params, objective.dtype))
        grads, metrics = summed_over_data(gradients, wire)(params, batch, rows, key, scheduled)
        grads = grads if layout is None else layout.scatter(grads)
        updates, opt_state = optimizer.update(
            grads, state.opt_state, state.params, learning_rate=scheduled["learning_rate"]
        )
        metrics |= {"grad_norm": optax.tree.norm(grads), **scheduled}
        params = optax.apply_updates(state.params, updates)
        return state.replace(step=state.step + 1, params=params, opt_state=opt_state), metrics

    return train_step


def jit_train_step(train_step: TrainStep, mesh: Mesh, shardings: TrainState) -> JittedStep:
    """The step over the mesh (what `pjit` was): rows sharded, state in place and donated, metrics on every device."""
    return jax.jit(
        train_step,
        in_shardings=(shardings, batch_sharding(mesh), NamedSharding(mesh, PartitionSpec())),
        out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
    )


def jit_eval_step(eval_step: Callable[[Any, Batch], Any], mesh: Mesh, param_shardings: Any) -> Callable[..., Any]:
    """`(params, batch) -> outputs` over the mesh; every process gets all of the outputs."""
    return jax.jit(
        eval_step,
        in_shardings=(param_shardings, batch_sharding(mesh)),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """When the training loop reports, evaluates and saves, all in updates.

    Attributes:
      log_every: metrics and progress.
      eval_every: held-out evaluation; 0 only at the end.
      save_every: checkpoints; 0 only at the end.
      keep_latest: newest checkpoints kept.
      keep_every: checkpoints whose step divides by this are kept for good; 0 keeps none that way.
      keep_best: the checkpoint with the lowest held-out loss is kept as well, and is what the workdir then stands for
        (pre-training; fine-tuning always keeps the best).
    """

    log_every: int = 10
    eval_every: int = 1000
    save_every: int = 1000
    keep_latest: int = 2
    keep_every: int = 0
    keep_best: bool = False

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_fields(self, "loop")
        for name, least in (
            ("log_every", 1),
            ("eval_every", 0),
            ("save_every", 0),
            ("keep_latest", 1),
            ("keep_every", 0),
        ):
            if getattr(self, name) < least:
                raise InputError(f"loop.{name}={getattr(self, name)} must be at least {least}")
        if self.keep_best and self.save_every and (not self.eval_every or self.save_every % self.eval_every):
            raise InputError(
                f"loop.keep_best=True needs an evaluation with every checkpoint: loop.save_every={self.save_every} "
                f"must be a multiple of loop.eval_every={self.eval_every}"
            )
        if self.keep_every and (not self.save_every or self.keep_every % self.save_every):
            raise InputError(
                f"loop.keep_every={self.keep_every} must be a multiple of loop.save_every={self.save_every}: only what "
                "is saved can be kept"
            )

    def n_kept(self, n_steps: int) -> int:
        """How many checkpoints a run of so many updates leaves, its best not counted."""
        n_saved = 1 + ((n_steps - 1) // self.save_every if self.save_every else 0)
        n_newest = min(n_saved, self.keep_latest)
        n_for_good = (n_saved - n_newest) * self.save_every // self.keep_every if self.keep_every else 0
        return n_newest + n_for_good


class Diverged(RuntimeError):
    """The loss or its gradient is not a number any more; nothing of it was saved."""


def fit(
    state: TrainState,
    train_step: TrainStep,
    batches: Iterator[HostBatch],
    *,
    schedules: Schedules,
    n_steps: int,
    mesh: Mesh,
    loop: LoopConfig,
    checkpointer: Checkpointer,
    writer: MetricsWriter,
    progress: TrainingProgress,
    flops_per_token: Callable[[int], float],
    evaluate: Callable[[TrainState], dict[str, float]] | None = None,
    stop_early: Callable[[int], bool] | None = None,
) -> tuple[TrainState, dict[str, float] | None]:
    """Trains from `state.step` to `n_steps`, or until `stop_early` says so.

    Args:
      state: fresh or restored.
      train_step: compiled, see `jit_train_step`.
      batches: this host's part of the batch of step `state.step`, and of those that follow.
      schedules: the learning rate, and lambda where the objective has it.
      n_steps: updates in all.
      mesh: where the global batch lives; current while the loop runs.
      loop: intervals.
      checkpointer: takes the state at `save_every` and at the end, with the evaluation of that step if there is one.
      writer: takes the metrics.
      progress: shows them.
      flops_per_token: sequence length -> FLOPs of a token, for the MFU.
      evaluate: state -> held-out metrics.
      stop_early: number of updates done -> whether these are enough. Asked when an evaluation is saved, and first of
        all, as the run may have been killed in between.

    Returns:
      the state after the last update, and the last evaluation (None if there was nothing left to do).

    Raises:
      Interrupted: SIGTERM or Ctrl-C; saved if a step was done.
      Diverged: the loss or its gradient became NaN or infinite.
    """
    step = done_before = int(state.step)
    first_timed = done_before + 2  # the one before it compiles
    metrics: Metrics = {}
    in_flight: collections.deque[Metrics] = collections.deque()
    max_ahead = updates_ahead(mesh)
    results: dict[str, float] | None = None

    def report(evaluate: Callable[[TrainState], dict[str, float]]) -> dict[str, float]:
        with progress.paused():
            results = evaluate(state)
        writer.write(step, results)
        progress.note(f"step {step}: " + "  ".join(f"{k} {v:.4g}" for k, v in results.items()))
        return results

    def save(results: dict[str, float] | None) -> None:
        _check_finite(metrics, step, checkpointer)
        writer.flush()  # the curve up to a checkpoint is on the disk before the checkpoint is
        checkpointer.save(step, state, results)

    def is_due(every: int) -> bool:
        return step == n_steps or bool(every and step % every == 0)

    def train() -> None:
        nonlocal state, step, metrics, results
        if evaluate is not None and step and is_due(loop.eval_every) and not checkpointer.metrics(step):
            results = report(evaluate)  # it was stopped in just this evaluation
            save(results)
        enough = stop_early is not None and stop_early(step)
        while step < n_steps and not enough:
            raise_if_stopped()
            batch = to_global(dict(next(batches)), mesh)
            state, metrics = train_step(state, batch, schedules)
            step += 1
            in_flight.append(metrics)
            if len(in_flight) > (max_ahead if step > first_timed else 0):
                jax.block_until_ready(in_flight.popleft())
            n_tokens = batch["tokens"].size
            progress.advance(step, tokens=n_tokens, flops=n_tokens * flops_per_token(batch["tokens"].shape[-1]))
            if is_due(loop.log_every):
                values = _check_finite(metrics, step, checkpointer)
                writer.write(step, {**values, **progress.rates()})
                progress.show(step, values)
            elif step == first_timed:  # how long it all takes is of use before `log_every` updates have been done
                progress.show(step, _check_finite(metrics, step, checkpointer))
            results = None
            if evaluate is not None and is_due(loop.eval_every):
                results = report(evaluate)
            if is_due(loop.save_every):
                with progress.paused():
                    save(results)
                    enough = results is not None and stop_early is not None and stop_early(step)
        if enough and step < n_steps:
            progress.note(f"step {step} is the last of {n_steps}: no improvement for too long")
        checkpointer.wait()
        raise_if_stopped()

    with stop_signals(), jax.set_mesh(mesh):
        try:
            train()
        except Interrupted as stop:
            if step > done_before and checkpointer.latest_step() != step:
                save(results)
            checkpointer.wait()
            raise Interrupted(stop.signum, step) from None
    return state, results


def _check_finite(metrics: Metrics, step: int, checkpointer: Checkpointer) -> dict[str, float]:
    values = {k: float(v) for k, v in jax.device_get(metrics).items()}
    values = dict(sorted(values.items(), key=lambda item: item[0] != "loss"))  # the loss first
    # A gradient that is no number has spoilt the parameters, though the loss shows it only at the next step.
    for name in ("loss", "grad_norm"):
        if not np.isfinite(values.get(name, 0.0)):
            last = checkpointer.latest_step()
            kept = "there is no checkpoint yet" if last is None else f"the last good checkpoint is step {last}"
            raise Diverged(
                f"{name} is {values[name]} at step {step}; {kept}. Lower optimizer.learning_rate or lengthen the "
                "warm-up, and start the same command again in a new workdir"
            )
    return values
