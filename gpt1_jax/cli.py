"""What the programs here share: logging, and how they end."""

from __future__ import annotations

import logging as standard_logging
import os
import signal
import sys
from collections.abc import Callable

from absl import app, logging


def run(main: Callable[[], None]) -> None:
    """Runs `main` under absl.

    Exit status: 0 done, 2 bad input (one line on stderr), 1 a bug or a diverged run, 128 + signal when SIGTERM or
    Ctrl-C ended the run after saving it, so that a scheduler knows that it is not finished.
    """

    def wrapped(argv: list[str]) -> None:
        from gpt1_jax.errors import InputError
        from gpt1_jax.train import Diverged, Interrupted

        try:
            if argv[1:]:
                raise InputError(f"unexpected argument {argv[1]!r}; values are given as --name=value")
            main()
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        except Diverged as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
        except Interrupted as stop:
            print(stop, file=sys.stderr)
            sys.exit(128 + stop.signum)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's C++ log: errors only
    logging.set_verbosity(logging.INFO)
    standard_logging.getLogger("jax").setLevel(standard_logging.WARNING)  # at INFO it lists the backends it lacks
    logging.get_absl_handler().setFormatter(None)
    app.run(wrapped)
