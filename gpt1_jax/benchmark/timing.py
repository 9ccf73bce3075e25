"""Times of contestants that take turns, and what can be said of them: medians, quartiles, ratios."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Clock = Callable[[], float]

MIN_SAMPLE_SECONDS = 0.2
"""What takes less is done several times in a row: one call's dispatch and the wait for it would weigh too much."""


@dataclasses.dataclass
class Contestant:
    """Work that can be done again and again.

    Attributes:
      name: whose it is.
      start: begins the work once; where devices are asynchronous it returns before it is done.
      wait: takes what the last `start` returned and comes back when all that was begun is done.
      amount: units of work in a call.
      unit: "tokens", "examples", "MB", "windows" or "runs".
      flops: matrix products of a call, counted by hand, over all devices; 0: not counted.
      n_parameters: of the model that works, where peers are compared.
      compile_seconds: of the compiler, where it was timed by itself.
      temp_bytes: temporary memory of a device by the compiler's plan.
      about: how it works, where that is not obvious.
      is_warm: whoever made it has used it, on less; a call is long enough to be a sample.
      times_itself: `wait` returns the seconds, because not all of a call counts.
    """

    name: str
    start: Callable[[], Any]
    wait: Callable[[Any], Any] = jax.block_until_ready
    amount: float = 1.0
    unit: str = "tokens"
    flops: float = 0.0
    n_parameters: int | None = None
    compile_seconds: float | None = None
    temp_bytes: int | None = None
    about: str = ""
    is_warm: bool = False
    times_itself: bool = False

    def seconds(self, calls: int = 1, clock: Clock = time.perf_counter) -> float:
        """Does the work `calls` times and returns the seconds of one."""
        begin, started = clock(), None
        for _ in range(calls):
            started = self.start()
        waited = self.wait(started)
        return float(waited) if self.times_itself else (clock() - begin) / calls

    def close(self) -> None:
        """Nobody asks any more."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """A sample in three numbers: its median and the quartiles around it."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        q1, median, q3 = np.percentile(np.asarray(values, np.float64), (25, 50, 75)).tolist()
        return cls(median, q1, q3)


def warm_up(contestant: Contestant, clock: Clock = time.perf_counter) -> tuple[float | None, int]:
    """Compiles and fills caches, outside of what is measured.

    Returns:
      the seconds of the first call (None: it was warm), and how many calls make a sample of `MIN_SAMPLE_SECONDS`.
    """
    if contestant.is_warm:
        return None, 1
    first, second = (contestant.seconds(clock=clock) for _ in range(2))
    return first, max(1, round(MIN_SAMPLE_SECONDS / max(second, 1e-9)))


def take_turns(
    contestants: Sequence[Contestant],
    calls: Sequence[int],
    rounds: list[tuple[float, ...]],
    *,
    repeats: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    on_round: Callable[[], None] = lambda: None,
) -> None:
    """Rounds in which every contestant works once, appended to `rounds` as they are complete.

    Ends after `repeats` rounds, or after the one in which the time is up; there is always one.

    Args:
      contestants: who takes turns, in this order.
      calls: how often each of them works in its turn.
      rounds: gets the seconds of a call of each contestant; what is in it stays if a signal ends the rounds.
      repeats: most rounds.
      seconds: time after which no further round begins.
      clock: seconds.
      on_round: called after each.
    """
    begin = clock()
    while len(rounds) < repeats and (not rounds or clock() - begin < seconds):
        rounds.append(tuple(one.seconds(n, clock) for one, n in zip(contestants, calls, strict=True)))
        on_round()


def ratio(
    seconds: Sequence[float], other: Sequence[float], *, amount: float = 1.0, other_amount: float = 1.0
) -> Spread:
    """How many times the other's rate this one's is: the spread over the rounds of what they are within each.

    Args:
      seconds: of a call, round by round.
      other: likewise, of the same rounds.
      amount: units of work in a call.
      other_amount: units of work in a call of the other.
    """
    return Spread.of([(amount / a) / (other_amount / b) for a, b in zip(seconds, other, strict=True)])
