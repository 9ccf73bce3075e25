"""How long it will still take: learned from the cells that are done."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from gpt1_jax.errors import counted
from gpt1_jax.reproduce.cells import Done
from gpt1_jax.reproduce.plan import Cell


class Estimate:
    """The time of cells that are like those that are done: the same task and row, else the same task, else the kind."""

    def __init__(self, done: Iterable[Done] = ()) -> None:
        self._seconds: dict[tuple[str, ...], list[float]] = {}
        for each in done:
            self.add(each)

    def add(self, done: Done) -> None:
        """Learns from a cell."""
        for key in _keys(done.cell):
            self._seconds.setdefault(key, []).append(done.seconds)

    def seconds(self, cell: Cell) -> float | None:
        """What a cell will take; None if nothing like it is done."""
        for key in _keys(cell):
            if key in self._seconds:
                return statistics.median(self._seconds[key])
        return None

    def of(self, cells: Sequence[Cell]) -> str:
        """What cells will take together, in words."""
        if not cells:
            return "nothing is left"
        seconds = [self.seconds(cell) for cell in cells]
        known = [each for each in seconds if each is not None]
        unknown = len(seconds) - len(known)
        if not known:
            return f"{counted(unknown, 'run')} left, for how long is known when the first is done"
        rest = f" and {counted(unknown, 'run')} of another kind" if unknown else ""
        return f"about {_duration(sum(known))}{rest} left"


def _keys(cell: Cell) -> list[tuple[str, ...]]:
    trunk = "lstm" if "lstm" in cell.name else "transformer"
    return [(cell.kind, cell.task, cell.variant), (cell.kind, cell.task, trunk), (cell.kind, trunk), (cell.kind,)]


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
