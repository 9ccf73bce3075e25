"""An update of pre-training as `pretrain.run` does it: the batch to the devices, the step, the state in place."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from gpt1_jax import pretrain
from gpt1_jax.benchmark.settings import Settings
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.model import GPT1, count_parameters
from gpt1_jax.optim import make_schedule
from gpt1_jax.sharding import jit_init, make_mesh, to_global
from gpt1_jax.train import HostBatch, JittedStep, Schedules, initial_state

OURS = "gpt1_jax"
LONG = 1 << 24  # updates of the schedule: no time depends on them


def pretraining(settings: Settings, batch_size: int) -> Contestant:
    """An update from `batch_size` windows of n_ctx random tokens."""
    config = dataclasses.replace(settings.pretrain, batch_size=batch_size)
    model, mesh = GPT1(settings.model), make_mesh(config.mesh)
    tokens = settings.tokens(batch_size, model.config.n_ctx)
    mask = np.ones(tokens.shape, np.float32)
    mask[:, 0] = 0
    schedules = {"learning_rate": make_schedule(config.optimizer, LONG)}
    optimizer, step = pretrain.jit_step(config, model, mesh)
    updates = Updates(model, optimizer, step, mesh, schedules)
    compile_seconds, temp_bytes = updates.compile({"tokens": tokens, "mask": mask})
    return Contestant(
        OURS,
        functools.partial(updates, {"tokens": tokens, "mask": mask}),
        amount=tokens.size,
        flops=tokens.size * train_flops_per_token(model.config, model.config.n_ctx),
        n_parameters=count_parameters(model.config),
        compile_seconds=compile_seconds,
        temp_bytes=temp_bytes,
        about=how_it_runs(model, mesh),
    )


class Updates:
    """A state, and the step that goes on with it: called with a batch of the host, it returns what to wait for."""

    def __init__(
        self,
        model: GPT1,
        optimizer: optax.GradientTransformationExtraArgs,
        step: JittedStep,
        mesh: Mesh,
        schedules: Schedules,
    ) -> None:
        self._step, self._mesh, self._schedules = step, mesh, schedules
        init, _ = jit_init(lambda seed: initial_state(model, optimizer, seed), mesh)
        self._state = init(np.uint32(0))

    def compile(self, batch: HostBatch) -> tuple[float, int | None]:
        """Compiles for the shape of a batch, which its first call then need not; seconds, and bytes of temporaries."""
        begin = time.perf_counter()
        with jax.set_mesh(self._mesh):
            compiled = self._step.lower(self._state, to_global(dict(batch), self._mesh), self._schedules).compile()
        return time.perf_counter() - begin, temp_bytes_of(compiled)

    def __call__(self, batch: HostBatch) -> Any:
        """One update."""
        with jax.set_mesh(self._mesh):
            self._state, metrics = self._step(self._state, to_global(dict(batch), self._mesh), self._schedules)
        return self._state, metrics


def temp_bytes_of(compiled: Any) -> int | None:
    """Temporary memory of a compiled program by its compiler's plan, where it tells."""
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)


def how_it_runs(model: GPT1, mesh: Mesh) -> str:
    """What the config stands for on these devices, in words."""
    c = model.config
    with jax.set_mesh(mesh):
        attention = c.attention_kernel(c.n_ctx)
    sizes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    return (
        f"{c.dtype}, attention {attention}, dropout {c.embd_pdrop:g} {c.attn_pdrop:g} {c.resid_pdrop:g} (embeddings, "
        f"attention, residual)" + (f", mesh {sizes}" if sizes else "")
    )
