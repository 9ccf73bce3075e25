"""A frozen trunk: not a bit of it changes, and what is trained is trained as if there were nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from gpt1_jax.frozen import frozen_objective, frozen_optimizer
from gpt1_jax.losses import task_objective
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.optim import OptimizerConfig, Schedule, make_optimizer
from gpt1_jax.sharding import MeshConfig, jit_init, make_mesh, to_global
from gpt1_jax.train import initial_state, jit_train_step, make_train_step

CONFIG = GPT1Config(vocab_size=50, n_special=3, n_ctx=8, n_embd=16, n_head=4, n_layer=1)
MODEL = GPT1(CONFIG, ReadOut("classification", ("a", "b")))
ROWS = slice(CONFIG.vocab_size, CONFIG.n_rows)
RATE = {"learning_rate": Schedule(np.float32(1e-2)), "lm_coef": Schedule(np.float32(0.5))}


def batch(n: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, CONFIG.vocab_size, (n, 1, CONFIG.n_ctx), np.int32)
    tokens[..., 0], tokens[..., -1] = CONFIG.vocab_size, CONFIG.extract_id
    ones = np.ones(tokens.shape, np.float32)
    return {
        "tokens": tokens,
        "mask": ones,
        "stream_mask": ones[..., 0] > 0,
        "label": rng.integers(0, 2, n, np.int32),
        "weight": ones[:, 0, 0],
    }


def bits(x: Any) -> np.ndarray:
    return np.asarray(x).view(np.uint32)


@pytest.mark.parametrize("mesh", [MeshConfig(data=1), MeshConfig(data=2, fsdp=2, tensor=2)])
def test_frozen_parameters_do_not_change_by_one_bit(devices, mesh):
    """Weight decay, clipping and three large updates notwithstanding; zeros keep their sign."""
    mesh = make_mesh(mesh, devices=devices[: 8 if mesh.tensor == 2 else 1])
    optimizer = frozen_optimizer(make_optimizer(OptimizerConfig(weight_decay=0.1, clip_norm=0.5)), CONFIG)
    objective = frozen_objective(task_objective(MODEL), CONFIG)
    init, shardings = jit_init(lambda seed: initial_state(MODEL, optimizer, seed), mesh)
    state = init(0)
    zeros = state.params["h_0"]["ln_1"]["bias"]
    assert not np.asarray(zeros).any()
    state.params["h_0"]["ln_1"]["bias"] = -zeros
    before = jax.device_get(state.params)
    step = jit_train_step(make_train_step(objective, optimizer), mesh, shardings)
    with jax.set_mesh(mesh):
        for _ in range(3):
            state, metrics = step(state, to_global(batch(), mesh), RATE)
    after = jax.device_get(state.params)
    assert metrics["grad_norm"] > 0
    trained = {"clf", "tokens_embed"}
    for name in before.keys() - trained:
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(bits(a), bits(b)), before[name], after[name])
    assert np.signbit(after["h_0"]["ln_1"]["bias"]).all()
    table, old = (np.asarray(params["tokens_embed"]["embedding"]) for params in (after, before))
    np.testing.assert_array_equal(bits(np.delete(table, np.r_[ROWS], 0)), bits(np.delete(old, np.r_[ROWS], 0)))
    assert (table[CONFIG.vocab_size] != old[CONFIG.vocab_size]).any()
    assert (table[CONFIG.extract_id] != old[CONFIG.extract_id]).any()
    assert (after["clf"]["kernel"] != before["clf"]["kernel"]).all()


def test_the_optimizer_s_state_is_small():
    optimizer = frozen_optimizer(make_optimizer(OptimizerConfig()), CONFIG)
    params = nn.unbox(jax.eval_shape(MODEL.init_partitioned, jax.random.key(0)))
    state = jax.eval_shape(optimizer.init, params)
    moments = sum(x.size for x in jax.tree.leaves(optax.tree.get(state, "nu")))
    assert moments == 3 * CONFIG.n_embd + 2 * CONFIG.n_embd + 2


def test_what_is_trained_has_the_gradients_it_has_anyway():
    params = nn.unbox(MODEL.init_partitioned(jax.random.key(0)))
    objective = task_objective(MODEL)
    rows, key = np.arange(8), jax.random.key(1)

    def gradients(objective: Any) -> Any:
        loss = jax.grad(lambda p, b: objective.loss(p, b, rows, key, {"lm_coef": 0.5})[0])
        return jax.jit(loss)(params, objective.normalize(batch()))

    whole, part = gradients(objective), gradients(frozen_objective(objective, CONFIG))
    np.testing.assert_allclose(part["clf"]["kernel"], whole["clf"]["kernel"], rtol=1e-6)
    tables = [np.asarray(g["tokens_embed"]["embedding"]) for g in (part, whole)]
    np.testing.assert_allclose(tables[0][ROWS], tables[1][ROWS], rtol=1e-5, atol=1e-7)
    for grads in ({k: v for k, v in part.items() if k not in ("clf", "tokens_embed")}, np.delete(tables[0], ROWS, 0)):
        assert not any(np.asarray(x).any() for x in jax.tree.leaves(grads))


def test_a_model_without_special_rows_trains_its_head():
    """As models do that read the last token."""
    config = dataclasses.replace(CONFIG, n_special=0)
    model = GPT1(config, ReadOut("classification", ("a", "b"), read_at="last"))
    optimizer = frozen_optimizer(make_optimizer(OptimizerConfig()), config)
    params = nn.unbox(model.init_partitioned(jax.random.key(0)))
    objective = frozen_objective(task_objective(model), config)
    given = objective.normalize({k: v % 50 if k == "tokens" else v for k, v in batch().items()})
    rows, key = np.arange(8), jax.random.key(1)
    grads = jax.jit(jax.grad(lambda p: objective.loss(p, given, rows, key, {"lm_coef": 0.5})[0]))(params)
    updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params, learning_rate=1.0)
    assert np.asarray(updates["clf"]["kernel"]).any()
    assert not np.asarray(updates["tokens_embed"]["embedding"]).any()
