"""Which rows of a batch a host gets: a contiguous block, so that the blocks of all hosts in order are the batch."""

from __future__ import annotations

from gpt1_jax.errors import InputError


def host_rows(batch_size: int, host_index: int, host_count: int) -> slice:
    """The rows of host number `host_index` of `host_count`.

    Raises:
      InputError: there is no such host, or the batch does not divide.
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} must be at least 1")
    if not 0 <= host_index < host_count:
        raise InputError(f"host_index={host_index} must be from 0 to host_count - 1 = {host_count - 1}")
    per_host, rest = divmod(batch_size, host_count)
    if rest:
        raise InputError(
            f"batch_size={batch_size} does not divide over {host_count} hosts; use a multiple of {host_count}"
        )
    return slice(host_index * per_host, (host_index + 1) * per_host)
