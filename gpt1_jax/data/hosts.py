"""Which rows of a batch a host gets: some of its equal, contiguous blocks, so that no host reads what it does not need.

Blocks are numbered in the order of the rows. Usually a host has the block of its own number; it has several where its
devices do (`gpt1_jax.sharding.row_blocks`), and where two hosts have parts of the same rows, both get their block.
"""

from __future__ import annotations

import numpy as np

from gpt1_jax.errors import InputError

HostIndex = int | tuple[int, ...]


def host_rows(batch_size: int, host_index: HostIndex, host_count: int) -> slice | np.ndarray:
    """The rows of the block number `host_index`, or of several in ascending order, of `host_count`: what to index by.

    Raises:
      InputError: there is no such block, or the batch does not divide.
    """
    blocks = (host_index,) if isinstance(host_index, int) else host_index
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} must be at least 1")
    if not all(0 <= block < host_count for block in blocks):
        raise InputError(f"host_index={host_index} must be from 0 to host_count - 1 = {host_count - 1}")
    size, rest = divmod(batch_size, host_count)
    if rest:
        raise InputError(
            f"batch_size={batch_size} does not divide over {host_count} hosts; use a multiple of {host_count}"
        )
    if blocks[-1] - blocks[0] == len(blocks) - 1:
        return slice(blocks[0] * size, (blocks[-1] + 1) * size)
    return (np.array(blocks)[:, None] * size + np.arange(size)).ravel()
