"""Length buckets: a few static lengths, and which examples share a batch.

Every distinct batch length is one compilation; every padded position is wasted work. So lengths are rounded up to
one of a few, chosen to waste the least, and a batch takes its examples from one bucket. What does not fill a batch
moves up to the next bucket, so that an epoch has exactly ceil(N / B) batches and only the last one may be partial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpt1_jax.errors import InputError

MULTIPLE = 8  # attention kernels want lengths that are multiples of 8


class Plan(NamedTuple):
    """Which examples each batch holds, and the length it is padded to."""

    rows: np.ndarray  # int32 [steps, B], -1 where a batch is partial
    lengths: np.ndarray  # int32 [steps]


def choose_buckets(lengths: np.ndarray, n_ctx: int, count: int = 4) -> tuple[int, ...]:
    """The at most `count` bucket lengths that pad the fewest tokens; the largest holds the longest example.

    All are multiples of 8, except that none exceeds `n_ctx`. To bound compilations, choose once for all splits of a
    task (concatenate their lengths).

    Args:
      lengths: int [N], tokens per example (of its longest stream), at most `n_ctx`.

    Returns:
      ascending lengths.

    Raises:
      InputError: without examples, for a count below 1 or a length beyond `n_ctx`.
    """
    if not len(lengths) or count < 1:
        raise InputError(f"choose_buckets: {len(lengths)} examples and {count} buckets; at least one of each is needed")
    if np.max(lengths) > n_ctx:
        raise InputError(f"choose_buckets: an example has {np.max(lengths)} tokens, more than n_ctx={n_ctx}")
    rounded = np.minimum(-(-np.asarray(lengths) // MULTIPLE) * MULTIPLE, n_ctx)
    ends, counts = (values.tolist() for values in np.unique(rounded, return_counts=True))
    below = [0, *np.cumsum(counts).tolist()]  # below[j]: how many examples have one of the first j lengths
    # best[j]: fewest tokens, and the buckets, to hold the first j lengths with as many buckets as rounds so far.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for _ in range(count):
        best = {0: (0, ())} | {
            j: min(
                (best[i][0] + (below[j] - below[i]) * ends[j - 1], (*best[i][1], ends[j - 1])) for i in best if i < j
            )
            for j in range(1, len(ends) + 1)
        }
    return best[len(ends)][1]


def powers_of_two(n_ctx: int, smallest: int = 16) -> tuple[int, ...]:
    """The powers of two from `smallest` on that are shorter than `n_ctx`, and `n_ctx`: for examples that are not known.

    At most half of what is computed is padding, and all lengths take a handful of compilations.
    """
    lengths = []
    while smallest < n_ctx:
        lengths.append(smallest)
        smallest *= 2
    return (*lengths, n_ctx)


def check_buckets(buckets: Sequence[int], longest: int, n_ctx: int) -> tuple[int, ...]:
    """Returns the buckets as an ascending tuple.

    Raises:
      InputError: if they are not distinct lengths in 1..n_ctx, or the largest does not hold the longest example.
    """
    result = tuple(sorted(buckets))
    if not result or len(set(result)) != len(result) or result[0] < 1 or result[-1] > n_ctx:
        raise InputError(
            f"buckets={tuple(buckets)!r}: distinct lengths from 1 to n_ctx={n_ctx} are allowed, at least one"
        )
    if result[-1] < longest:
        raise InputError(
            f"buckets={tuple(buckets)!r}: the longest example has {longest} tokens; add a bucket such as {n_ctx}"
        )
    return result


def plan_batches(lengths: np.ndarray, order: np.ndarray, batch_size: int, buckets: Sequence[int]) -> Plan:
    """Puts every example into exactly one of ceil(N / B) batches of one bucket's length; only the last may be partial.

    Args:
      lengths: int [N], at most `buckets[-1]`.
      order: a permutation of range(N); within a bucket, examples are taken in this order.
      buckets: ascending lengths.
    """
    bucket_of = np.searchsorted(buckets, lengths[order])
    pool = np.empty(0, order.dtype)
    batches = []
    for bucket in range(len(buckets)):
        pool = np.concatenate([pool, order[bucket_of == bucket]])
        n_full = len(pool) // batch_size * batch_size
        batches.append(pool[:n_full].reshape(-1, batch_size))
        pool = pool[n_full:]
    if len(pool):
        batches.append(np.pad(pool, (0, batch_size - len(pool)), constant_values=-1)[None])
    rows = np.concatenate(batches)
    longest = np.where(rows >= 0, lengths[rows], 0).max(axis=1)
    return Plan(rows.astype(np.int32), np.asarray(buckets, np.int32)[np.searchsorted(buckets, longest)])
