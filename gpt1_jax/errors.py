"""The one exception for bad input."""

from __future__ import annotations


class InputError(ValueError):
    """A file, a field or a value given by the user cannot be used.

    The message names the field, the value, what is allowed and what to do; the launch programs print it without a
    traceback and exit with status 2.
    """
