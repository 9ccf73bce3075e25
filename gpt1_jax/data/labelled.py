"""Encoded examples as padded batches of a few static shapes.

A batch has B examples of C streams of L tokens:

| key | type | meaning |
|---|---|---|
| tokens | int32 [B, C, L] | token ids, padded on the right with 0 |
| mask | float32 [B, C, L] | 1 for a real token |
| stream_mask | bool [B, C] | False where an example has fewer than C answers |
| label | int32 [B] | class; -1 in an unlabelled split, 0 in a padded row. Of scores float32: the score; NaN, 0 |
| weight | float32 [B] | 1 for an example or its class's weight, 0 for a padded row |
| index | int32 [B] | evaluation only: the example's place in its split, -1 for a padded row |

A padded row has mask 0 everywhere; its first stream counts as present, so that a softmax over its answers stays finite.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, overload

import grain
import numpy as np

from gpt1_jax.data.buckets import Plan, check_buckets, choose_buckets, plan_batches
from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.hosts import HostIndex, host_rows
from gpt1_jax.errors import InputError, counted

Batch = dict[str, np.ndarray]


class TrainBatches(grain.MapDataset):
    """An endless dataset: `self[step]` is the batch of a training step, whatever steps were asked for before.

    Args:
      split: labelled examples.
      plan_epoch: epoch, from 0 -> its batches; a pure function.
      steps_per_epoch: how many batches each plan has.
      buckets: the lengths that batches may have.
      rows: this host's rows of a batch.

    Raises:
      InputError: the split is not labelled.
    """

    def __init__(
        self,
        split: EncodedSplit,
        plan_epoch: Callable[[int], Plan],
        steps_per_epoch: int,
        buckets: tuple[int, ...],
        rows: slice | np.ndarray,
    ):
        super().__init__()
        if split.n_unlabelled:
            unlabelled = counted(split.n_unlabelled, "example")
            raise InputError(f"split {split.name!r}: {unlabelled} without a label; train on a labelled split")
        self.buckets = buckets
        self.steps_per_epoch = steps_per_epoch
        self._split, self._host_rows = split, rows
        self._plan = functools.lru_cache(maxsize=2)(plan_epoch)  # threads may be at work on two epochs

    def __len__(self) -> int:
        return sys.maxsize

    @overload
    def __getitem__(self, step: int) -> Batch: ...
    @overload
    def __getitem__(self, step: slice) -> grain.MapDataset[Batch]: ...
    def __getitem__(self, step: int | slice) -> Any:
        if isinstance(step, slice):
            return self.slice(step)
        if step < 0:
            raise IndexError(f"step {step} is negative")
        epoch, i = divmod(int(step), self.steps_per_epoch)
        plan = self._plan(epoch)
        return _assemble(self._split, plan.rows[i][self._host_rows], int(plan.lengths[i]))


class EvalBatches(grain.MapDataset):
    """A finite dataset of ceil(N / B) batches that hold every example exactly once, short ones first."""

    def __init__(self, split: EncodedSplit, batch_size: int, buckets: tuple[int, ...], rows: slice | np.ndarray):
        super().__init__()
        self.buckets = buckets
        self._split, self._host_rows = split, rows
        self._plan = plan_batches(split.lengths, np.arange(len(split)), batch_size, buckets)

    def __len__(self) -> int:
        return len(self._plan.rows)

    @overload
    def __getitem__(self, i: int) -> Batch: ...
    @overload
    def __getitem__(self, i: slice) -> grain.MapDataset[Batch]: ...
    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return self.slice(i)
        i %= len(self)
        rows = self._plan.rows[i][self._host_rows]
        return _assemble(self._split, rows, int(self._plan.lengths[i])) | {"index": rows}


def train_batches(
    split: EncodedSplit,
    *,
    batch_size: int,
    seed: int,
    buckets: Sequence[int] | None = None,
    host_index: HostIndex = 0,
    host_count: int = 1,
) -> TrainBatches:
    """The batches of training, for one host of several, as a pure function of (seed, step).

    Each epoch of ceil(N / B) steps holds every example once, in a new order.

    Args:
      batch_size: examples in the batch of all hosts together.
      host_index: which blocks of rows of each batch are wanted, see data/hosts.py.
      host_count: blocks of a batch.
      buckets: the lengths L may take; None: chosen from the data. `(n_ctx,)` turns bucketing off.

    Raises:
      InputError: for an unlabelled split, or a value that does not fit.
    """
    if seed < 0:
        raise InputError(f"seed={seed} must be at least 0")
    rows = host_rows(batch_size, host_index, host_count)
    checked = _buckets(split, buckets)
    n_full, n_left = divmod(len(split), batch_size)
    steps_per_epoch = n_full + (n_left > 0)

    def plan_epoch(epoch: int) -> Plan:
        rng = np.random.default_rng((seed, epoch))
        plan = plan_batches(split.lengths, rng.permutation(len(split)), batch_size, checked)
        # The buckets come out short to long: mix them, but leave a partial batch where it is expected, at the end.
        order = np.concatenate([rng.permutation(n_full), np.arange(n_full, steps_per_epoch)])
        return Plan(plan.rows[order], plan.lengths[order])

    return TrainBatches(split, plan_epoch, steps_per_epoch, checked, rows)


def eval_batches(
    split: EncodedSplit,
    *,
    batch_size: int,
    buckets: Sequence[int] | None = None,
    host_index: HostIndex = 0,
    host_count: int = 1,
) -> EvalBatches:
    """The batches of an evaluation; see `train_batches` for the arguments.

    Raises:
      InputError: for a value that does not fit.
    """
    rows = host_rows(batch_size, host_index, host_count)
    return EvalBatches(split, batch_size, _buckets(split, buckets), rows)


def _buckets(split: EncodedSplit, buckets: Sequence[int] | None) -> tuple[int, ...]:
    if buckets is None:
        return choose_buckets(split.lengths, split.n_ctx)
    return check_buckets(buckets, int(split.lengths.max()), split.n_ctx)


def _assemble(split: EncodedSplit, rows: np.ndarray, length: int) -> Batch:
    """Pads the examples `rows` (-1: a padded row) to one batch."""
    n_streams = int(split.n_streams.max())
    tokens = np.zeros((len(rows), n_streams, length), np.int32)
    mask = np.zeros((len(rows), n_streams, length), np.float32)
    stream_mask = np.zeros((len(rows), n_streams), np.bool_)
    stream_mask[:, 0] = True
    for b, row in enumerate(rows):
        if row < 0:
            continue
        for c, stream in enumerate(split.streams(row)):
            tokens[b, c, : len(stream)] = stream
            mask[b, c, : len(stream)] = 1
            stream_mask[b, c] = True
    real = rows >= 0
    return {
        "tokens": tokens,
        "mask": mask,
        "stream_mask": stream_mask,
        "label": np.where(real, split.labels[rows], 0).astype(np.float32 if split.has_scores else np.int32),
        "weight": np.where(real, 1.0 if split.weights is None else split.weights[rows], 0.0).astype(np.float32),
    }
