"""What one of several processes finds out, all know: a failure ends every one of them, with the same message.

Before training starts much is done by process 0 alone (the lock, the tokenizer, the token shards), and much by each for
itself; where one fails, the others must not wait for it. So within `together` they meet in one kind of exchange only,
and a process that fails takes part in the next one, whichever it is, with its failure. From `ready` on, the devices'
own collectives are under way, and only failures of what `on_all` and its like do are exchanged: after any other a
process ends, and JAX ends the others (see `distributed`).

In one process all of it does what it would do without: `on_first(work)` is `work()`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt1_jax.config import flatten, to_dict
from gpt1_jax.errors import InputError
from gpt1_jax.files import json_text
from gpt1_jax.stop import Interrupted, raise_if_stopped

T = TypeVar("T")

_DONE, _BUSY, _BAD_INPUT, _FAILED = range(4)
_BYTES = 8192  # of a message
_PATIENCE_S = 120.0  # for the others, who may be in something else than an exchange
_MAX_PAUSE_S = 2.0


class SharedInputError(InputError):
    """An InputError that every process raises, whichever of them found it."""


class PeerFailed(RuntimeError):
    """Another process has failed with something else than an InputError; its own log has the trace."""


_sharing = False  # whether a failure now is for the next exchange


@contextlib.contextmanager
def together() -> Iterator[None]:
    """From here to `ready`, a failure of one process is the failure of all.

    Raises:
      SharedInputError: in place of an InputError of any process.
      PeerFailed: where another process failed otherwise.
    """
    global _sharing
    outer, _sharing = _sharing, jax.process_count() > 1
    try:
        yield
    except Exception as error:
        untold, _sharing = _sharing and not isinstance(error, SharedInputError | PeerFailed | Interrupted), False
        if untold:
            _tell(error)
        raise
    _sharing = outer


def ready() -> None:
    """All processes have come so far; the end of what `together` began."""
    global _sharing
    on_all(lambda: None)
    _sharing = False


def on_all(work: Callable[[], T]) -> T:
    """What `work` returns, when it has been done by every process.

    Raises:
      SharedInputError, PeerFailed: it failed on one of them, see `together`.
    """
    if jax.process_count() == 1:
        return work()
    with together():
        result = work()
        _exchange(_DONE)
    return result


def on_first(work: Callable[[], T]) -> T:
    """What `work` returns, which process 0 alone does; JSON has to hold it.

    Raises:
      SharedInputError, PeerFailed, Interrupted: as `on_some`.
    """
    if jax.process_count() == 1:
        return work()
    return _results(work, here=jax.process_index() == 0)[0]


def on_each(work: Callable[[], T]) -> list[T]:
    """What `work` returned on each process, which JSON has to hold.

    Raises:
      SharedInputError, PeerFailed, Interrupted: as `on_some`.
    """
    return _results(work, here=True)


def on_some(work: Callable[[], T], *, here: bool) -> list[T | None]:
    """What `work` returned on each process, which JSON has to hold; None for those that did not say `here`.

    It may take long, longer on one process than on another, and any may fail: it runs in a thread, while the processes
    keep meeting. No collective waits longer than seconds for it, and a SIGTERM ends them all.

    Raises:
      SharedInputError, PeerFailed: it failed.
      Interrupted: SIGTERM came before it was done.
    """
    return _results(work, here=here)


def _results(work: Callable[[], Any], *, here: bool) -> list[Any]:
    if jax.process_count() == 1:
        return [work() if here else None]
    with together():
        task = _Task(work if here else lambda: None)
        pause = 0.01
        while True:
            pause = min(2 * pause, _MAX_PAUSE_S)
            status, text = task.state(pause)
            found = _exchange(status, str(len(text)))
            if all(status == _DONE for status, _ in found):
                break
            raise_if_stopped()
        longest = max(int(length) for _, length in found)
        rounds = [_exchange(_DONE, text[start : start + _BYTES]) for start in range(0, longest, _BYTES)]
        return [json.loads("".join(piece for _, piece in pieces)) for pieces in zip(*rounds, strict=True)]


def check_equal(config: Any, *, apart_from: tuple[str, ...] = ()) -> None:
    """Refuses processes that were started with other settings than process 0: each would go on with its own.

    Args:
      config: a dataclass.
      apart_from: dotted names of fields that may differ.

    Raises:
      SharedInputError: names the fields and their values on the process that has others.
    """
    if jax.process_count() == 1:
        return
    fields = {name: value for name, value in flatten(to_dict(config)).items() if name not in apart_from}
    mine = {zlib.crc32(json_text([name, fields[name]]).encode()): name for name in fields}
    first = set(on_first(lambda: [*mine]))
    if mine.keys() != first:
        other = ", ".join(f"{name}={fields[name]!r}" for crc, name in mine.items() if crc not in first)
        raise InputError(
            f"process {jax.process_index()} was started with other settings than process 0: "
            f"{other or 'fields are missing'}; start the same command everywhere"
        )


class _Task:
    """A function at work in a thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self._error: Exception | None = None

        def run() -> None:
            try:
                self.result = work()
            except Exception as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="agreement", daemon=True)
        self._thread.start()

    def state(self, seconds: float) -> tuple[int, str]:
        """Whether it is done, after so many seconds at most, and the result as JSON; raises what it raised."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            return _BUSY, ""
        if self._error is not None:
            raise self._error
        return _DONE, json.dumps(self.result)  # ASCII


def _exchange(status: int, text: str = "") -> list[tuple[int, str]]:
    """Every process's status and text, in their order; raises what one of them has to tell of a failure."""
    data = text.encode()
    if len(data) > _BYTES:
        raise ValueError(f"{len(data)} bytes cannot be exchanged, only {_BYTES}")
    row = np.zeros(1 + _BYTES, np.uint8)
    row[0], row[1 : 1 + len(data)] = status, np.frombuffer(data, np.uint8)
    rows = multihost_utils.process_allgather(row)
    found = [(int(row[0]), row[1:].tobytes().rstrip(b"\0").decode(errors="ignore")) for row in rows]
    for process, (status, text) in enumerate(found):
        if status == _BAD_INPUT:
            raise SharedInputError(text)
        if status == _FAILED:
            raise PeerFailed(f"process {process}: {text}")
    return found


def _tell(error: Exception) -> None:
    """Takes part in the others' next exchange with a failure.

    Raises:
      SharedInputError: all know. If they do not come in time, the caller raises its error alone.
    """
    bad_input = isinstance(error, InputError)
    text = str(error) if bad_input else f"{type(error).__name__}: {error}"
    told = threading.Thread(
        target=_quietly, args=(_BAD_INPUT if bad_input else _FAILED, _first_bytes(text)), name="tell", daemon=True
    )
    told.start()
    told.join(_PATIENCE_S)
    if bad_input and not told.is_alive():
        raise SharedInputError(str(error)) from error


def _quietly(status: int, text: str) -> None:
    with contextlib.suppress(Exception):  # its own failure comes back, or the others are gone
        _exchange(status, text)


def _first_bytes(text: str) -> str:
    return text.encode()[:_BYTES].decode(errors="ignore")
