"""The train step's metrics, keys and rows, and the training loop. On many devices: mesh_test.py."""

import io
import itertools
import os
import re
import signal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jobs import LM, OPTIMIZER, TASK, on_one_device

from gpt1_jax import train
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.losses import Objective
from gpt1_jax.metrics import MetricsWriter, read_metrics
from gpt1_jax.optim import Schedule, make_optimizer
from gpt1_jax.progress import TrainingProgress
from gpt1_jax.sharding import MeshConfig, make_mesh
from gpt1_jax.stop import Interrupted, raise_if_stopped
from gpt1_jax.train import LoopConfig, TrainState, fit, make_train_step


def test_metrics_of_a_step():
    (first, *_), _ = on_one_device(LM)
    assert set(first) == {"loss", "grad_norm", "learning_rate", "lm_coef"}
    assert first["learning_rate"] == 0.0
    assert first["loss"] == pytest.approx(np.log(LM.model.config.n_rows), rel=0.02)
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


def test_how_many_checkpoints_a_run_leaves():
    for latest, every, n_steps in itertools.product((1, 2, 5), (0, 3, 6), (1, 2, 3, 4, 18, 19, 31)):
        saved = sorted({*range(3, n_steps, 3), n_steps})
        kept = {*saved[-latest:], *(step for step in saved if every and step % every == 0)}
        assert LoopConfig(save_every=3, keep_latest=latest, keep_every=every).n_kept(n_steps) == len(kept)
    assert LoopConfig(save_every=0).n_kept(1000) == 1


@pytest.mark.parametrize("ahead", [None, 8])
def test_loop(ahead, devices, tmp_path, monkeypatch):
    """It reports, evaluates and saves when it is told to, from where the state stands, and does not run ahead."""

    def one_update(state: TrainState, batch: Any, schedules: Any) -> tuple[TrainState, dict[str, Any]]:
        assert batch["tokens"].shape == (2, 4)
        return state.replace(step=state.step + 1), {"loss": Unfinished(float(state.step))}

    Unfinished.running = Unfinished.most_running = 0
    if ahead is not None:
        monkeypatch.setattr(train, "updates_ahead", lambda mesh: ahead)
    evaluated, shown = [], io.StringIO()

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
            progress=TrainingProgress(73, start_step=5, peak_flops=1.0, stream=shown),
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
    assert re.match(r"7/73 \(10%\) \| loss 6 \| [0-9:]+ left\n", shown.getvalue())  # the second that this process does
    assert Unfinished.most_running == 1 + (ahead or 0)  # a CPU does not run ahead


def test_stopped_in_an_evaluation(devices, tmp_path):
    """It ends there, the step saved; the next start evaluates that step first, and its checkpoint gets the result."""

    def one_update(state: TrainState, batch: Any, schedules: Any) -> tuple[TrainState, dict[str, Any]]:
        return state.replace(step=state.step + 1), {"loss": jnp.float32(1.0)}

    def start(step: int, evaluate: Any) -> dict[str, float] | None:
        with (
            Checkpointer(tmp_path / "checkpoints") as checkpointer,
            MetricsWriter(tmp_path, resume_step=step) as writer,
        ):
            _, results = fit(
                TrainState(jnp.int32(step), {"w": jnp.zeros(2)}, (), jax.random.key(0)),
                one_update,
                iter([{"tokens": np.zeros((2, 4), np.int32)}] * 10),
                schedules={},
                n_steps=6,
                mesh=make_mesh(MeshConfig(), devices=devices[:1]),
                loop=LoopConfig(log_every=1, eval_every=3, save_every=3),
                checkpointer=checkpointer,
                writer=writer,
                progress=TrainingProgress(6, start_step=step, show=False),
                flops_per_token=lambda length: 1.0,
                evaluate=evaluate,
            )
            assert checkpointer.metrics(3) == {"heldout_loss": 3.0}
            return results

    def stopped(state: TrainState) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        raise_if_stopped()
        raise AssertionError

    with pytest.raises(Interrupted, match="after step 3: saved"):
        start(0, stopped)
    assert start(3, lambda state: {"heldout_loss": float(state.step)}) == {"heldout_loss": 6.0}
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if "heldout_loss" in line] == [3, 6]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
