"""Pre-training and fine-tuning of seconds, on any mesh: what the tests of meshes and switches run."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from gpt1_jax.losses import LossConfig, Objective, lm_objective, task_objective
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.optim import OptimizerConfig, Schedule, make_optimizer, make_schedule
from gpt1_jax.sharding import MeshConfig, abstract_sharded, make_mesh, to_global
from gpt1_jax.train import TrainState, initial_state, jit_train_step, make_train_step, state_shardings
from gpt1_jax.zero import data_layout, sharded_over_data

N_STEPS = 10
N_ROWS = 32
CONFIG = GPT1Config(vocab_size=50, n_special=3, n_ctx=9, n_embd=16, n_head=8, n_layer=1)
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=2)
SCHEDULES = {"learning_rate": make_schedule(OPTIMIZER, N_STEPS), "lm_coef": Schedule(np.float32(0.5))}


def lm_batch(seed: int) -> dict[str, np.ndarray]:
    """Rows of unequal length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, CONFIG.n_ctx + 1, (N_ROWS, 1))
    return {
        "tokens": rng.integers(0, CONFIG.vocab_size, (N_ROWS, CONFIG.n_ctx), np.int32),
        "mask": (np.arange(CONFIG.n_ctx) < lengths).astype(np.float32),
    }


def task_batch(seed: int) -> dict[str, np.ndarray]:
    """Two or three answers for each example, of unequal lengths and weights; the last rows are padding."""
    rng = np.random.default_rng(seed)
    shape = (N_ROWS, 3, CONFIG.n_ctx)
    tokens = rng.integers(0, CONFIG.vocab_size, shape, np.int32)
    lengths = rng.integers(2, CONFIG.n_ctx + 1, (*shape[:2], 1))
    np.put_along_axis(tokens, lengths - 1, CONFIG.extract_id, axis=2)
    stream_mask = np.arange(3) < rng.integers(2, 4, (N_ROWS, 1))
    return {
        "tokens": tokens,
        "mask": (np.arange(CONFIG.n_ctx) < lengths).astype(np.float32) * stream_mask[..., None],
        "stream_mask": stream_mask,
        "label": rng.integers(0, 2, N_ROWS, np.int32),
        "weight": rng.choice([0.5, 1.0, 3.0], N_ROWS).astype(np.float32) * (np.arange(N_ROWS) < N_ROWS - 3),
    }


@dataclasses.dataclass(frozen=True)
class Job:
    """Something to train."""

    model: GPT1
    objective: Callable[[GPT1, LossConfig], Objective]
    batch: Callable[[int], dict[str, np.ndarray]]

    def changed(self, **fields: Any) -> "Job":
        """The job with another model."""
        model = GPT1(dataclasses.replace(self.model.config, **fields), self.model.readout)
        return dataclasses.replace(self, model=model)


LM = Job(GPT1(CONFIG), lm_objective, lm_batch)
# Without the bias of W_y: it shifts all answers alike, its true gradient is zero and Adam makes steps of the noise.
TASK = Job(GPT1(dataclasses.replace(CONFIG, clf_bias=False), ReadOut("multiple_choice")), task_objective, task_batch)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a job is worked off.

    Attributes:
      mesh: sizes of data, fsdp and tensor.
      zero: the optimizer is sharded over `data`.
      accumulation: micro-batches of an update.
      chunk: of the LM loss.
    """

    mesh: tuple[int, int, int] = (1, 1, 1)
    zero: bool = False
    accumulation: int = 1
    chunk: int = 0

    @property
    def devices(self) -> jax.sharding.Mesh:
        """The first devices, as a mesh."""
        return make_mesh(MeshConfig(*self.mesh), devices=jax.devices("cpu")[: math.prod(self.mesh)])

    def optimizer(self) -> Any:
        """Adam."""
        optimizer = make_optimizer(OPTIMIZER)
        return sharded_over_data(optimizer) if self.zero else optimizer

    def abstract_state(self, job: Job) -> TrainState:
        """Shapes and shardings of the state."""
        return abstract_sharded(lambda: initial_state(job.model, self.optimizer(), seed=1), self.devices)


@functools.cache
def compiled(job: Job, layout: Layout) -> jax.stages.Compiled:
    """The train step; under an XLA of 8 CPU devices the partitioner is that of TPUs and GPUs."""
    mesh, optimizer = layout.devices, layout.optimizer()
    step = make_train_step(
        job.objective(job.model, LossConfig(layout.chunk)),
        optimizer,
        accumulation_steps=layout.accumulation,
        layout=data_layout(job.model) if layout.zero else None,
    )
    step = jit_train_step(step, mesh, state_shardings(job.model, optimizer, mesh))
    with jax.set_mesh(mesh):
        return step.lower(layout.abstract_state(job), to_global(job.batch(0), mesh), SCHEDULES).compile()


@functools.cache
def first_state(job: Job) -> Any:
    """On the host, since the compiled step takes what it is given for itself."""
    state = jax.jit(lambda: nn.unbox(initial_state(job.model, make_optimizer(OPTIMIZER), seed=1)))()
    return jax.device_get(state.replace(key=jax.random.key_data(state.key)))


def place(state: Any, job: Job, layout: Layout) -> TrainState:
    """A state of `first_state` on the devices."""
    shardings = state_shardings(job.model, layout.optimizer(), layout.devices)
    return jax.device_put(state.replace(key=jax.random.wrap_key_data(state.key)), shardings)


def train(
    job: Job, layout: Layout, state: TrainState | None = None, until: int = N_STEPS
) -> tuple[list[dict[str, float]], TrainState]:
    """Metrics of every step up to `until`, and the state after it; from fresh weights without a state."""
    step, mesh = compiled(job, layout), layout.devices
    state = place(first_state(job), job, layout) if state is None else state
    history = []
    for i in range(int(state.step), until):
        before = state
        state, metrics = step(state, to_global(job.batch(i), mesh), SCHEDULES)
        history.append({name: float(value) for name, value in metrics.items()})
        # Donated: the new state lies where the old one was (but for the two scalars that no step reads).
        kept = [path for path, x in jax.tree_util.tree_leaves_with_path(before) if not x.is_deleted()]
        assert [p for p in map(jax.tree_util.keystr, kept) if "hyperparams" not in p] == []
    assert int(state.step) == until
    return history, state


@functools.cache
def on_one_device(job: Job) -> tuple[list[dict[str, float]], Any]:
    """Metrics of every step and the last parameters, what all meshes are compared with."""
    history, state = train(job, Layout())
    return history, jax.device_get(state.params)


def differences(job: Job, layout: Layout) -> tuple[float, float]:
    """The largest difference from one device in a metric of any step, and in a parameter after the last one."""
    (history, state), (expected, expected_params) = train(job, layout), on_one_device(job)
    metrics = max(abs(a[name] - b[name]) for a, b in zip(history, expected, strict=True) for name in b)
    return metrics, max_difference(jax.device_get(state.params), expected_params)


def max_difference(params: Any, expected: Any) -> float:
    """The largest difference between two trees of parameters, biases of the keys apart.

    Their true gradient is zero: Adam makes whole steps of what is nothing but rounding.
    """

    def one(path: Any, x: np.ndarray, y: np.ndarray) -> float:
        keys = "c_attn" in jax.tree_util.keystr(path) and x.ndim == 3
        return float(np.abs(x - y)[:: 2 if keys else 1].max())

    return max(jax.tree.leaves(jax.tree_util.tree_map_with_path(one, params, expected)))
