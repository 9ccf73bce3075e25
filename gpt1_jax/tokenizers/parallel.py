"""Documents to token arrays, on one core or on several.

Worker processes are spawned, not forked: a fork of a process that runs JAX's threads can deadlock.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from gpt1_jax.tokenizers.protocol import Tokenizer

_tokenizer: Tokenizer | None = None  # of a worker process


class EncodedDocuments(NamedTuple):
    """The tokens of n documents laid end to end, each followed by the tokenizer's document separator."""

    tokens: np.ndarray  # uint16 or uint32 [T]
    lengths: np.ndarray  # int64 [n], summing to T


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest of uint16 and uint32 (little-endian) that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedDocuments:
    """Encodes documents in order."""
    stream: list[int] = []
    ends = []
    for ids in tokenizer.encode_batch(texts):
        stream.extend(ids)
        stream.extend(tokenizer.document_separator)
        ends.append(len(stream))
    lengths = np.diff(np.array([0, *ends], np.int64))
    return EncodedDocuments(np.array(stream, token_dtype(tokenizer.vocab_size)), lengths)


Encoder = Callable[[Iterable[Sequence[str]]], Iterator[EncodedDocuments]]


@contextmanager
def document_encoder(tokenizer: Tokenizer, workers: int = 1) -> Iterator[Encoder]:
    """Gives a function that maps batches of documents to their tokens, in the same order for any number of workers.

    Args:
      tokenizer: pickled once to each worker.
      workers: processes; 1 encodes in this one. As always with spawned processes, the main program has to be
        importable (`if __name__ == "__main__":`).
    """
    if workers == 1:
        yield lambda batches: (encode_documents(tokenizer, texts) for texts in batches)
        return
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(tokenizer,)
    ) as pool:

        def encode(batches: Iterable[Sequence[str]]) -> Iterator[EncodedDocuments]:
            # A bounded queue: the pool itself would take in the whole corpus.
            pending: collections.deque[Future[EncodedDocuments]] = collections.deque()
            for texts in batches:
                pending.append(pool.submit(_encode_in_worker, texts))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

        try:
            yield encode
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _start_worker(tokenizer: Tokenizer) -> None:
    global _tokenizer
    _tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode_in_worker(texts: Sequence[str]) -> EncodedDocuments:
    assert _tokenizer is not None
    return encode_documents(_tokenizer, texts)
