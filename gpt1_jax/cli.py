"""What the programs here share: logging, and how they end."""

from __future__ import annotations

import ast
import contextlib
import errno
import logging as standard_logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple

from absl import app, flags, logging
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from gpt1_jax.errors import InputError


def run(main: Callable[[], None], *, several: bool = False) -> None:
    """Runs `main` under absl.

    Exit status: 0 done, 2 bad input or bad flags (one message on stderr), 1 a bug or a diverged run, 128 + signal when
    SIGTERM or Ctrl-C ended the run after saving it, so that a scheduler knows that it is not finished.

    Args:
      main: the program.
      several: it may be one of several processes: there is a flag `--distributed`, and `distributed.start` is called
        before `main`. Of several, process 0 alone prints results and informs; what fails on one ends all.
    """
    if several:
        flags.DEFINE_enum(
            "distributed",
            "auto",
            ["auto", "off"],
            "auto: one of several processes where the environment says so (JAX_NUM_PROCESSES, srun, a TPU pod), else "
            "alone; off: alone.",
            module_name=sys.argv[0],  # so that --help has it
        )

    def wrapped(argv: list[str]) -> None:
        if argv[1:]:
            print(f"error: unexpected argument {argv[1]!r}; values are given as --name=value", file=sys.stderr)
            sys.exit(2)
        if several and flags.FLAGS.distributed == "auto":
            _run_one_of_several(main)
        elif end := _end_of(main):
            print(end.message, file=sys.stderr)
            sys.exit(end.status)

    register_parsers()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's C++ log: errors only
    logging.set_verbosity(logging.INFO)
    standard_logging.getLogger("jax").setLevel(standard_logging.WARNING)  # at INFO it lists the backends it lacks
    logging.get_absl_handler().setFormatter(None)
    app.run(wrapped, flags_parser=_parse)


class _End(NamedTuple):
    """An end that is no bug: what is said, the exit status, and whether all of several processes came to it."""

    message: str
    status: int
    together: bool


def _end_of(main: Callable[[], None]) -> _End | None:
    """Runs it; None where it came to its end."""
    from gpt1_jax.agreement import SharedInputError
    from gpt1_jax.train import Diverged, Interrupted

    try:
        main()
    except InputError as error:
        return _End(f"error: {error}", 2, isinstance(error, SharedInputError))
    except OSError as error:
        if not (problem := _about_the_disk(error)):
            raise
        return _End(f"error: {problem}", 2, together=False)
    except Diverged as error:
        return _End(f"error: {error}", 1, together=True)
    except Interrupted as stop:
        return _End(str(stop), 128 + stop.signum, together=True)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # another one ends it at once, instead of breaking what ends it
        return _End("interrupted", 128 + signal.SIGINT, together=False)
    return None


def _run_one_of_several(main: Callable[[], None]) -> None:
    """Runs it as the only process, or as one of several, which all end when one of them does."""
    from gpt1_jax import distributed

    def start_and_run() -> None:
        if not distributed.start() or distributed.is_first():
            main()
            return
        logging.set_verbosity(logging.WARNING)
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            main()

    try:
        end = _end_of(start_and_run)
    except Exception:
        if not distributed.has_begun():
            raise
        traceback.print_exc()
        distributed.leave(1, together=False)
    if end is None:
        return
    if not distributed.has_begun():
        print(end.message, file=sys.stderr)
        sys.exit(end.status)
    if not end.together or distributed.is_first():
        print(end.message, file=sys.stderr)
    distributed.leave(end.status, together=end.together)


def _about_the_disk(error: OSError) -> str:
    """What to do about a disk that is full or read-only; "" for other errors."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return ""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}. Make space there, or make it writable, and start the same command again."


def register_parsers() -> None:
    """How `--config.key=value` reads tuples and numbers."""
    config_flags.register_flag_parser_for_type(tuple, _TupleParser())
    config_flags.register_flag_parser_for_type(int, _OrNone(flags.IntegerParser()))
    config_flags.register_flag_parser_for_type(float, _OrNone(flags.FloatParser()))


class _TupleParser(tuple_parser.TupleParser):
    """`a.csv,b.csv` as well as `('a.csv', 'b.csv')`: without brackets or quotes, all but integers are strings."""

    def parse(self, argument: object) -> tuple[object, ...]:
        if isinstance(argument, list):  # the flag given several times
            return tuple(part for value in argument for part in self.parse(value))
        if not isinstance(argument, str) or argument.lstrip()[:1] in ("(", "[", "'", '"'):
            return super().parse(argument)
        parts = [part.strip() for part in argument.split(",")] if argument.strip() else []
        return tuple(ast.literal_eval(part) if re.fullmatch(r"0|[1-9][0-9]*", part) else part for part in parts)


class _OrNone(flags.ArgumentParser):
    """A number, or `None` for a field that may be without one."""

    def __init__(self, parser: flags.ArgumentParser) -> None:
        self._parser = parser

    def parse(self, argument: object) -> object:
        return None if argument == "None" else self._parser.parse(argument)

    def flag_type(self) -> str:
        return self._parser.flag_type()


def _parse(argv: list[str]) -> list[str]:
    """Parses the flags as absl does, but what is wrong with them ends like other bad input."""
    try:
        rest = flags.FLAGS(argv)
        if "config" in flags.FLAGS:
            hasattr(flags.FLAGS["config"].value, "to_dict")  # a file that is not there is reported on first use only
        return rest
    except (flags.Error, OSError) as error:
        message = _reason(error)
    except (AttributeError, KeyError) as error:
        if not traceback.extract_tb(error.__traceback__)[-1].filename.endswith("config_dict.py"):
            raise
        key = error.args[0].args[0] if isinstance(error.args[0], KeyError) else error.args[0]
        message = f"--config has no such key: {key}"
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _reason(error: BaseException) -> str:
    """The message of the `InputError` that a config file raised, without the traces around it; else the error's own."""
    chain = [error]
    while chain[-1].__context__ is not None:
        chain.append(chain[-1].__context__)
    return str(next((e for e in reversed(chain) if isinstance(e, InputError)), error))
