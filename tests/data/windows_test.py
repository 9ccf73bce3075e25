import collections
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from absl import logging

from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.shards import TokenShards
from gpt1_jax.data.split import Split
from gpt1_jax.data.windows import heldout_windows, prefetch, train_windows
from gpt1_jax.errors import InputError


@dataclass
class Numbers:
    """The stream 0, 1, 2, ...: a token says where it is from. Each token stands for two bytes."""

    n_tokens: int

    def read(self, start, stop):
        assert 0 <= start <= stop <= self.n_tokens
        return np.arange(start, stop, dtype=np.uint32)

    def bytes_before(self, positions):
        return 2.0 * np.asarray(positions)


def starts(windows, n_steps, first_step=0):
    """The first token of each window of some batches, in order."""
    return np.concatenate([windows[step]["tokens"][:, 0] for step in range(first_step, first_step + n_steps)])


def test_batches_have_the_documented_form():
    windows = train_windows(Numbers(1000), n_ctx=16, batch_size=4, seed=0)
    batch = windows[0]
    assert batch.keys() == {"tokens", "mask"}
    assert (batch["tokens"].shape, batch["tokens"].dtype) == ((4, 16), np.int32)
    assert (batch["mask"].shape, batch["mask"].dtype) == ((4, 16), np.float32)
    np.testing.assert_array_equal(batch["mask"], np.tile([0] + [1] * 15, (4, 1)))


@pytest.mark.parametrize("n_tokens", [16, 17, 31, 32, 1000, 1007])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_an_epoch_cuts_the_ring_into_disjoint_contiguous_windows(n_tokens, seed):
    windows = train_windows(Numbers(n_tokens), n_ctx=16, batch_size=1, seed=seed)
    assert windows.windows_per_epoch == windows.steps_per_epoch == n_tokens // 16
    for epoch in range(3):
        tokens = np.concatenate(
            [windows[epoch * windows.windows_per_epoch + i]["tokens"] for i in range(windows.windows_per_epoch)]
        )
        np.testing.assert_array_equal((tokens[:, 0:1] + np.arange(16)) % n_tokens, tokens)
        assert len(np.unique(tokens)) == tokens.size
        assert set((tokens[:, 0] - windows.phase(epoch)) % n_tokens % 16) == {0}


def test_epochs_and_seeds_have_other_phases_and_other_orders():
    """Also not those of a neighbour: epoch 1 of seed 0 is not epoch 0 of seed 1."""
    phases, orders = set(), set()
    for seed in range(4):
        windows = train_windows(Numbers(64_000), n_ctx=16, batch_size=8, seed=seed)
        for epoch in range(4):
            phases.add(windows.phase(epoch))
            order = starts(windows, 500, 500 * epoch) - windows.phase(epoch)
            orders.add(tuple(order % 64_000 // 16))
    assert len(phases) == len(orders) == 16
    assert len({phase % 16 for phase in phases}) > 4


def test_order_is_shuffled():
    windows = train_windows(Numbers(16_000), n_ctx=16, batch_size=10, seed=0)
    order = (starts(windows, 100) - windows.phase(0)) % 16_000 // 16
    assert sorted(order) == list(range(1000))
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.2


def test_a_batch_may_cross_epochs_without_loss():
    windows = train_windows(Numbers(16 * 10), n_ctx=16, batch_size=4, seed=0)
    assert windows.steps_per_epoch == 2.5
    seen = starts(windows, 5)
    for epoch in range(2):
        assert len(set(seen[epoch * 10 : epoch * 10 + 10])) == 10


@pytest.mark.parametrize("host_count", [1, 2, 4])
def test_hosts_together_have_the_batch_of_one(host_count):
    stream = Numbers(1000)
    for make in (lambda **hosts: train_windows(stream, n_ctx=16, batch_size=8, seed=3, **hosts),
                 lambda **hosts: heldout_windows(stream, n_ctx=16, batch_size=8, **hosts)):  # fmt: skip
        whole = make()
        hosts = [make(host_index=host, host_count=host_count) for host in range(host_count)]
        for step in (0, 1, 5, 8):
            for key in ("tokens", "mask"):
                rows = [host[step][key] for host in hosts]
                assert {len(part) for part in rows} == {8 // host_count}
                np.testing.assert_array_equal(np.concatenate(rows), whole[step][key])


def test_prefetch_gives_the_batches_in_order_from_any_step():
    windows = train_windows(Numbers(1000), n_ctx=16, batch_size=4, seed=0)
    for start in (0, 7, 10**6):
        batches = prefetch(windows, start, num_threads=3, buffer_size=5)
        for step in range(start, start + 40):
            np.testing.assert_array_equal(next(batches)["tokens"], windows[step]["tokens"])
        batches.close()


def test_prefetch_of_a_finite_sequence_ends():
    windows = heldout_windows(Numbers(1000), n_ctx=16, batch_size=4)
    batches = list(prefetch(windows))
    assert len(batches) == len(windows)
    for ours, batch in zip(windows, batches, strict=True):
        np.testing.assert_array_equal(ours["tokens"], batch["tokens"])
    assert len(list(prefetch(windows, len(windows) - 1))) == 1
    assert list(prefetch(windows, len(windows))) == []


def test_closing_a_prefetch_ends_its_threads():
    before = set(threading.enumerate())  # earlier iterators may still be ending theirs
    batches = prefetch(train_windows(Numbers(1000), n_ctx=16, batch_size=4, seed=0))
    next(batches)
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread for thread in threads if thread.name.startswith("grain-prefetch")]
    batches.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("n_tokens", [2, 15, 16, 17, 30, 31, 32, 46, 1000])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_heldout_windows_score_every_token_but_the_first_once(n_tokens, batch_size):
    windows = heldout_windows(Numbers(n_tokens), n_ctx=16, batch_size=batch_size)
    scored = collections.Counter()
    for batch in windows:
        assert batch["tokens"].shape == batch["mask"].shape == (batch_size, 16)
        assert not batch["mask"][:, 0].any()
        assert not batch["tokens"][:, 1:][batch["mask"][:, 1:] == 0].any()
        scored.update(batch["tokens"][batch["mask"] == 1].tolist())
        targets = np.argwhere(batch["mask"] == 1)
        rows, columns = targets.T
        np.testing.assert_array_equal(batch["tokens"][rows, columns - 1] + 1, batch["tokens"][rows, columns])
    assert scored == collections.Counter(range(1, n_tokens))
    assert windows.n_targets == n_tokens - 1
    assert windows.n_bytes == 2 * (n_tokens - 1)


def test_capped_heldout_windows_are_spread_and_reported(caplog):
    logging.set_verbosity(logging.INFO)
    with caplog.at_level("INFO"):
        windows = heldout_windows(Numbers(15 * 100 + 1), n_ctx=16, batch_size=4, max_batches=5)
    assert "max_batches=5 takes 20 of 100 windows, evenly spread; 300 of 1500 tokens are scored" in caplog.text
    assert (len(windows), windows.n_windows, windows.n_targets, windows.n_bytes) == (5, 20, 300, 600)
    assert starts(windows, 5).tolist() == list(range(0, 1500, 75))
    assert sum(batch["mask"].sum() for batch in windows) == 300
    generous = heldout_windows(Numbers(100), n_ctx=16, batch_size=4, max_batches=5)
    assert generous.n_targets == 99


def test_no_batch_beyond_the_last():
    windows = heldout_windows(Numbers(100), n_ctx=16, batch_size=4)
    for index in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows[index]


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (train_windows, {"n_ctx": 101}, "has 100 training tokens, fewer than a window of n_ctx=101"),
        (train_windows, {"n_ctx": 1}, "n_ctx=1 must be at least 2"),
        (train_windows, {"batch_size": 0}, "batch_size=0 must be at least 1"),
        (train_windows, {"batch_size": 6, "host_count": 4}, "batch_size=6 does not divide over 4 hosts"),
        (train_windows, {"host_index": 2, "host_count": 2}, "host_index=2 must be from 0 to host_count - 1 = 1"),
        (train_windows, {"seed": -1}, "seed=-1 must be at least 0"),
        (heldout_windows, {"stream": Numbers(1)}, "the held-out text has 1 tokens, at least 2 are needed"),
        (heldout_windows, {"max_batches": 0}, "max_batches=0 must be at least 1"),
        (heldout_windows, {"n_ctx": 1}, "n_ctx=1 must be at least 2"),
    ],
)
def test_what_cannot_be_done_is_refused(make, settings, message):
    arguments = {"stream": Numbers(100), "n_ctx": 16, "batch_size": 4} | settings
    if make is train_windows:
        arguments.setdefault("seed", 0)
    with pytest.raises(InputError, match=message):
        make(arguments.pop("stream"), **arguments)


def test_windows_of_real_shards(texts, tokenizer, tmp_path):
    prepare_shards(texts, tokenizer, tmp_path, split=Split(0.2), shard_bytes=4000)
    shards = TokenShards.open(tmp_path)
    windows = train_windows(shards, n_ctx=32, batch_size=8, seed=0)
    stream = np.concatenate([shards.read(0, shards.n_tokens)] * 2)
    for tokens in windows[3]["tokens"]:
        assert any((stream[i : i + 32] == tokens).all() for i in np.flatnonzero(stream == tokens[0]))
    heldout = TokenShards.open(tmp_path, "heldout")
    scored = heldout_windows(heldout, n_ctx=32, batch_size=8)
    assert sum(batch["mask"].sum() for batch in scored) == heldout.n_tokens - 1
    assert 0 <= heldout.n_bytes - scored.n_bytes < 20  # the first token
