"""The one exception for bad input, and what its messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LESS_MEMORY = (
    "a smaller config.batch_size, config.accumulation_steps, config.model.remat=full, config.model.dtype=bfloat16, "
    "config.loss.chunk or, with several devices, config.mesh.fsdp"
)
"""What makes an update fit a device."""


class InputError(ValueError):
    """A file, a field or a value given by the user cannot be used.

    The message names the field, the value, what is allowed and what to do; the launch programs print it without a
    traceback and exit with status 2.
    """


class MissingColumn(InputError):
    """A file does not have a column; `column` is its name."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a misspelt name: "; did you mean 'label'?", or "" if no known name is close to it."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def quoted(names: Iterable[str]) -> str:
    """Names as a message lists them: 'a', 'b'."""
    return ", ".join(map(repr, names))


def counted(n: int, one: str, many: str = "") -> str:
    """A number of things: "1 example", "2 examples"; `many` where the plural is not `one` with an s."""
    return f"{n} {one if n == 1 else many or one + 's'}"
