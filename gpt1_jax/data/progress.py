"""How far reading or evaluation has come: a bar on a terminal, elsewhere a line in the log now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from absl import logging
from tqdm import tqdm

EVERY_S = 30.0


class ReadingProgress:
    """Amount, speed and time left of reading a source; speed counts what this process did.

    Args:
      label: what is read.
      total: how much there is.
      unit: of both: "B" (bytes), or what is counted, such as "documents".
      show: whether anything is shown.
      delay: seconds that pass before there is a bar, which then does not stay: for what is mostly short.
    """

    def __init__(self, label: str, *, total: int, unit: str, show: bool = True, delay: float = 0.0):
        self._label, self._total, self._before, self._unit = label, max(total, 1), 0, unit
        self._done = 0
        self._start = self._shown = time.monotonic()
        self._bar = None
        self._show = show
        if show and sys.stderr.isatty():
            unit_text = unit if unit == "B" else f" {unit}"
            self._bar = tqdm(
                desc=label, total=total, unit=unit_text, unit_scale=unit == "B", delay=delay, leave=not delay
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def skip(self, amount: int) -> None:
        """Counts what had been done before."""
        self._before += amount
        self._start = time.monotonic()
        self.advance(amount)

    def advance(self, amount: int) -> None:
        """Counts what has been read."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif self._show and (now := time.monotonic()) - self._shown >= EVERY_S:
            self._shown = now
            logging.info("%s: %s", self._label, self._line(now - self._start))

    def _line(self, seconds: float) -> str:
        rate = (self._done - self._before) / max(seconds, 1e-9)
        left = tqdm.format_interval(max(self._total - self._done, 0) / max(rate, 1e-9))
        scale, unit = (1e6, "MB") if self._unit == "B" else (1, self._unit)
        done, total = (f"{n / scale:,.0f}" for n in (self._done, self._total))
        return f"{done} of {total} {unit} ({self._done / self._total:.0%}), {rate / scale:,.1f} {unit}/s, {left} left"
