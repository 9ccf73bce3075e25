"""The order and the shape of the original program's batches, against its own few lines of NumPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils import shuffle

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.original import epoch_order, max_text_tokens, original_batches, shrunken_n_ctx
from gpt1_jax.errors import InputError


def split_of(lengths, n_ctx, labels=None):
    """Examples of one stream each, whose tokens are their number + 1."""
    n = len(lengths)
    return EncodedSplit(
        name="train",
        tokens=np.repeat(np.arange(1, n + 1), lengths).astype(np.int32),
        stream_starts=np.concatenate([[0], np.cumsum(lengths)]),
        example_starts=np.arange(n + 1),
        labels=np.zeros(n, np.int32) if labels is None else labels,
        ids=tuple(map(str, range(n))),
        n_ctx=n_ctx,
        n_truncated=0,
        n_cut=0,
    )


@pytest.mark.parametrize(("seed", "n_embd", "n"), [(42, 24, 11), (0, 5, 8), (7, 768, 100)])
def test_the_order_is_that_of_one_generator_that_first_draws_the_special_rows(seed, n_embd, n):
    generator = np.random.RandomState(seed)
    generator.randn(3, n_embd)
    orders = [shuffle(np.arange(n), random_state=generator) for _ in range(4)]
    for epoch in (3, 0, 2, 1):
        np.testing.assert_array_equal(epoch_order(seed, n_embd, n, epoch), orders[epoch])


def test_every_batch_has_one_length_and_the_tail_is_dropped():
    split = split_of(np.array([3, 9, 4, 5, 2, 6, 3]), n_ctx=9)
    batches = original_batches(split, batch_size=3, seed=1, n_embd=4)
    assert batches.steps_per_epoch == 2
    for step in range(6):
        epoch, i = divmod(step, 2)
        rows = epoch_order(1, 4, 7, epoch)[3 * i : 3 * i + 3]
        batch = batches[step]
        assert batch["tokens"].shape == (3, 1, 9)
        assert batch["tokens"][:, 0, 0].tolist() == (rows + 1).tolist()
        np.testing.assert_array_equal(batch["mask"].sum(axis=(1, 2)), split.lengths[rows])
        assert batch["weight"].all()


def test_each_host_has_its_rows():
    split = split_of(np.arange(2, 12), n_ctx=11)
    whole = original_batches(split, batch_size=4, seed=0, n_embd=4)
    hosts = [original_batches(split, batch_size=4, seed=0, n_embd=4, host_index=i, host_count=2) for i in range(2)]
    for step in range(4):
        for key, value in whole[step].items():
            np.testing.assert_array_equal(value, np.concatenate([host[step][key] for host in hosts]))


def test_the_context_is_the_longest_example_and_half_of_it_a_text():
    assert shrunken_n_ctx([split_of([3, 7], 20), split_of([5], 20)]) == 7
    assert [max_text_tokens(n) for n in (512, 73, 6)] == [254, 34, 1]
    with pytest.raises(InputError, match="use at least 6"):
        max_text_tokens(5)


def test_what_cannot_be_trained_on_is_refused():
    with pytest.raises(InputError, match="batch_size=4 with original_batches=True leaves all 3"):
        original_batches(split_of([3, 3, 3], 3), batch_size=4, seed=0, n_embd=4)
    with pytest.raises(InputError, match="2 examples without a label"):
        original_batches(split_of([3, 3], 3, labels=np.array([-1, -1])), batch_size=1, seed=0, n_embd=4)
