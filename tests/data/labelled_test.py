"""The batches of training and evaluation."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.labelled import eval_batches, train_batches
from gpt1_jax.errors import InputError


def split_of(lengths, seed=0, n_choices=None, n_ctx=64):
    """A split with the given stream lengths; the tokens of example i are i + 1, so that batches can be read."""
    n = len(lengths)
    n_choices = np.ones(n, int) if n_choices is None else np.asarray(n_choices)
    stream_lengths = np.repeat(lengths, n_choices)
    return EncodedSplit(
        name="train",
        tokens=np.repeat(np.repeat(np.arange(1, n + 1), n_choices), stream_lengths).astype(np.int32),
        stream_starts=np.concatenate([[0], np.cumsum(stream_lengths)]),
        example_starts=np.concatenate([[0], np.cumsum(n_choices)]),
        labels=(np.arange(n) % 2).astype(np.int32),
        ids=tuple(map(str, range(n))),
        n_ctx=n_ctx,
        n_truncated=0,
        n_cut=0,
    )


def examples_of(batch):
    """The example numbers in a batch of `split_of`, padded rows left out."""
    return (batch["tokens"][:, 0, 0][batch["weight"] > 0] - 1).tolist()


def test_ragged_multiple_choice_makes_masked_streams():
    batch = eval_batches(split_of([6, 7], n_choices=[2, 3]), batch_size=3)[0]
    assert batch["tokens"].shape == (3, 3, 8)
    assert batch["stream_mask"].tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert batch["mask"].sum(axis=-1).tolist() == [[6, 6, 0], [7, 7, 7], [0, 0, 0]]
    assert batch["tokens"][0, 1].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    assert batch["label"].tolist() == [0, 1, 0]
    assert batch["weight"].tolist() == [1, 1, 0]
    assert batch["index"].tolist() == [0, 1, -1]
    assert {key: value.dtype.name for key, value in batch.items()} == {
        "tokens": "int32",
        "mask": "float32",
        "stream_mask": "bool",
        "label": "int32",
        "weight": "float32",
        "index": "int32",
    }


shapes = st.tuples(
    st.lists(st.integers(2, 60), min_size=1, max_size=40).map(np.array),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 9),
)


@settings(deadline=None, max_examples=200)
@given(shape=shapes, bucketed=st.booleans())
def test_an_epoch_has_every_example_once_on_any_number_of_hosts(shape, bucketed):
    lengths, per_host, hosts, seed = shape
    split, batch_size, buckets = split_of(lengths), per_host * hosts, None if bucketed else (64,)
    one = train_batches(split, batch_size=batch_size, seed=seed, buckets=buckets)
    many = [
        train_batches(split, batch_size=batch_size, seed=seed, buckets=buckets, host_index=i, host_count=hosts)
        for i in range(hosts)
    ]
    assert one.steps_per_epoch == -(-len(split) // batch_size)
    for epoch in range(2):
        seen = []
        for i in range(one.steps_per_epoch):
            step = epoch * one.steps_per_epoch + i
            batch, parts = one[step], [dataset[step] for dataset in many]
            assert batch["tokens"].shape[:2] == (batch_size, 1)
            assert batch["tokens"].shape[2] in one.buckets
            for key, value in batch.items():
                np.testing.assert_array_equal(value, np.concatenate([part[key] for part in parts]))
            n_real = batch_size if i < one.steps_per_epoch - 1 else len(split) - i * batch_size
            assert batch["weight"].sum() == n_real  # only an epoch's last batch is partial
            numbers = examples_of(batch)
            np.testing.assert_array_equal(batch["mask"].sum(axis=(1, 2))[:n_real], lengths[numbers])
            np.testing.assert_array_equal(batch["label"][:n_real], split.labels[numbers])
            assert not batch["mask"][n_real:].any()
            seen += numbers
        assert sorted(seen) == list(range(len(split)))


@settings(deadline=None, max_examples=150)
@given(shape=shapes)
def test_evaluation_has_every_example_once_on_any_number_of_hosts(shape):
    lengths, per_host, hosts, _ = shape
    split, batch_size = split_of(lengths), per_host * hosts
    one = eval_batches(split, batch_size=batch_size)
    many = [eval_batches(split, batch_size=batch_size, host_index=i, host_count=hosts) for i in range(hosts)]
    assert len(one) == -(-len(split) // batch_size)
    seen = []
    for i in range(len(one)):
        for key, value in one[i].items():
            np.testing.assert_array_equal(value, np.concatenate([dataset[i][key] for dataset in many]))
        index = one[i]["index"]
        assert index[index >= 0].tolist() == examples_of(one[i])
        np.testing.assert_array_equal(one[i]["weight"], index >= 0)
        seen += examples_of(one[i])
    assert sorted(seen) == list(range(len(split)))


@settings(deadline=None, max_examples=60)
@given(shape=shapes, steps=st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_a_batch_depends_on_seed_and_step_alone(shape, steps):
    lengths, batch_size, _, seed = shape
    used = train_batches(split_of(lengths), batch_size=batch_size, seed=seed)
    for step in steps:
        fresh = train_batches(split_of(lengths), batch_size=batch_size, seed=seed)
        for key, value in used[step].items():
            np.testing.assert_array_equal(value, fresh[step][key])


def test_epochs_and_seeds_differ_and_long_batches_do_not_come_last():
    lengths = np.repeat([10, 20, 30, 40], 64)
    batches = train_batches(split_of(lengths), batch_size=8, seed=0)
    epochs = [[tuple(examples_of(batches[e * 32 + i])) for i in range(32)] for e in range(3)]
    other = train_batches(split_of(lengths), batch_size=8, seed=1)
    epochs.append([tuple(examples_of(other[i])) for i in range(32)])
    assert len({frozenset(epoch) for epoch in epochs}) == 4
    shapes = [batches[i]["tokens"].shape[2] for i in range(32)]
    assert sorted(shapes) != shapes
    assert sorted(set(shapes)) == list(batches.buckets) == [16, 24, 32, 40]


def test_grain_prefetches_from_any_step_and_over_epochs():
    batches = train_batches(split_of(np.arange(2, 22)), batch_size=8, seed=3)
    iterator = iter(batches.to_iter_dataset())
    iterator.set_state({"next_index": 2})
    for step in range(2, 8):
        np.testing.assert_array_equal(next(iterator)["tokens"], batches[step]["tokens"])
    evaluation = eval_batches(split_of(np.arange(2, 22)), batch_size=8)
    assert [batch["index"].tolist() for batch in evaluation] == [evaluation[i]["index"].tolist() for i in range(3)]


def test_bucketing_off_is_one_shape():
    batches = train_batches(split_of(np.arange(2, 60)), batch_size=8, seed=0, buckets=(64,))
    assert {batches[step]["tokens"].shape for step in range(batches.steps_per_epoch)} == {(8, 1, 64)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 6, "host_count": 4}, "batch_size=6 does not divide over 4 hosts"),
        ({"host_index": 2, "host_count": 2}, "host_index=2 must be from 0 to host_count - 1 = 1"),
        ({"seed": -1}, "seed=-1"),
        ({"buckets": (8,)}, "longest example has 20 tokens"),
        ({"buckets": (128,)}, "n_ctx=64"),
    ],
)
def test_values_that_do_not_fit_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        train_batches(split_of(np.array([20, 3])), **{"batch_size": 2, "seed": 0, **change})


def test_training_needs_labels_and_steps_are_not_negative():
    split = dataclasses.replace(split_of(np.array([3])), name="test", labels=np.array([-1], np.int32))
    with pytest.raises(InputError, match="split 'test': 1 example without a label"):
        train_batches(split, batch_size=1, seed=0)
    assert eval_batches(split, batch_size=1)[0]["label"].tolist() == [-1]
    with pytest.raises(IndexError):
        train_batches(split_of(np.array([3])), batch_size=1, seed=0)[-1]
