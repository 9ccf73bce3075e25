"""What an update takes, as it is said before it is compiled, against what the compiler plans."""

import dataclasses
import functools
from typing import Any

import jax
import pytest

from gpt1_jax import memory_estimate, pretrain
from gpt1_jax.config import from_config
from gpt1_jax.losses import lm_batch_shapes, lm_objective, task_batch_shapes, task_objective
from gpt1_jax.memory_estimate import MemoryEstimate, estimate_memory
from gpt1_jax.model import GPT1, GPT1Config, ReadOut, count_parameters
from gpt1_jax.optim import make_optimizer
from gpt1_jax.pretrain import PretrainConfig
from gpt1_jax.sharding import MeshConfig, abstract_sharded, make_mesh
from gpt1_jax.train import initial_state

SIZE = {"vocab_size": 512, "n_layer": 1, "n_embd": 64, "n_head": 4, "n_ctx": 64}


def estimated(devices: list[jax.Device], **settings: Any) -> MemoryEstimate:
    """Of a pre-training run; `settings` go to the model or to the config."""
    config, model, mesh, optimizer, _ = made(devices, **settings)
    return estimate_memory(
        model,
        optimizer,
        functools.partial(lm_objective, config=config.loss),
        lm_batch_shapes(config.batch_size, model.config.n_ctx),
        mesh,
        accumulation_steps=config.accumulation_steps,
        chunk=config.loss.chunk,
    )


def made(devices: list[jax.Device], **settings: Any) -> tuple[Any, ...]:
    """Config, model, mesh, optimizer and step of it."""
    own = {name: settings.pop(name) for name in list(settings) if name not in GPT1Config.__dataclass_fields__}
    config = from_config(PretrainConfig, {"batch_size": 32, "model": SIZE | settings} | own)
    model = GPT1(GPT1Config(**config.model.given()))
    mesh = make_mesh(config.mesh, devices)
    return config, model, mesh, *pretrain.jit_step(config, model, mesh)


def test_state_is_counted_as_it_lies(devices):
    n = count_parameters(GPT1Config(**SIZE))  # 512 rows: none of them pads
    one = estimated(devices[:1])
    assert (one.params, one.gradients) == (4 * n, pytest.approx(4 * n, rel=1e-3))
    assert one.moments == pytest.approx(8 * n, rel=1e-3)
    fsdp = estimated(devices, mesh={"fsdp": 8})
    assert one.params / 8 < fsdp.params < one.params / 7  # biases and gains of heads and MLPs are whole
    zero = estimated(devices, mesh={"data": 8})
    assert one.moments / 8 < zero.moments < one.moments / 7
    assert zero.params == pytest.approx(one.params * 9 / 8, rel=0.02)  # its part, and all of them while it works
    assert zero.gradients == one.gradients
    assert estimated(devices, mesh={"data": 8, "shard_optimizer": False}).moments == one.moments


def test_what_takes_less_is_said_to_take_less(devices, monkeypatch):
    one = estimated(devices[:1])
    for settings in ({"accumulation_steps": 4}, {"batch_size": 8}, {"loss": {"chunk": 4}}):
        assert estimated(devices[:1], **settings).activations < one.activations, settings
    for settings in ({"remat": "full"}, {"dtype": "bfloat16"}):  # neither of which a CPU knows
        assert estimated(devices[:1], **settings).activations == one.activations
    monkeypatch.setattr(memory_estimate, "KEEPS_EVERYTHING", ())
    for settings in ({"remat": "dots"}, {"dtype": "bfloat16"}):
        assert estimated(devices[:1], **settings).activations < one.activations, settings
    spread = estimated(devices, mesh={"data": 2, "fsdp": 4})
    assert spread.activations == pytest.approx(one.activations / 8, rel=0.3)  # pieces of the loss are not the same


@pytest.mark.parametrize("settings", [{}, {"remat": "full", "accumulation_steps": 4}])
def test_it_bounds_the_compilers_plan(settings, devices):
    config, model, mesh, optimizer, step = made(devices[:1], **settings)
    batch = lm_batch_shapes(config.batch_size, model.config.n_ctx)
    state = abstract_sharded(lambda: initial_state(model, optimizer, 0), mesh)
    schedules = {"learning_rate": pretrain.make_schedule(config.optimizer, 3000)}
    with jax.set_mesh(mesh):
        plan = step.lower(state, batch, schedules).compile().memory_analysis()
    planned = plan.argument_size_in_bytes + plan.temp_size_in_bytes
    assert planned < estimated(devices[:1], **settings).total < 3 * planned


def test_a_task(devices):
    model = GPT1(GPT1Config(**SIZE, n_special=3), ReadOut("multiple_choice"))
    mesh = make_mesh(MeshConfig(), devices[:1])
    optimizer = make_optimizer(from_config(PretrainConfig, {}).optimizer)

    def of(n_streams: int, **options: bool) -> MemoryEstimate:
        objective = functools.partial(task_objective, **options)
        return estimate_memory(model, optimizer, objective, task_batch_shapes(4, n_streams, 32), mesh)

    assert 1.8 < of(4).activations / of(2).activations < 2.2
    assert of(2, with_lm=False).activations < of(2).activations


def test_it_is_read_by_people():
    estimate = MemoryEstimate(2 << 30, 4 << 30, 2 << 30, 1 << 20, available=9 << 30)
    assert str(estimate) == (
        "8.00 GiB of 9.00 GiB at most: params 2.00 GiB, moments 4.00 GiB, gradients 2.00 GiB, activations 1.0 MiB"
    )
    assert estimate.fits
    assert not dataclasses.replace(estimate, available=8 << 30).fits
    assert dataclasses.replace(estimate, available=None).fits
    assert str(dataclasses.replace(estimate, available=None)).startswith("8.00 GiB at most")
