"""Lengths that the splits of a task share."""

import logging

import numpy as np
import pytest

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.task_evaluator import shared_buckets


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
