"""Predictions of every example once, without the vocabulary; lengths that the splits of a task share."""

import logging

import jax
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.labelled import eval_batches
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.sharding import MeshConfig, make_mesh
from gpt1_jax.task_evaluator import TaskEvaluator, shared_buckets


def split(lengths, n_streams):
    starts = np.cumsum([0, *np.repeat(lengths, n_streams)])
    return EncodedSplit(
        name="x",
        tokens=np.zeros(starts[-1], np.int32),
        stream_starts=starts,
        example_starts=np.arange(len(lengths) + 1) * n_streams,
        labels=np.zeros(len(lengths), np.int32),
        ids=tuple(map(str, range(len(lengths)))),
        n_ctx=64,
        n_truncated=0,
        n_cut=0,
    )


@pytest.mark.parametrize(
    ("options", "buckets", "message"),
    [
        ({}, (8, 40, 64), "one of (8, 40, 64) tokens: at most 6 compilations"),
        ({"count": 1, "trained": True}, (64,), "at most 1 compilation for training and 2 for evaluation"),
        ({"buckets": (48, 64)}, (48, 64), "one of (48, 64) tokens: at most 4 compilations"),
    ],
)
def test_all_splits_share_lengths_and_the_compilations_are_counted(options, buckets, message, caplog):
    splits = [split([3, 64], 2), split([40], 2), split([5, 5, 5], 4)]  # two widths of a batch
    with caplog.at_level(logging.INFO, logger="absl"):
        assert shared_buckets(splits, **options) == buckets
    assert message in caplog.text


MODEL = GPT1(
    GPT1Config(vocab_size=20_000, n_special=3, n_ctx=64, n_embd=8, n_head=2, n_layer=1),
    ReadOut("classification", ("no", "yes"), read_at="last"),
)


@pytest.fixture
def mesh():
    return make_mesh(MeshConfig(data=1), devices=jax.devices()[:1])


def test_each_batch_is_told_as_soon_as_it_is_known(mesh):
    lengths = np.random.default_rng(0).integers(1, 64, 45)
    given = split(lengths, 1)
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
    given = split(np.full(16, 64), 1)
    evaluator = TaskEvaluator(MODEL, mesh, given, batch_size=16)
    with jax.set_mesh(mesh):
        batch = eval_batches(given, batch_size=16)[0]
        compiled = evaluator._step.lower(random_params(MODEL), batch).compile()
    assert compiled.cost_analysis()["flops"] < 2 * 16 * 63 * 8 * 20_000 / 10
