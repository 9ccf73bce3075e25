"""The train step: the same numbers on every mesh and with any accumulation, dropout included."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.losses import Objective, lm_objective, task_objective
from gpt1_jax.metrics import MetricsWriter, Progress, read_metrics
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.optim import OptimizerConfig, Schedule, make_optimizer, make_schedule
from gpt1_jax.sharding import MeshConfig, make_mesh, to_global, tree_shardings
from gpt1_jax.train import (
    MAX_IN_FLIGHT,
    LoopConfig,
    TrainState,
    fit,
    initial_state,
    jit_train_step,
    make_train_step,
)

N_STEPS = 10
CONFIG = GPT1Config(vocab_size=50, n_special=3, n_ctx=8, n_embd=16, n_head=4, n_layer=1)
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=2)
SCHEDULES = {"learning_rate": make_schedule(OPTIMIZER, N_STEPS), "lm_coef": Schedule(np.float32(0.5))}


def lm_batch(seed: int, n_rows: int = 32) -> dict[str, np.ndarray]:
    """Rows of unequal length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, CONFIG.n_ctx + 1, (n_rows, 1))
    return {
        "tokens": rng.integers(0, CONFIG.vocab_size, (n_rows, CONFIG.n_ctx), np.int32),
        "mask": (np.arange(CONFIG.n_ctx) < lengths).astype(np.float32),
    }


def task_batch(seed: int, n_rows: int = 32) -> dict[str, np.ndarray]:
    """Two or three answers for each example, of unequal lengths; the last rows are padding."""
    rng = np.random.default_rng(seed)
    shape = (n_rows, 3, CONFIG.n_ctx)
    tokens = rng.integers(0, CONFIG.vocab_size, shape, np.int32)
    lengths = rng.integers(2, CONFIG.n_ctx + 1, (*shape[:2], 1))
    np.put_along_axis(tokens, lengths - 1, CONFIG.extract_id, axis=2)
    stream_mask = np.arange(3) < rng.integers(2, 4, (n_rows, 1))
    return {
        "tokens": tokens,
        "mask": (np.arange(CONFIG.n_ctx) < lengths).astype(np.float32) * stream_mask[..., None],
        "stream_mask": stream_mask,
        "label": rng.integers(0, 2, n_rows, np.int32),
        "weight": (np.arange(n_rows) < n_rows - 3).astype(np.float32),
    }


@dataclasses.dataclass(frozen=True)
class Job:
    """Something to train."""

    model: GPT1
    objective: Callable[[GPT1], Objective]
    batch: Callable[[int], dict[str, np.ndarray]]


LM = Job(GPT1(CONFIG), lm_objective, lm_batch)
# Without the bias of W_y: it shifts all answers alike, its true gradient is zero and Adam makes steps of the noise.
TASK = Job(GPT1(dataclasses.replace(CONFIG, clf_bias=False), ReadOut("multiple_choice")), task_objective, task_batch)


@functools.cache
def first_state(job: Job) -> Any:
    """On the host, since the compiled step takes what it is given for itself."""
    optimizer = make_optimizer(OPTIMIZER)
    state = jax.jit(lambda: nn.unbox(initial_state(job.model, optimizer, seed=1)))()
    return jax.device_get(state.replace(key=jax.random.key_data(state.key)))


def place(state: Any, shardings: Any) -> TrainState:
    return jax.device_put(state.replace(key=jax.random.wrap_key_data(state.key)), shardings)


def train(job: Job, mesh: jax.sharding.Mesh, accumulation_steps: int = 1) -> tuple[list[dict[str, float]], Any]:
    """Metrics of every step, and the final parameters."""
    optimizer = make_optimizer(OPTIMIZER)
    step = make_train_step(job.objective(job.model), optimizer, accumulation_steps=accumulation_steps)
    with jax.set_mesh(mesh):
        shardings = tree_shardings(jax.eval_shape(lambda: initial_state(job.model, optimizer, seed=1)), mesh)
        step = jit_train_step(step, mesh, shardings)
        state, history = place(first_state(job), shardings), []
        for i in range(N_STEPS):
            before = state
            state, metrics = step(state, to_global(job.batch(i), mesh), SCHEDULES)
            history.append({k: float(v) for k, v in metrics.items()})
        # Donated: the new state lies where the old one was (but for the two scalars that no step reads).
        kept = [path for path, x in jax.tree_util.tree_leaves_with_path(before) if not x.is_deleted()]
        assert [p for p in map(jax.tree_util.keystr, kept) if "hyperparams" not in p] == []
    assert int(state.step) == N_STEPS
    return history, jax.device_get(state.params)


@pytest.fixture(scope="module")
def on_one_device(devices):
    """Job -> its run on one device."""
    return functools.cache(lambda job: train(job, make_mesh(MeshConfig(), devices=devices[:1])))


def without_noise(params: Any) -> Any:
    """Drops the biases of the keys: their true gradient is zero, too."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x[::2] if "c_attn" in jax.tree_util.keystr(path) and x.ndim == 3 else x, params
    )


@pytest.mark.parametrize(
    ("job", "mesh", "accumulation"),
    [
        pytest.param(LM, (8, 1, 1), 1, id="lm-data"),
        pytest.param(LM, (1, 8, 1), 1, id="lm-fsdp"),
        pytest.param(LM, (2, 2, 2), 4, id="lm-all-accumulated"),
        pytest.param(LM, (1, 2, 4), 1, id="lm-tensor"),
        pytest.param(TASK, (2, 2, 2), 4, id="task-all-accumulated"),
        pytest.param(TASK, (1, 2, 4), 1, id="task-tensor"),
        pytest.param(TASK, (8, 1, 1), 1, id="task-data"),
        pytest.param(TASK, (1, 8, 1), 1, id="task-fsdp"),
        pytest.param(LM, (1, 1, 1), 4, id="lm-accumulated"),
        pytest.param(TASK, (1, 1, 1), 4, id="task-accumulated"),
    ],
)
def test_same_run_on_every_mesh(on_one_device, devices, job, mesh, accumulation):
    """Dropout included: which entries fall does not depend on where they are computed, nor in how many pieces."""
    expected_history, expected_params = on_one_device(job)
    mesh = make_mesh(MeshConfig(*mesh), devices=devices[: math.prod(mesh)])
    history, params = train(job, mesh, accumulation)
    for i, (metrics, expected) in enumerate(zip(history, expected_history, strict=True)):
        assert metrics == pytest.approx(expected, abs=1e-5, rel=1e-5), i
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5),
        without_noise(params),
        without_noise(expected_params),
    )


def test_metrics_of_a_step(on_one_device):
    (first, *_), _ = on_one_device(LM)
    assert set(first) == {"loss", "grad_norm", "learning_rate", "lm_coef"}
    assert first["learning_rate"] == 0.0
    assert first["loss"] == pytest.approx(np.log(CONFIG.n_rows), rel=0.02)
    (first, *_), _ = on_one_device(TASK)
    assert set(first) == {
        *("loss", "task_loss", "lm_loss", "accuracy"),
        *("grad_norm", "learning_rate", "lm_coef"),
    }
    assert first["loss"] == pytest.approx(first["task_loss"] + 0.5 * first["lm_loss"], rel=1e-6)


def test_each_step_has_its_own_key_and_the_gradients_before_clipping():
    """An objective made for the purpose: the loss tells the key, the gradients are the batch."""

    def loss(params: Any, batch: Any, rows: jax.Array, key: jax.Array, scheduled: Any) -> tuple[jax.Array, Any]:
        drawn = jax.random.uniform(key)
        return (params["kernel"] * batch["x"]).sum(), {"loss": drawn * batch["x"].shape[0], "rows": rows @ batch["x"]}

    optimizer = make_optimizer(OPTIMIZER)
    objective = Objective(lambda batch: batch, loss)
    x = np.arange(12, dtype=np.float32)

    def history(accumulation_steps: int) -> list[dict[str, float]]:
        params = {"kernel": jnp.zeros((1,))}
        state = TrainState(jnp.int32(0), params, optimizer.init(params), jax.random.key(3))
        step = jax.jit(make_train_step(objective, optimizer, accumulation_steps=accumulation_steps))
        out = []
        for _ in range(3):
            state, metrics = step(state, {"x": x}, {"learning_rate": Schedule(np.float32(0.0))})
            out.append({k: float(v) for k, v in metrics.items()})
        return out

    whole = history(1)
    assert len({metrics["loss"] for metrics in whole}) == 3
    for metrics in whole:
        assert metrics["grad_norm"] == x.sum()  # though clipped to 1
        assert metrics["rows"] == (x * x).sum()  # row i of the batch knows that it is row i
    assert history(1) == whole
    for metrics, expected in zip(history(3), whole, strict=True):  # micro-batches share the step's key, keep their rows
        assert metrics == pytest.approx(expected, rel=1e-6)


class Unfinished:
    """A metric of an update that the devices have not done yet."""

    running = 0
    most_running = 0

    def __init__(self, value: float) -> None:
        self.value, self.is_done = value, False
        Unfinished.running += 1
        Unfinished.most_running = max(Unfinished.running, Unfinished.most_running)

    def block_until_ready(self) -> None:
        Unfinished.running -= not self.is_done
        self.is_done = True

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        self.block_until_ready()
        return np.array(self.value)


def test_loop(devices, tmp_path):
    """It reports, evaluates and saves when it is told to, from where the state stands, and does not run ahead."""

    def one_update(state: TrainState, batch: Any, schedules: Any) -> tuple[TrainState, dict[str, Any]]:
        assert batch["tokens"].shape == (2, 4)
        return state.replace(step=state.step + 1), {"loss": Unfinished(float(state.step))}

    evaluated = []

    def evaluate(state: TrainState) -> dict[str, float]:
        evaluated.append(int(state.step))
        return {"heldout_loss": 1.0 / int(state.step)}

    with Checkpointer(tmp_path / "checkpoints", keep_latest=9) as checkpointer, MetricsWriter(tmp_path) as writer:
        state, results = fit(
            TrainState(jnp.int32(5), {"w": jnp.zeros(2)}, (), jax.random.key(0)),
            one_update,
            iter([{"tokens": np.zeros((2, 4), np.int32)}] * 100),
            schedules={},
            n_steps=73,
            mesh=make_mesh(MeshConfig(), devices=devices[:1]),
            loop=LoopConfig(log_every=30, eval_every=25, save_every=40),
            checkpointer=checkpointer,
            writer=writer,
            progress=Progress(73, start_step=5, peak_flops=1.0, process_index=1),
            meta={"epoch": 2},
            flops_per_token=lambda length: 1.0,
            evaluate=evaluate,
        )
        assert checkpointer.all_steps() == [40, 73]
    assert int(state.step) == 73
    assert evaluated == [25, 50, 73]
    assert results == {"heldout_loss": 1 / 73}
    lines = read_metrics(tmp_path)
    assert {m["step"]: m["loss"] for m in lines if "loss" in m} == {30: 29, 60: 59, 73: 72}
    assert [m["step"] for m in lines if "heldout_loss" in m] == [25, 50, 73]
    assert Unfinished.most_running == MAX_IN_FLIGHT + 1
