"""The optimizer against its formula in float64, and the schedules at points known by hand."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.optim import (
    LM_SCHEDULES,
    SCHEDULES,
    OptimizerConfig,
    Schedule,
    decays,
    make_lm_schedule,
    make_optimizer,
    make_schedule,
)

SHAPES = {"kernel": (3, 4), "bias": (5,), "embedding": (2, 3), "scale": (4,)}


def numbers(seed: int, size: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (size * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def by_hand(config: OptimizerConfig, n_steps: int, gradients: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The official update, line by line."""
    params = {name: np.float64(x) for name, x in numbers(0).items()}
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for i, grads in enumerate(gradients):
        norm = np.sqrt(sum((np.float64(g) ** 2).sum() for g in grads.values()))
        clip = min(1.0, config.clip_norm / norm) if config.clip_norm and norm else 1.0
        t, x = i + 1, i / n_steps
        scheduled = x / config.warmup_fraction if x <= config.warmup_fraction else 1.0
        if config.schedule == "warmup_linear":
            scheduled *= 1 - x
        rate = config.learning_rate * scheduled * np.sqrt(1 - config.b2**t) / (1 - config.b1**t)
        for name in SHAPES:
            g = clip * np.float64(grads[name])
            m[name] = config.b1 * m[name] + (1 - config.b1) * g
            v[name] = config.b2 * v[name] + (1 - config.b2) * g * g
            decay = config.weight_decay * params[name] if name in ("kernel", "embedding") else 0.0
            params[name] = params[name] - rate * (m[name] / (np.sqrt(v[name]) + config.eps) + decay)
    return params


BASE = OptimizerConfig(
    learning_rate=1e-2, schedule="warmup_linear", warmup_steps=None, warmup_fraction=0.2, weight_decay=0.1
)
CASES = {
    "base": {},
    "constant": {"schedule": "warmup_constant"},
    "no decay": {"weight_decay": 0.0},
    "no clip": {"clip_norm": 0.0},
    "small clip": {"clip_norm": 0.1},
    "large eps": {"eps": 0.1},
    "other betas": {"b1": 0.5, "b2": 0.9},
}


@pytest.mark.parametrize("case", CASES)
def test_update(case):
    config, n_steps = dataclasses.replace(BASE, **CASES[case]), 20
    gradients = [numbers(1 + i, size=0.0 if i == 7 else 10.0 ** (i % 4 - 2)) for i in range(n_steps)]
    optimizer, schedule = make_optimizer(config), make_schedule(config, n_steps)

    def one(carry: Any, given: Any) -> Any:
        (params, state), (step, grads) = carry, given
        updates, state = optimizer.update(grads, state, params, learning_rate=schedule(step))
        return (optax.apply_updates(params, updates), state), None

    params = jax.tree.map(jnp.asarray, numbers(0))
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *gradients)
    (params, state), _ = jax.lax.scan(one, (params, optimizer.init(params)), (jnp.arange(n_steps), stacked))
    for name, expected in by_hand(config, n_steps, gradients).items():
        assert params[name].dtype == jnp.float32
        np.testing.assert_allclose(params[name], expected, rtol=0, atol=1e-6, err_msg=name)
    assert {x.dtype for x in jax.tree.leaves(optax.tree.get(state, "nu"))} == {jnp.dtype("float32")}


def test_the_first_update_is_zero():
    """As in the official code, where the schedule is read before the step is counted."""
    for schedule in set(SCHEDULES) - {"constant"}:
        assert make_schedule(dataclasses.replace(BASE, schedule=schedule), 20)(0) == 0, schedule
    optimizer, params = make_optimizer(BASE), jax.tree.map(jnp.asarray, numbers(0))
    updates, _ = jax.jit(optimizer.update)(numbers(1), optimizer.init(params), params, learning_rate=0.0)
    assert all((x == 0).all() for x in jax.tree.leaves(updates))


# Learning rate after (part of the run) with a peak of 1 and a warm-up of 0.2
POINTS = {
    "constant": {0.0: 1.0, 0.5: 1.0, 1.0: 1.0},
    "cosine": {0.0: 0.0, 0.1: 0.5, 0.2: 1.0, 0.4: 0.5 * (1 + np.cos(np.pi / 4)), 0.6: 0.5, 1.0: 0.0},
    "warmup_cosine": {0.0: 0.0, 0.1: 0.5, 0.2: 1.0, 0.25: 0.5 * (1 + np.cos(np.pi / 4)), 0.5: 0.5, 1.0: 0.0},
    "warmup_linear": {0.0: 0.0, 0.1: 0.5 * 0.9, 0.2: 0.8, 0.5: 0.5, 1.0: 0.0, 1.1: -0.1},
    "warmup_constant": {0.0: 0.0, 0.1: 0.5, 0.2: 1.0, 0.5: 1.0, 1.0: 1.0},
}


@pytest.mark.parametrize("shape", SCHEDULES)
def test_schedule(shape):
    n_steps = 1000
    config = OptimizerConfig(learning_rate=3.0, schedule=shape, warmup_steps=None, warmup_fraction=0.2)
    in_steps = dataclasses.replace(config, warmup_steps=200)
    for part, expected in POINTS[shape].items():
        for c in (config, in_steps):
            rate = make_schedule(c, n_steps)(round(part * n_steps))
            assert rate.dtype == jnp.float32
            assert float(rate) == pytest.approx(3 * expected, abs=1e-5), part


def test_the_paper_s_pre_training_schedule_is_the_default():
    """2,000 linear warm-up updates to 2.5e-4, then a cosine to 0."""
    schedule = make_schedule(OptimizerConfig(), 100_000)
    rates = np.asarray(jax.vmap(schedule)(jnp.array([0, 1000, 2000, 51_000, 100_000])))
    np.testing.assert_allclose(rates, 2.5e-4 * np.array([0, 0.5, 1, 0.5, 0]), atol=1e-9)
    all_rates = np.asarray(jax.vmap(schedule)(jnp.arange(0, 100_001, 100)))
    assert (np.diff(all_rates[:21]) > 0).all()
    assert (np.diff(all_rates[20:]) < 0).all()


def test_no_warm_up():
    schedule = make_schedule(OptimizerConfig(learning_rate=1.0, warmup_steps=0), 10)
    rates = [float(schedule(i)) for i in range(11)]
    np.testing.assert_allclose(rates, 0.5 * (1 + np.cos(np.pi * np.arange(11) / 10)), atol=1e-6)


# Lambda after (part of the run) where it is 0.5 at the start
LM_POINTS = {
    "constant": {0.0: 0.5, 0.5: 0.5, 0.95: 0.5},
    "linear": {0.0: 0.5, 0.25: 0.375, 0.5: 0.25, 0.95: 0.025, 1.0: 0.0},
    "cosine": {0.0: 0.5, 0.25: 0.25 * (1 + np.sqrt(0.5)), 0.5: 0.25, 0.75: 0.25 * (1 - np.sqrt(0.5)), 1.0: 0.0},
    "step": {0.0: 0.5, 0.25: 0.5, 0.29: 0.5, 0.30: 0.0, 0.95: 0.0},
}


@pytest.mark.parametrize("schedule", LM_SCHEDULES)
def test_schedule_of_lambda(schedule):
    n_steps = 100
    lm_coef = make_lm_schedule(0.5, schedule, n_steps, drop_at=0.3)
    for part, expected in LM_POINTS[schedule].items():
        assert float(lm_coef(round(part * n_steps))) == pytest.approx(expected, abs=1e-6), part


@pytest.mark.parametrize("n_steps", [1, 3, 7, 999, 100_003])
def test_lambda_drops_at_a_whole_step(n_steps):
    for drop_at in (0.0, 0.1, 1 / 3, 0.7, 1.0):
        lm_coef = make_lm_schedule(1.0, "step", n_steps, drop_at)
        at = round(drop_at * n_steps)
        steps = np.clip(np.arange(at - 2, at + 3), 0, n_steps)
        assert [float(lm_coef(step)) for step in steps] == [float(step < at) for step in steps]


def test_a_schedule_of_lambda_that_is_unknown():
    with pytest.raises(InputError, match=r"lm_coef_schedule='exp' is unknown; use one of \['constant', 'linear'"):
        make_lm_schedule(0.5, "exp", 10)


def test_one_compilation_serves_any_rate_length_and_shape():
    n_traced = 0

    @jax.jit
    def read(schedule: Schedule, step: jax.Array) -> jax.Array:
        nonlocal n_traced
        n_traced += 1
        return schedule(step)

    for rate, n_steps in ((1e-3, 10), (1e-4, 10), (1e-3, 2000)):
        schedule = make_schedule(OptimizerConfig(learning_rate=rate, warmup_steps=5), n_steps)
        assert float(read(schedule, 5)) == pytest.approx(rate)
    for name in SCHEDULES:
        read(make_schedule(OptimizerConfig(schedule=name, warmup_steps=5), 10), 5)
    for name in LM_SCHEDULES:
        read(make_lm_schedule(0.5, name, 10), 5)
    assert n_traced == 1


def test_matrices_decay_by_name():
    """[D, 3, H, head_dim] kernels and [3, H, head_dim] biases have more axes than elsewhere: rank says nothing."""
    config = GPT1Config(vocab_size=9, n_special=3, n_ctx=4, n_embd=4, n_head=2, n_layer=1)
    boxed = jax.eval_shape(GPT1(config, ReadOut("multiple_choice")).init_partitioned, jax.random.key(0))
    plain = jax.eval_shape(GPT1(config, ReadOut("multiple_choice")).init, jax.random.key(0), np.zeros((1, 1), np.int32))
    flat = flatten_dict(decays(plain["params"]))
    assert {"/".join(path) for path, decayed in flat.items() if decayed} == {
        "tokens_embed/embedding",
        "positions_embed/embedding",
        *(f"h_0/attn/{name}/kernel" for name in ("c_attn", "c_proj")),
        *(f"h_0/mlp/{name}/kernel" for name in ("c_fc", "c_proj")),
        "clf/kernel",
    }
    assert {path[-1] for path, decayed in flat.items() if not decayed} == {"bias", "scale"}
    assert jax.tree.leaves(decays(boxed)) == jax.tree.leaves(decays(plain["params"]))


BAD = [
    ({"schedule": "linear"}, r"optimizer.schedule='linear' is unknown; use one of \['cosine', 'warmup_cosine'"),
    ({"learning_rate": -1e-3}, r"optimizer.learning_rate=-0.001 must not be negative"),
    ({"weight_decay": -1}, r"optimizer.weight_decay=-1.0 must not be negative"),
    ({"clip_norm": -1}, r"optimizer.clip_norm=-1.0 must not be negative"),
    ({"eps": -1e-8}, r"optimizer.eps=-1e-08 must not be negative"),
    ({"warmup_steps": -1}, r"optimizer.warmup_steps=-1 must not be negative"),
    ({"warmup_fraction": -0.1}, r"optimizer.warmup_fraction=-0.1 must not be negative"),
    ({"warmup_fraction": 1.5}, r"optimizer.warmup_fraction=1.5 must be at most 1, the whole run"),
    ({"b1": 1.0}, r"optimizer.b1=1.0 must be at least 0 and below 1"),
    ({"b2": -0.5}, r"optimizer.b2=-0.5 must be at least 0 and below 1"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[str(fields) for fields, _ in BAD])
def test_bad_config(fields, message):
    with pytest.raises(InputError, match=message):
        OptimizerConfig(**fields)


@pytest.mark.parametrize("n_steps", [1, 1999, 2000])
def test_warm_up_longer_than_the_run(n_steps):
    message = rf"optimizer.warmup_steps=2000 does not fit a run of {n_steps} steps; use a number below {n_steps}, or"
    with pytest.raises(InputError, match=message):
        make_schedule(OptimizerConfig(), n_steps)


def test_run_without_steps():
    with pytest.raises(InputError, match="n_steps=0 must be at least 1"):
        make_schedule(OptimizerConfig(), 0)
