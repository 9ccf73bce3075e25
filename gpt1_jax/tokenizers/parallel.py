"""Documents to token arrays, on one core or on several.

Worker processes are spawned, not forked: a fork of a process that runs JAX's threads can deadlock.
"""

from __future__ import annotations

import collections
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpt1_jax.tokenizers.protocol import Tokenizer

A = TypeVar("A")
B = TypeVar("B")

_AHEAD = 4  # batches a worker may have waiting, so that it has work while its parent writes a file
_function: Callable[[Any], Any] | None = None  # of a worker process


class EncodedDocuments(NamedTuple):
    """The tokens of n documents laid end to end, each followed by the tokenizer's document separator."""

    tokens: np.ndarray  # uint16 or uint32 [T]
    lengths: np.ndarray  # int64 [n], summing to T


def n_cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest of uint16 and uint32 (little-endian) that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedDocuments:
    """Encodes documents in order."""
    dtype = token_dtype(tokenizer.vocab_size)
    encode = getattr(tokenizer, "encode_arrays", tokenizer.encode_batch)  # arrays, where they can be had without lists
    separator = np.array(tokenizer.document_separator, dtype)
    documents = [np.asarray(ids, dtype) for ids in encode(texts)]
    lengths = np.array([len(ids) + len(separator) for ids in documents], np.int64)
    stream = [part for ids in documents for part in (ids, separator)]
    return EncodedDocuments(np.concatenate([np.zeros(0, dtype), *stream]), lengths)


@contextmanager
def ordered_map(function: Callable[[A], B], workers: int = 1) -> Iterator[Callable[[Iterable[A]], Iterator[B]]]:
    """Gives a lazy `map` of `function` whose results come in the order of the inputs for any number of workers.

    Inputs are taken as the results are: no more than a few for each worker are in memory.

    Args:
      function: pickled once to each worker.
      workers: processes; 1 works in this one. As always with spawned processes, the main program has to be
        importable (`if __name__ == "__main__":`).
    """
    if workers == 1:
        yield functools.partial(map, function)
        return
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(function,)
    ) as pool:

        def mapped(inputs: Iterable[A]) -> Iterator[B]:
            # A bounded queue: the pool itself would take in the whole corpus.
            pending: collections.deque[Future[B]] = collections.deque()
            for value in inputs:
                pending.append(pool.submit(_call_in_worker, value))
                if len(pending) > _AHEAD * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

        try:
            yield mapped
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call_in_worker(value: Any) -> Any:
    assert _function is not None
    return _function(value)
