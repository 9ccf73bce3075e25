"""Predictions of every example once, without the vocabulary."""

import jax
import numpy as np
import pytest
from helpers import random_params, split_of

from gpt1_jax.data.labelled import eval_batches
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.sharding import MeshConfig, make_mesh
from gpt1_jax.task_evaluator import TaskEvaluator

MODEL = GPT1(
    GPT1Config(vocab_size=20_000, n_special=3, n_ctx=64, n_embd=8, n_head=2, n_layer=1),
    ReadOut("classification", ("no", "yes"), read_at="last"),
)


@pytest.fixture
def mesh():
    return make_mesh(MeshConfig(data=1), devices=jax.devices()[:1])


def test_each_batch_is_told_as_soon_as_it_is_known(mesh):
    lengths = np.random.default_rng(0).integers(1, 64, 45)
    given = split_of(lengths, 1)
    given.tokens[:] = np.arange(len(given.tokens)) % 20_000
    told = []
    evaluator = TaskEvaluator(MODEL, mesh, given, batch_size=4)
    predicted, _ = evaluator(random_params(MODEL), lambda index, values: told.append((index, values)))
    assert len(told) == 12
    assert sorted(np.concatenate([index for index, _ in told])) == list(range(45))
    assert lengths[told[0][0]].max() < lengths[told[-1][0]].max()
    for index, values in told:
        assert np.array_equal(values, predicted[index])
    assert len(np.unique(predicted[:, 0])) > 40


def test_the_product_with_the_vocabulary_is_not_computed(mesh):
    given = split_of(np.full(16, 64), 1)
    evaluator = TaskEvaluator(MODEL, mesh, given, batch_size=16)
    with jax.set_mesh(mesh):
        batch = eval_batches(given, batch_size=16)[0]
        compiled = evaluator._step.lower(random_params(MODEL), batch).compile()
    assert compiled.cost_analysis()["flops"] < 2 * 16 * 63 * 8 * 20_000 / 10
