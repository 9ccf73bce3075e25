"""What the programs in launch/ share: their help, what they say at the start, and how they end.

A program is a few flags around a function of the library, and keeps to this:

- Its docstring is its `--help`: what it does in a line, and commands that can be copied and run as they are
  (tests/launch/documented_commands_test.py runs them). With the flags and the keys of its config that matter (`keys` of
  `run`) it fits a screen, 40 lines of 100 columns; what needs more is told in launch/README.md.
- It says what it is about to do before it does it: the devices and the mesh, the model and its parameters, the data,
  the memory of a device, and where results go. Such lines are `logging.info` of the library, which nobody sees who
  calls it from Python: `runs.describe_run` of training, `load_pretrained` of a model that is read.
- What takes long shows how far it is and the time left: `progress.Progress`, of training `progress.TrainingProgress`.
- A path that is not there is an `InputError` with the nearest one that is (`files.nearest`), a misspelt name one with
  the nearest name (`errors.did_you_mean`).
- It ends with its table on the standard output and the command that comes next: `print(next_steps(command(...)))`, with
  the paths of this run, quoted for the shell. Names in CAPITALS are for the user to fill in. All else goes to stderr.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import logging as standard_logging
import os
import re
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tqdm
from absl import app, flags, logging
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from gpt1_jax import cli_help
from gpt1_jax.cli_help import ConfigKeys as ConfigKeys  # programs name it
from gpt1_jax.errors import LESS_MEMORY, InputError
from gpt1_jax.files import about_the_disk, is_address, nearest


def run(
    main: Callable[[], None], *, several: bool = False, keys: ConfigKeys | None = None, config: str | None = None
) -> None:
    """Runs `main` under absl.

    Exit status: 0 done, 2 bad input or bad flags (one message on stderr), 1 a bug or a diverged run, 128 + signal when
    SIGTERM or Ctrl-C ended the run after saving it, so that a scheduler knows that it is not finished.

    Args:
      main: the program.
      several: it may be one of several processes: there is a flag `--distributed`, and `distributed.start` is called
        before `main`. Of several, process 0 alone prints results and informs; what fails on one ends all.
      keys: keys of its config that `--help` tells of.
      config: the file, in the repository, where `--config` is not given. The flag has no default of its own: a misspelt
        key would then fail where the flag is defined.
    """
    if several:
        flags.DEFINE_enum(
            "distributed",
            "auto",
            ["auto", "off"],
            "auto: one of several processes where the environment says so; off: alone.",
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
        logging.info("done in %s", tqdm.tqdm.format_interval(time.monotonic() - start))

    if cli_help.is_asked_for(sys.argv):
        print(cli_help.page(sys.argv[0], main.__globals__["__doc__"] or "", keys))
        sys.exit()
    start = time.monotonic()
    sys.argv = with_config(sys.argv, config)
    register_parsers()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's C++ log: errors only
    logging.set_verbosity(logging.INFO)
    standard_logging.getLogger("jax").setLevel(standard_logging.WARNING)  # at INFO it lists the backends it lacks
    logging.get_absl_handler().setFormatter(None)
    app.run(wrapped, flags_parser=_parse)


def with_config(argv: list[str], config: str | None) -> list[str]:
    """The arguments with `--config` of this file of the repository, where they have none."""
    if config is None or _config_files(argv):
        return argv
    return [argv[0], f"--config={_from_here(Path(argv[0]).absolute().parents[1] / config)}", *argv[1:]]


def _config_files(argv: list[str]) -> list[str]:
    """The values of `--config`, which is one word or two."""
    found = []
    for word, after in itertools.pairwise([*argv[1:], ""]):
        if match := re.fullmatch(r"--?config(=(.*))?", word, re.DOTALL):
            found.append(after if match[1] is None else match[2])
    return found


def config_arguments(argv: list[str]) -> list[str]:
    """Those of the arguments that say which config it is and set keys of it."""
    found = []
    for word, after in itertools.pairwise([*argv[1:], ""]):
        if re.match(r"--?(no)?config(\.|=|$)", word):
            takes_next = re.fullmatch(r"--?config(\.[\w.]+)?", word) and not after.startswith("-")
            found += [word, after] if takes_next else [word]
    return found


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
        if not (problem := about_the_disk(error)):
            raise
        return _End(f"error: {problem}", 2, together=False)
    except Diverged as error:
        return _End(f"error: {error}", 1, together=True)
    except MemoryError as error:
        return _End(f"error: the memory of this machine does not suffice: {error}", 2, together=False)
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _End(f"error: {_about_memory(error)}", 2, together=False)
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


def _about_memory(error: RuntimeError) -> str:
    """What to do about a device whose memory is full; XLA's own message begins with what it wanted."""
    said = " ".join(str(error).partition("RESOURCE_EXHAUSTED")[2].lstrip(": ").split())
    return (
        f"the memory of a device is full: {said[:200]}. Use a smaller batch, or for training {LESS_MEMORY}; "
        "on a GPU see that no other process uses it"
    )


def command(program: str, values: Mapping[str, Any]) -> str:
    """The command line of another program, as it can be pasted into the shell that started this one.

    Args:
      program: such as "evaluate".
      values: flag -> its value, quoted where the shell needs it; a sequence is joined by commas.
    """
    words = [python(), in_repository(f"launch/{program}.py")]
    for name, value in values.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
        words.append(f"--{name}={shlex.quote(text) if text else ''}")
    return " ".join(words)


def export_command(checkpoint: str) -> str:
    """The command line that exports a model: beside it, or of a bucket's into the current folder."""
    place = checkpoint.rstrip("/")
    target = f"{place.rpartition('/')[2] if is_address(place) else place}-export"
    return command("export", {"checkpoint": checkpoint, "target": target})


def next_steps(*commands: str) -> str:
    """What a program prints last: the commands that may come next, each on a line of its own."""
    return "\n".join(["", "next:", *(f"  {one}" for one in commands)])


def in_repository(path: str) -> str:
    """A path in the repository of the program that runs, as it is found from the current folder; for the shell."""
    return shlex.quote(_from_here(Path(sys.argv[0]).absolute().parents[1] / path))


def python() -> str:
    """The interpreter that runs, by the name that the shell knows it by."""
    found = shutil.which("python")
    if found and Path(found).parent == Path(sys.executable).parent:
        return "python"
    return shlex.quote(_from_here(Path(sys.executable)))


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def register_parsers() -> None:
    """How `--config.key=value` reads tuples and numbers."""
    config_flags.register_flag_parser_for_type(tuple, _TupleParser())
    config_flags.register_flag_parser_for_type(int, _OrNone(flags.IntegerParser(), "a whole number"))
    config_flags.register_flag_parser_for_type(float, _OrNone(flags.FloatParser(), "a number"))


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

    def __init__(self, parser: flags.ArgumentParser, what: str) -> None:
        self._parser, self._what = parser, what

    def parse(self, argument: str) -> object:
        if argument == "None":
            return None
        try:
            return self._parser.parse(argument)
        except ValueError:
            raise ValueError(f"{argument!r} is not {self._what}") from None

    def flag_type(self) -> str:
        return self._parser.flag_type()


def _parse(argv: list[str]) -> list[str]:
    """Parses the flags as absl does, but what is wrong with them ends like other bad input."""
    _check_config_file(argv)
    try:
        rest = flags.FLAGS(argv)
        if "config" in flags.FLAGS:
            hasattr(flags.FLAGS["config"].value, "to_dict")  # a file that is not there is reported on first use only
        return rest
    except (flags.Error, OSError) as error:
        message = _reason(error)
        if missing := re.findall(r"Flag (--\w+) must have a value other than None", message):
            message = f"missing: {', '.join(missing)}; --help says what to give"
    except (AttributeError, KeyError) as error:
        if "ml_collections" not in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts:
            raise
        said = error.args[0].args[0] if isinstance(error.args[0], KeyError) else error.args[0]
        message = _unknown_key(argv, str(said))
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _unknown_key(argv: list[str], said: str) -> str:
    """The message about a key that the config does not have: what ml_collections said, and where the key is."""
    key = said.split("'")[1] if said.startswith("'") else said
    for argument in argv[1:]:
        path = argument.partition("=")[0].lstrip("-").split(".")
        if key in path:
            meant = re.search('Did you mean "(.+?)"', said)
            hint = (
                f"; did you mean {meant[1]!r}?" if meant else "; the config file and --help have those that there are"
            )
            return f"--{'.'.join(path)}: {'.'.join(path[: path.index(key)])} has no key {key!r}{hint}"
    return f"--config has no such key: {said}"


def _check_config_file(argv: list[str]) -> None:
    """Ends with the nearest file, where that of `--config` is not there."""
    values = [value for value in _config_files(argv) if value]
    if not values and any(re.match(r"--?config\.", argument) for argument in argv[1:]):
        print("error: --config is missing, of which a key is given; --help says what to give", file=sys.stderr)
        sys.exit(2)
    for value in values:
        path = Path(value.partition(":")[0])
        if path.is_file():
            continue
        here = Path(sys.argv[0]).absolute().parents[1] / "configs" / path.name
        hint = nearest(path) if not here.is_file() else f"; did you mean {here}?"
        print(f"error: --config={value}: no such file{hint or '; such as configs/pretrain.py'}", file=sys.stderr)
        sys.exit(2)


def _reason(error: BaseException) -> str:
    """The message of the `InputError` that a config file raised, without the traces around it; else the error's own."""
    chain = [error]
    while chain[-1].__context__ is not None:
        chain.append(chain[-1].__context__)
    return str(next((e for e in reversed(chain) if isinstance(e, InputError)), error))
