"""Bucket lengths and the plan of an epoch."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.data.buckets import check_buckets, choose_buckets, plan_batches
from gpt1_jax.errors import InputError

lengths_strategy = st.lists(st.integers(1, 100), min_size=1, max_size=40).map(np.array)


def padded_tokens(lengths, buckets):
    return sum(min(bucket for bucket in buckets if bucket >= length) for length in lengths)


@settings(deadline=None, max_examples=300)
@given(lengths=lengths_strategy, count=st.integers(1, 3), n_ctx=st.sampled_from([100, 101, 128]))
def test_no_other_buckets_pad_fewer_tokens(lengths, count, n_ctx):
    buckets = choose_buckets(lengths, n_ctx, count)
    candidates = sorted({min(length, n_ctx) for length in range(8, 136, 8)} | {n_ctx})
    possible = (
        padded_tokens(lengths, chosen)
        for size in range(1, count + 1)
        for chosen in itertools.combinations(candidates, size)
        if chosen[-1] >= lengths.max()
    )
    assert len(buckets) <= count
    assert set(buckets) <= set(candidates)
    assert padded_tokens(lengths, buckets) == min(possible)


def test_one_length_needs_one_bucket_and_the_largest_stays_within_n_ctx():
    assert choose_buckets(np.full(10, 20), 512) == (24,)
    assert choose_buckets(np.array([3, 50]), 50) == (8, 50)


@settings(deadline=None, max_examples=300)
@given(lengths=lengths_strategy, batch_size=st.integers(1, 9), count=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_plan_has_every_example_once_in_the_fewest_batches(lengths, batch_size, count, seed):
    buckets = choose_buckets(lengths, 104, count)
    plan = plan_batches(lengths, np.random.default_rng(seed).permutation(len(lengths)), batch_size, buckets)
    assert plan.rows.shape == (-(-len(lengths) // batch_size), batch_size)
    assert sorted(plan.rows[plan.rows >= 0]) == list(range(len(lengths)))
    assert (plan.rows[:-1] >= 0).all()
    for rows, length in zip(plan.rows, plan.lengths, strict=True):
        longest = lengths[rows[rows >= 0]].max()
        assert length == min(bucket for bucket in buckets if bucket >= longest)


def test_short_examples_do_not_pay_for_long_ones():
    lengths = np.array([10, 100] * 32)
    plan = plan_batches(lengths, np.arange(64), 8, (16, 104))
    assert plan.lengths.tolist() == [16] * 4 + [104] * 4


@pytest.mark.parametrize(
    ("buckets", "message"),
    [((), "at least one"), ((8, 8), "distinct"), ((0, 64), "1 to"), ((8, 128), "64"), ((8,), "holds|20")],
)
def test_buckets_that_do_not_fit_are_refused(buckets, message):
    with pytest.raises(InputError, match=message):
        check_buckets(buckets, longest=20, n_ctx=64)


def test_given_buckets_may_come_in_any_order():
    assert check_buckets([64, 8], longest=20, n_ctx=64) == (8, 64)


def test_nothing_to_choose_from():
    with pytest.raises(InputError, match="0 examples"):
        choose_buckets(np.array([], int), 64)
    with pytest.raises(InputError, match="more than n_ctx=64"):
        choose_buckets(np.array([65]), 64)
