"""What is said of a run before it begins."""

from pathlib import Path

import pytest

from gpt1_jax.memory_estimate import MemoryEstimate
from gpt1_jax.model import GPT1, GPT1Config
from gpt1_jax.optim import OptimizerConfig, make_schedule
from gpt1_jax.runs import describe_run
from gpt1_jax.sharding import MeshConfig, make_mesh

SMALL = MemoryEstimate(1, 2, 1, 1, available=10)


@pytest.mark.parametrize(("n_steps", "warmup_fraction", "warned"), [(1, 0.1, True), (1, 0.0, False), (2, 0.1, False)])
def test_a_run_that_learns_nothing_is_warned_of(n_steps, warmup_fraction, warned, devices, caplog):
    rate = make_schedule(OptimizerConfig(warmup_steps=None, warmup_fraction=warmup_fraction), n_steps)
    mesh = make_mesh(MeshConfig(), devices)
    describe_run(
        Path("W"), mesh, GPT1(GPT1Config()), memory=SMALL, n_steps=n_steps, learning_rate=rate, training_tokens=5
    )
    assert ("learns nothing" in caplog.text) == warned


@pytest.mark.parametrize(("attention", "said"), [("auto", "attention xla (auto)"), ("tpu", "attention tpu")])
def test_what_computes_attention_is_said(attention, said, devices, caplog):
    rate = make_schedule(OptimizerConfig(warmup_steps=None), 2)
    mesh, model = make_mesh(MeshConfig(), devices), GPT1(GPT1Config(attention=attention))
    with caplog.at_level("INFO"):
        describe_run(Path("W"), mesh, model, memory=SMALL, n_steps=2, learning_rate=rate)
    assert f"mesh data=8, fsdp=1, tensor=1; {said}\n" in caplog.text


def test_a_run_that_may_not_fit_is_warned_of(devices, caplog):
    rate, mesh = make_schedule(OptimizerConfig(warmup_steps=None), 2), make_mesh(MeshConfig(), devices)
    for memory in (SMALL, MemoryEstimate(5, 5, 1, 1, available=10)):
        assert "more than a device has" not in caplog.text
        describe_run(Path("W"), mesh, GPT1(GPT1Config()), memory=memory, n_steps=2, learning_rate=rate)
    assert "more than a device has: if it is, use a smaller config.batch_size" in caplog.text
