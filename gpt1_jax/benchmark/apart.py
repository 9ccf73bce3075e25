"""A contestant in a process of its own: with the C library, the threads and the memory that its users give it.

Ours keeps what it has freed (see `gpt1_jax.host_memory`), which is a setting of the whole process, and two libraries
that each have a thread for every core would be in each other's way.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from gpt1_jax.benchmark.timing import Clock, Contestant


@dataclasses.dataclass
class Apart(Contestant):
    """Has its work done by another process, which takes the time."""

    process: Any = None
    connection: Any = None

    def seconds(self, calls: int = 1, clock: Clock = time.perf_counter) -> float:
        """As `Contestant.seconds`, by the other process's clock."""
        del clock
        self.connection.send(calls)
        return _answer(self.connection, self.process)

    def close(self) -> None:
        """Ends the process."""
        self.connection.close()
        self.process.join(timeout=10)
        self.process.kill()


def apart(make: Callable[[], Contestant]) -> Apart:
    """The contestant that `make`, which can be pickled, makes in a new process.

    Raises:
      Exception: what `make` raised there.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, make), daemon=True)
    process.start()
    there.close()
    made = _answer(here, process)
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    return Apart(**fields, process=process, connection=here)


def _answer(connection: Connection, process: Any) -> Any:
    try:
        answer = connection.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"its process ended with status {process.exitcode}") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(connection: Connection, make: Callable[[], Contestant]) -> None:
    """In the other process: makes it, and then does as many calls as it is asked for, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process, too; who asks decides
    try:
        contestant = make()
        connection.send(dataclasses.replace(contestant, start=_elsewhere, wait=_elsewhere))
        while True:
            connection.send(contestant.seconds(connection.recv()))
    except EOFError:
        pass
    except Exception as error:
        connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _elsewhere(*_: Any) -> None:
    raise RuntimeError("this work is done in another process")
