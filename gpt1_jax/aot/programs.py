"""From a config to what is compiled: the very step that `pretrain.run` or `finetune.run` trains with, and its inputs
as shapes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from gpt1_jax import finetune, pretrain
from gpt1_jax.config import from_config
from gpt1_jax.cross_entropy import positions_at_once
from gpt1_jax.errors import InputError
from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.losses import lm_batch_shapes, task_batch_shapes
from gpt1_jax.model import GPT1
from gpt1_jax.model_config import N_SPECIAL, GPT1Config
from gpt1_jax.optim import make_lm_schedule, make_schedule
from gpt1_jax.pretrain import PretrainConfig
from gpt1_jax.runs import check_sizes
from gpt1_jax.sharding import make_mesh
from gpt1_jax.tasks.readout import readout_without_data
from gpt1_jax.train import JittedStep, initial_state
from gpt1_jax.zero import ShardedOverData

_LONG = 1 << 24  # updates, where the config leaves them to the data: no shape depends on them


@dataclasses.dataclass(frozen=True)
class Program:
    """A step to compile.

    Attributes:
      step: jitted, over the mesh.
      arguments: state, batch and schedules as shapes.
      mesh: the devices.
      model: the network.
      batch_shape: rows, and tokens of a row; of a task rows, streams and tokens.
      accumulation_steps: micro-batches.
      chunk: positions whose logits exist at a time; 0 all.
      shard_optimizer: whether the optimizer's state lies over `data`, see `MeshConfig`.
      flops: matrix products of an update over all devices, counted by hand (`train_flops_per_token`).
    """

    step: JittedStep
    arguments: tuple[Any, Any, Any]
    mesh: Mesh
    model: GPT1
    batch_shape: tuple[int, ...]
    accumulation_steps: int
    chunk: int
    shard_optimizer: bool
    flops: float


def make_program(config: Any, devices: Sequence[Any], *, length: int | None = None) -> Program:
    """The step of a config of configs/pretrain.py or configs/finetune.py, over these devices.

    Args:
      config: a `PretrainConfig` or a `FinetuneConfig`; or a mapping or `ConfigDict` of one of them, told by whether it
        has a `task`.
      devices: of a topology, or real ones.
      length: of a task, tokens of a row: one of its buckets; None takes n_ctx.

    Raises:
      InputError: the config is refused, or its sizes do not divide over the devices.
    """
    if isinstance(config, FinetuneConfig) or (not dataclasses.is_dataclass(config) and "task" in config):
        return _finetune_program(from_config(FinetuneConfig, config), devices, length)
    if length is not None:
        raise InputError(f"length={length} is for fine-tuning; set config.model.n_ctx for the windows of pre-training")
    return _pretrain_program(from_config(PretrainConfig, config), devices)


def _pretrain_program(config: PretrainConfig, devices: Sequence[Any]) -> Program:
    model = GPT1(GPT1Config(**config.model.given()))
    mesh = make_mesh(config.mesh, list(devices))
    check_sizes(config, model.config, mesh)
    batch = lm_batch_shapes(config.batch_size, model.config.n_ctx)
    schedules = {"learning_rate": make_schedule(config.optimizer, config.n_steps or _LONG)}
    return _program(config, pretrain.jit_step(config, model, mesh), mesh, model, batch, schedules)


def _finetune_program(config: FinetuneConfig, devices: Sequence[Any], length: int | None) -> Program:
    readout = readout_without_data(config.task)
    model = GPT1(GPT1Config(**{**config.model.given(), "n_special": N_SPECIAL}), readout)
    mesh = make_mesh(config.mesh, list(devices))
    check_sizes(config, model.config, mesh)
    length = model.config.n_ctx if length is None else length
    if not 2 <= length <= model.config.n_ctx:
        raise InputError(f"length={length} must be from 2 to n_ctx={model.config.n_ctx}")
    batch = task_batch_shapes(config.batch_size, readout.n_streams, length, scores=readout.score_range is not None)
    schedules = {
        "learning_rate": make_schedule(config.optimizer, _LONG),
        "lm_coef": make_lm_schedule(config.lm_coef, config.lm_coef_schedule, _LONG, config.lm_coef_drop),
    }
    return _program(config, finetune.jit_step(config, model, mesh), mesh, model, batch, schedules)


def _program(
    config: Any, optimizer_and_step: tuple[Any, JittedStep], mesh: Mesh, model: GPT1, batch: Any, schedules: Any
) -> Program:
    optimizer, step = optimizer_and_step
    state = nn.unbox(jax.eval_shape(lambda: initial_state(model, optimizer, 0)))
    shape = batch["tokens"].shape
    options = {}
    if isinstance(config, FinetuneConfig):
        options = {"with_lm": config.lm_coef > 0, "frozen_trunk": config.freeze != "none"}
    flops = train_flops_per_token(model.config, shape[-1], **options) * float(np.prod(shape))
    with jax.set_mesh(mesh):
        rows = math.prod(shape[:-1]) // config.accumulation_steps
        chunk = positions_at_once((rows, shape[-1]), config.loss.chunk)
    return Program(
        step=step,
        arguments=(state, batch, schedules),
        mesh=mesh,
        model=model,
        batch_shape=shape,
        accumulation_steps=config.accumulation_steps,
        chunk=chunk if chunk < shape[-1] else 0,
        shard_optimizer=isinstance(optimizer, ShardedOverData),
        flops=flops,
    )
