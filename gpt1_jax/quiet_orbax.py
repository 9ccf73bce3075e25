"""What Orbax and the libraries under it print, and `gpt1_jax.checkpoint` tells better."""

from __future__ import annotations

import logging as standard_logging
import os
import sys
from collections.abc import Callable
from typing import Any

import orbax.checkpoint as ocp
from absl import logging


class QuietOrbax(standard_logging.Filter):
    """Drops Orbax's running commentary, and its stack traces of errors that `Checkpointer` raises itself.

    Orbax logs through the absl logger that the user's own messages go through: those, and Orbax's warnings, pass.
    With absl's verbosity at debug everything does.
    """

    def filter(self, record: standard_logging.LogRecord) -> bool:
        if f"{os.sep}orbax{os.sep}" not in record.pathname or logging.vlog_is_on(1):
            return True
        if record.exc_info or str(record.msg).startswith("Waiting for previous save"):  # `save` tells it better
            return False
        return record.levelno >= standard_logging.WARNING


def drop_repeated_errors() -> None:
    """Of a save that fails, `Checkpointer.wait` raises the error of the first array. Has the others keep quiet.

    For good: they come when memory is freed, and from threads of TensorStore that outlive the save.
    """
    standard_logging.getLogger("asyncio").addFilter(_reported_already)
    if not isinstance(sys.unraisablehook, _WithoutClosedLoops):
        sys.unraisablehook = _WithoutClosedLoops(sys.unraisablehook)


def _reported_already(record: standard_logging.LogRecord) -> bool:
    """Drops asyncio's report of every array of a failed save whose error nobody looked at."""
    message = record.getMessage()
    return not ("exception was never retrieved" in message and ocp.path.atomicity.TMP_DIR_SUFFIX in message)


class _WithoutClosedLoops:
    """Drops that the event loop of a failed save is closed when a further array of it is done."""

    def __init__(self, shown: Callable[[Any], Any]) -> None:
        self._shown = shown

    def __call__(self, unraisable: Any) -> None:
        if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
            self._shown(unraisable)
