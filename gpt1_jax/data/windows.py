"""Batches for language modelling: windows of `n_ctx` consecutive tokens of a tokenised corpus.

A batch is `{"tokens": int32 [B, L], "mask": float32 [B, L]}`, L = `n_ctx`. `mask[b, t]` is the weight of token t *as a
target*, which is predicted from the tokens before it: 0 for padding, and always 0 at t = 0.

Documents are packed: a window may hold the end of one and the start of the next, with the tokenizer's separator between
them, and attention sees across: the paper trains on contiguous text and says nothing of boundaries.

Memory does not grow with the corpus: the order of the windows is computed index by index (a pseudo-random permutation,
not a table), and tokens are read as they are asked for. Held-out windows keep 24 bytes each, and 16 a document.

With several hosts, each gets its rows of every batch (data/hosts.py): together, in order, these are the batch that one
host alone would get.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import grain
import numpy as np
from absl import logging

from gpt1_jax.data.hosts import HostIndex, host_rows
from gpt1_jax.errors import InputError

Batch = dict[str, np.ndarray]


class Batches(Protocol):
    """Batches by their number: a list of them, or what makes each when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, np.ndarray]: ...


_PHASE_SALT = 0x9E3779B9  # keeps the phases' random numbers apart from others made from the same seed


class TokenStream(Protocol):
    """What windows are cut from: `gpt1_jax.data.shards.TokenShards`."""

    @property
    def n_tokens(self) -> int:
        """Length N of the stream."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop - 1`: integers [stop - start]."""

    def bytes_before(self, positions: np.ndarray) -> np.ndarray:
        """Bytes of text that the tokens before each position stand for."""


@dataclass(frozen=True)
class _Rows:
    """The shape of a batch and the rows of it that one host gets."""

    n_ctx: int
    batch_size: int
    host_index: HostIndex
    host_count: int

    def __post_init__(self) -> None:
        if self.n_ctx < 2:
            raise InputError(f"n_ctx={self.n_ctx} must be at least 2, a token and the next one")
        host_rows(self.batch_size, self.host_index, self.host_count)

    def of_batch(self, step: int) -> list[int]:
        """The numbers of this host's rows of batch `step`, counted over all batches."""
        rows = np.arange(self.batch_size)[host_rows(self.batch_size, self.host_index, self.host_count)]
        return [step * self.batch_size + row for row in rows.tolist()]


@dataclass(frozen=True, eq=False)
class TrainWindows:
    """An endless sequence of training batches; `windows[step]` is a pure function of the seed and the step.

    An epoch cuts the stream, joined to a ring, into N // L windows from a random place on: the number of windows does
    not depend on the place, fewer than L tokens are left out, and other ones each time. Windows come in a new random
    order in every epoch; a batch may hold the last ones of an epoch and the first of the next.
    """

    stream: TokenStream
    rows: _Rows
    seed: int
    order: grain.MapDataset = field(repr=False)  # element i: the i-th window to be seen, as epoch * windows + window

    @functools.cached_property
    def windows_per_epoch(self) -> int:
        """Windows in an epoch, over all hosts."""
        return self.stream.n_tokens // self.rows.n_ctx

    @property
    def steps_per_epoch(self) -> float:
        """Batches in an epoch; rarely a whole number."""
        return self.windows_per_epoch / self.rows.batch_size

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, step: int) -> Batch:
        """The rows of this host in the batch of a step."""
        tokens = np.stack([self._window(int(self.order[row])) for row in self.rows.of_batch(step)])
        mask = np.ones(tokens.shape, np.float32)
        mask[:, 0] = 0
        return {"tokens": tokens, "mask": mask}

    def phase(self, epoch: int) -> int:
        """The place in the stream from which the windows of an epoch are cut."""
        return int(np.random.default_rng((_PHASE_SALT, self.seed, epoch)).integers(self.stream.n_tokens))

    def _window(self, number: int) -> np.ndarray:
        n_ctx, n_tokens = self.rows.n_ctx, self.stream.n_tokens
        epoch, window = divmod(number, self.windows_per_epoch)
        start = (self._phases(epoch) + window * n_ctx) % n_tokens
        tokens = self.stream.read(start, min(start + n_ctx, n_tokens))
        if len(tokens) < n_ctx:
            tokens = np.concatenate([tokens, self.stream.read(0, n_ctx - len(tokens))])
        return tokens.astype(np.int32)

    @functools.cached_property
    def _phases(self) -> Callable[[int], int]:
        return functools.lru_cache(maxsize=8)(self.phase)


def _shuffled(n_windows: int, seed: int) -> grain.MapDataset:
    # A source sees its index modulo its length; `map_with_index` sees the epoch as well.
    numbers = grain.MapDataset.range(n_windows).map_with_index(lambda index, _: index)
    # `seed` before `shuffle`: with `shuffle(seed)`, an epoch of one seed is the next epoch of the seed before.
    order = numbers.seed(seed).shuffle()
    order[0]  # grain's statistics are set up on first use, which is not safe in threads
    return order


def train_windows(
    stream: TokenStream, *, n_ctx: int, batch_size: int, seed: int, host_index: HostIndex = 0, host_count: int = 1
) -> TrainWindows:
    """Training batches from a stream of tokens.

    Args:
      stream: N tokens.
      n_ctx: L, tokens of a window, of which L - 1 are targets.
      batch_size: windows of a batch over all hosts.
      seed: of the order and the phases.
      host_index: which blocks of rows of each batch are wanted.
      host_count: blocks of a batch.

    Raises:
      InputError: the stream is shorter than one window, or the batch does not divide over the hosts.
    """
    rows = _Rows(n_ctx, batch_size, host_index, host_count)
    if seed < 0:
        raise InputError(f"seed={seed} must be at least 0")
    if stream.n_tokens < n_ctx:
        raise InputError(
            f"the corpus has {stream.n_tokens} training tokens, fewer than a window of n_ctx={n_ctx}; give more text, "
            "a smaller heldout_fraction or a smaller n_ctx"
        )
    windows = TrainWindows(stream, rows, seed, _shuffled(stream.n_tokens // n_ctx, seed))
    logging.info(
        "training windows: %d tokens, %d windows of %d, %.1f batches of %d per epoch",
        stream.n_tokens,
        windows.windows_per_epoch,
        n_ctx,
        windows.steps_per_epoch,
        batch_size,
    )
    return windows


@dataclass(frozen=True, eq=False)
class HeldoutWindows:
    """A finite sequence of batches in which every token of the stream is a target once, except the very first.

    Window w has the tokens from w * (L - 1) on: neighbours share one token, which is a target only in the earlier one.
    The last window is padded with zeros, the last batch with empty windows, so that all batches have one shape.

    Attributes:
      chosen: int64 [W], the windows' numbers; all of them, or evenly spread ones.
    """

    stream: TokenStream
    rows: _Rows
    chosen: np.ndarray = field(repr=False)

    @property
    def n_windows(self) -> int:
        """Windows that are scored, over all hosts."""
        return len(self.chosen)

    @functools.cached_property
    def n_targets(self) -> int:
        """Tokens that are scored, over all hosts: the sum of all masks."""
        starts, stops = self._bounds
        return int((stops - starts - 1).sum())

    @functools.cached_property
    def n_bytes(self) -> float:
        """UTF-8 bytes of raw text that the scored tokens stand for: the denominator of bits per byte."""
        starts, stops = self._bounds
        return float((self.stream.bytes_before(stops) - self.stream.bytes_before(starts + 1)).sum())

    def __len__(self) -> int:
        return -(-len(self.chosen) // self.rows.batch_size)

    def __getitem__(self, index: int) -> Batch:
        """The rows of this host in a batch."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        numbers = self.rows.of_batch(index)
        shape = (len(numbers), self.rows.n_ctx)
        tokens, mask = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        starts, stops = self._bounds
        for row, number in enumerate(numbers):
            if number < len(self.chosen):
                length = int(stops[number] - starts[number])
                tokens[row, :length] = self.stream.read(int(starts[number]), int(stops[number]))
                mask[row, 1:length] = 1
        return {"tokens": tokens, "mask": mask}

    @functools.cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Int64 [W] each: where the chosen windows start and stop in the stream."""
        starts = self.chosen * (self.rows.n_ctx - 1)
        return starts, np.minimum(starts + self.rows.n_ctx, self.stream.n_tokens)


def heldout_windows(
    stream: TokenStream,
    *,
    n_ctx: int,
    batch_size: int,
    max_batches: int | None = None,
    host_index: HostIndex = 0,
    host_count: int = 1,
) -> HeldoutWindows:
    """Evaluation batches from a stream of tokens.

    Args:
      stream: N tokens, at least 2.
      n_ctx: L, tokens of a window.
      batch_size: windows of a batch over all hosts.
      max_batches: at most this many batches, of windows spread evenly over the stream (and the log says so).
      host_index: which blocks of rows of each batch are wanted.
      host_count: blocks of a batch.

    Raises:
      InputError: the stream has no target, or the batch does not divide over the hosts.
    """
    rows = _Rows(n_ctx, batch_size, host_index, host_count)
    if stream.n_tokens < 2:
        raise InputError(f"the held-out text has {stream.n_tokens} tokens, at least 2 are needed; give more text")
    if max_batches is not None and max_batches < 1:
        raise InputError(f"max_batches={max_batches} must be at least 1, or None for all")
    n_windows = -(-(stream.n_tokens - 1) // (n_ctx - 1))
    n_chosen = n_windows if max_batches is None else min(n_windows, max_batches * batch_size)
    windows = HeldoutWindows(stream, rows, np.arange(n_chosen, dtype=np.int64) * n_windows // n_chosen)
    if n_chosen < n_windows:
        logging.info(
            "held-out windows: max_batches=%d takes %d of %d windows, evenly spread; %d of %d tokens are scored",
            max_batches,
            n_chosen,
            n_windows,
            windows.n_targets,
            stream.n_tokens - 1,
        )
    return windows


def prefetch(
    batches: Batches,
    start: int = 0,
    *,
    num_threads: int = 2,
    buffer_size: int = 8,
) -> grain.DatasetIterator[Batch]:
    """Iterates over batches from number `start` on, reading ahead in threads. The order is that of the indices.

    `close()` ends the threads; so does the end of the program.
    """
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=buffer_size)
    dataset = grain.MapDataset.range(start, len(batches)).map(batches.__getitem__)
    return iter(dataset.to_iter_dataset(options))
