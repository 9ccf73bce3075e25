"""One compiled step over many batches: what evaluators and zero-shot scoring share."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from gpt1_jax.data.windows import Batches
from gpt1_jax.progress import Progress
from gpt1_jax.sharding import computes_side_by_side, to_global
from gpt1_jax.stop import raise_if_stopped

MAX_AHEAD = 2
"""Batches that are with the devices when the next is assembled."""


def outputs_of(
    step: Callable[[Any, Any], Any],
    params: Any,
    batches: Batches,
    mesh: Mesh,
    *,
    label: str,
) -> Iterator[Any]:
    """The step's outputs on the host, batch after batch; `mesh` has to be current.

    The devices are given later batches before the outputs of earlier ones are fetched, so that they wait neither for
    the host to assemble a batch nor for what it does with an output.

    Args:
      step: compiled, see `train.jit_eval_step`.
      params: its first argument.
      batches: this host's rows of each batch.
      mesh: where the step runs.
      label: what is shown as being evaluated, with rate and time left, where it takes long.

    Raises:
      Interrupted: between two batches.
    """
    in_flight: collections.deque[Any] = collections.deque()
    one_by_one = computes_side_by_side(mesh)  # and collectives of both would meet between processes
    first = jax.process_index() == 0
    with Progress(label, total=len(batches), unit="batches", show=first, delay=5.0) as progress:

        def fetched() -> Any:
            output = jax.device_get(in_flight.popleft())
            progress.advance(1)
            return output

        for i in range(len(batches)):
            raise_if_stopped(mesh)
            batch = to_global(batches[i], mesh)
            if one_by_one:
                jax.block_until_ready(list(in_flight))
            in_flight.append(step(params, batch))
            if len(in_flight) > MAX_AHEAD:
                yield fetched()
        while in_flight:
            yield fetched()
