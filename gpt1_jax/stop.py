"""How a run ends before its end: SIGTERM, Ctrl-C, a preemption."""

from __future__ import annotations

import signal
import threading
from typing import Any

from absl import logging


class Interrupted(Exception):
    """SIGTERM or Ctrl-C ended the run between two updates; what was done, if anything, is saved.

    Attributes:
      signum: the signal.
      step: updates done and saved.
    """

    def __init__(self, signum: int, step: int) -> None:
        when = f"after step {step}: saved; start the same command again to continue" if step else "before step 1"
        super().__init__(f"{signal.Signals(signum).name} {when}")
        self.signum, self.step = signum, step


class StopSignals:
    """Turns the first SIGTERM or Ctrl-C into a flag that the loop reads between two updates.

    The second Ctrl-C interrupts at once. Outside the main thread, where Python takes no signals, it does nothing.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._stop) for s in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _stop(self, signum: int, frame: object) -> None:
        del frame
        if self.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
        logging.warning("%s: finishing the update in progress, then saving", signal.Signals(signum).name)
