"""How a run ends before its end: SIGTERM, Ctrl-C, a preemption.

In one process, SIGTERM or the first Ctrl-C sets a flag, and `raise_if_stopped`, between two updates and between two
batches of an evaluation, ends the run there. Elsewhere signals do what they always do: nothing is done yet that could
be lost, and what is half made is made again.

In several processes SIGTERM belongs to JAX's preemption service: a handler of ours would switch that off. It tells all
processes of the notice that one has got, and chooses a question, "is it now?", that is yet to be asked by all of them.
So all ask at the same places, equally often, and all stop, and save, at the same step. The first Ctrl-C is passed on
as a SIGTERM.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator

import jax
from absl import logging
from jax.experimental import multihost_utils
from jax.sharding import Mesh


class Interrupted(Exception):
    """SIGTERM or Ctrl-C ended the run between two updates or two batches; what was done, if anything, is saved.

    Attributes:
      signum: the signal.
      step: updates done and saved; None outside of training.
    """

    def __init__(self, signum: int, step: int | None = None) -> None:
        again = "start the same command again"
        if step is None:
            when = f": nothing is lost; {again}"
        else:
            when = f" after step {step}: saved; {again} to continue" if step else " before step 1"
        super().__init__(f"{signal.Signals(signum).name}{when}")
        self.signum, self.step = signum, step


_signum = 0  # what has come, and waits for the next `raise_if_stopped`


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Where SIGTERM and Ctrl-C wait for the next `raise_if_stopped`; the second Ctrl-C interrupts at once.

    Outside the main thread, where Python takes no signals, it does nothing.
    """
    global _signum
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM) if jax.process_count() == 1 else _ours_of_several()
    _signum = 0
    before = {signum: signal.signal(signum, _stop) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
        _signum = 0


def _stop(signum: int, frame: object) -> None:
    global _signum
    del frame
    if _signum and signum == signal.SIGINT:
        raise KeyboardInterrupt
    _signum = signum
    logging.warning("%s: finishing the update in progress, then saving", signal.Signals(signum).name)
    if signal.getsignal(signal.SIGTERM) is not _stop:  # one of several processes: only together
        os.kill(os.getpid(), signal.SIGTERM)


def raise_if_stopped(mesh: Mesh | None = None) -> None:
    """Ends what is being done if the run is to stop. In several processes all have to call it equally often.

    Args:
      mesh: where it is done; on a mesh of one of several processes the others are not asked.

    Raises:
      Interrupted: without a step; where there is one to tell, the caller says so in its place.
    """
    if jax.process_count() > 1:
        if (mesh is None or mesh.is_multi_process) and _preempted():
            raise Interrupted(_signum or signal.SIGTERM)
    elif _signum:
        raise Interrupted(_signum)


@contextlib.contextmanager
def stopping_at(step: int) -> Iterator[None]:
    """Work after the last update: it may be stopped between two batches, and then nothing is lost that was trained."""
    with stop_signals():
        try:
            yield
        except Interrupted as stop:
            raise Interrupted(stop.signum, step) from None


def _ours_of_several() -> tuple[signal.Signals, ...]:
    # Without the service SIGTERM would end this process alone, so Ctrl-C is not passed on.
    return (signal.SIGINT,) if _has_preemption_service() else ()


_questions = itertools.count(1)
_notice = threading.Event()  # once there was one, it stands


def _has_preemption_service() -> bool:
    return bool(getattr(jax.config, "jax_enable_preemption_service", False))


def _preempted() -> bool:
    """Whether this is the question at which all processes stop, or a later one."""
    if not _notice.is_set() and _has_preemption_service():
        try:
            if multihost_utils.reached_preemption_sync_point(next(_questions)):
                _notice.set()
        except RuntimeError as error:  # JAX was started without the service
            logging.log_first_n(logging.WARNING, "SIGTERM ends a process at once, unsaved: %s", 1, error)
    return _notice.is_set()
