"""The losses against numpy in float64, and over any partition of the batch."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax.losses import LossConfig, lm_nll_sum, lm_objective, task_objective, task_outputs
from gpt1_jax.model import GPT1, GPT1Config, ReadOut

# Without blocks: what is tested stands around them.
CONFIG = GPT1Config(vocab_size=30, n_special=3, n_ctx=8, n_embd=8, n_head=2, n_layer=0)
LM = GPT1(CONFIG)
CHOICE = GPT1(CONFIG, ReadOut("multiple_choice"))


def lm_batch(n_rows: int = 6) -> dict[str, np.ndarray]:
    """Rows of 1 to 7 targets, one of them with none, one with a hole."""
    rng = np.random.default_rng(3)
    lengths = np.array([8, 2, 5, 1, 3, 7])[:n_rows, None]
    mask = (np.arange(8) < lengths).astype(np.float32)
    mask[0, 3] = 0
    return {"tokens": rng.integers(0, 30, (n_rows, 8), np.int32), "mask": mask}


def task_batch(n_rows: int = 6) -> dict[str, np.ndarray]:
    """Examples of 1 to 3 answers of unequal lengths; the last example is padding."""
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, 30, (n_rows, 3, 8), np.int32)
    lengths = rng.integers(2, 9, (n_rows, 3, 1))
    np.put_along_axis(tokens, lengths - 1, CONFIG.extract_id, axis=2)
    stream_mask = np.arange(3) < np.array([3, 1, 2, 3, 2, 3])[:n_rows, None]
    return {
        "tokens": tokens,
        "mask": (np.arange(8) < lengths).astype(np.float32) * stream_mask[..., None],
        "stream_mask": stream_mask,
        "label": np.zeros(n_rows, np.int32),
        "weight": (np.arange(n_rows) < n_rows - 1).astype(np.float32),
    }


JOBS = {"lm": (LM, lm_objective, lm_batch), "task": (CHOICE, task_objective, task_batch)}


@functools.cache
def compiled(job: str, chunk: int = 0) -> Any:
    """(normalised rows, their numbers) -> ((loss, metrics), gradients), with dropout; lambda is 0.5."""
    model, objective, _ = JOBS[job]
    loss = objective(model, LossConfig(chunk)).loss
    params, key = random_params(model), jax.random.key(5)
    run = jax.jit(lambda p, b, rows: jax.value_and_grad(loss, has_aux=True)(p, b, rows, key, {"lm_coef": 0.5}))
    return lambda batch, rows: run(params, batch, rows)


def normalised(job: str, batch: Any) -> Any:
    model, objective, _ = JOBS[job]
    return objective(model).normalize({k: jnp.asarray(v) for k, v in batch.items()})


def in_pairs(job: str, batch: Any, chunk: int = 0) -> Any:
    """Loss, metrics and gradients, summed over micro-batches of two rows."""
    rows, batch = np.random.default_rng(6).permutation(len(batch["tokens"])), normalised(job, batch)
    parts = [compiled(job, chunk)({k: v[pair] for k, v in batch.items()}, pair) for pair in rows.reshape(-1, 2)]
    return jax.tree.map(lambda *xs: sum(map(np.asarray, xs)), *parts)


def assert_trees_close(actual: Any, expected: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), actual, expected)


@pytest.mark.parametrize("job", JOBS)
def test_parts_of_a_batch_add_up_to_the_whole(job):
    """Loss, metrics and gradients of micro-batches with unequal numbers of tokens, dropout included."""
    batch = JOBS[job][2]()
    assert_trees_close(in_pairs(job, batch), compiled(job)(normalised(job, batch), np.arange(6)))


@pytest.mark.parametrize("job", JOBS)
def test_padded_rows_change_nothing(job):
    """Rows of weight 0, whatever is in them."""
    batch = JOBS[job][2]()
    rng = np.random.default_rng(7)
    padding = {k: np.zeros((2, *v.shape[1:]), v.dtype) for k, v in batch.items()}
    padding["tokens"] += rng.integers(0, 30, padding["tokens"].shape, np.int32)
    if job == "task":  # even where a loader forgot to clear the masks
        padding["mask"] += 1
        padding["stream_mask"] |= True
    padded = {k: np.concatenate([v, padding[k]]) for k, v in batch.items()}
    assert_trees_close(in_pairs(job, padded), in_pairs(job, batch))


@pytest.mark.parametrize("job", JOBS)
def test_chunked_objective_is_the_same(job):
    batch = JOBS[job][2]()
    assert_trees_close(in_pairs(job, batch, chunk=3), in_pairs(job, batch))


@pytest.mark.parametrize("job", JOBS)
def test_an_empty_batch_has_loss_zero_and_no_nan(job):
    batch = JOBS[job][2]()
    empty = batch | {k: np.zeros_like(batch[k]) for k in ("mask", "weight") if k in batch}
    (loss, _), grads = in_pairs(job, empty)
    assert loss == 0
    assert all((x == 0).all() for x in jax.tree.leaves(grads))


def evaluation(model: GPT1) -> GPT1:
    rates = {f"{name}_pdrop": 0.0 for name in ("embd", "attn", "resid", "clf")}
    return GPT1(dataclasses.replace(model.config, **rates), model.readout)


def values(job: str, model: GPT1, batch: Any, lm_coef: float = 0.5) -> tuple[float, dict[str, float]]:
    """Loss and metrics of a whole batch."""
    loss = jax.jit(JOBS[job][1](model).loss)
    rows, key = np.arange(len(batch["tokens"])), jax.random.key(0)
    value, metrics = loss(random_params(model), normalised(job, batch), rows, key, {"lm_coef": lm_coef})
    return float(value), {name: float(x) for name, x in metrics.items()}


def test_lm_loss_is_the_mean_over_all_target_tokens():
    batch, params = lm_batch(), random_params(LM)
    loss, metrics = values("lm", evaluation(LM), batch)
    logits = np.float64(jax.jit(LM.apply)({"params": params}, batch["tokens"]))[:, :-1]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_p, batch["tokens"][:, 1:, None], -1)[..., 0]
    mask = batch["mask"][:, 1:]
    assert mask.sum() == 7 - 1 + 1 + 4 + 0 + 2 + 6
    assert loss == metrics["loss"] == pytest.approx((nll * mask).sum() / mask.sum(), rel=1e-5)
    # For held-out text dropout is off whatever the rates.
    total = jax.jit(functools.partial(lm_nll_sum, LM, config=LossConfig(chunk=4)))(params, batch)
    assert float(total) == pytest.approx((nll * mask).sum(), rel=1e-5)


def test_task_losses_are_the_official_means():
    """L2 over examples; L1 over streams, each the mean over its own tokens (not the mean over all tokens)."""
    model, batch = evaluation(CHOICE), task_batch()
    loss, metrics = values("task", model, batch)
    out = jax.jit(functools.partial(task_outputs, model))(random_params(CHOICE), batch)
    nll, logits, task_nll = (np.asarray(out[name]) for name in ("lm_nll", "logits", "task_nll"))
    mask, real = batch["mask"][:, :, 1:], batch["stream_mask"] & (batch["weight"] > 0)[:, None]
    per_stream = (nll * mask).sum(-1)[real] / mask.sum(-1)[real]
    assert len(per_stream) == 11
    assert metrics["lm_loss"] == pytest.approx(per_stream.mean(), rel=1e-5)
    assert metrics["lm_loss"] != pytest.approx((nll * mask)[real].sum() / mask[real].sum(), rel=1e-3)
    assert metrics["task_loss"] == pytest.approx(task_nll[:5].mean(), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx((logits.argmax(1) == 0)[:5].mean())
    assert loss == metrics["loss"] == pytest.approx(metrics["task_loss"] + 0.5 * metrics["lm_loss"], rel=1e-6)
    loss, metrics = values("task", model, batch, lm_coef=0.0)
    assert loss == metrics["task_loss"]


def test_without_lambda_the_vocabulary_costs_nothing():
    """L2 alone is the very loss and the gradients of lambda = 0, and no logits of the vocabulary are computed."""
    batch, rows, key = normalised("task", task_batch()), np.arange(6), jax.random.key(5)

    def compile_(with_lm: bool) -> Any:
        loss = task_objective(CHOICE, LossConfig(), with_lm=with_lm).loss
        run = jax.jit(lambda p, b: jax.value_and_grad(loss, has_aux=True)(p, b, rows, key, {"lm_coef": 0.0}))
        return run.lower(random_params(CHOICE), batch).compile()

    (loss, metrics), grads = compile_(True)(random_params(CHOICE), batch)
    without = compile_(False)
    (l2, fewer), fewer_grads = without(random_params(CHOICE), batch)
    assert l2 == loss == fewer["loss"]
    assert fewer == {name: value for name, value in metrics.items() if name != "lm_loss"}
    assert_trees_close(fewer_grads, grads)
    logits = rf"f32\[(\d+,)*{CONFIG.padded_rows}\]"  # [..., R]; the table is [R, D]
    assert re.search(logits, compile_(True).as_text())
    assert not re.search(logits, without.as_text())
