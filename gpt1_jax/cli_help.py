"""`--help` of a program in launch/: its docstring, its flags and the config keys that matter, on one screen."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

WIDTH = 100
_NAMES = 30  # the widest column of names; a longer name has a line of its own
_ASKS = {"--help", "-help", "-h", "-?", "--helpshort", "-helpshort"}


@dataclasses.dataclass(frozen=True)
class ConfigKeys:
    """The keys of a config that a newcomer has to know.

    Attributes:
      config: module and class of its dataclass, as "gpt1_jax.pretrain:PretrainConfig". It is imported when help is
        asked for; the defaults are its own, and so are the descriptions: the first sentences under "Attributes:".
      names: such as "source" and "optimizer.learning_rate", in the order in which they are shown.
      defaults: section whose fields are None where a value is left open -> the dataclass that has it then.
    """

    config: str
    names: tuple[str, ...]
    defaults: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"model": "gpt1_jax.model_config:GPT1Config"}
    )


def is_asked_for(argv: Sequence[str]) -> bool:
    """Whether one of the arguments asks for help; `--helpfull`, absl's, has all flags of all modules."""
    return not _ASKS.isdisjoint(argv[1:])


def page(module: str, doc: str, keys: ConfigKeys | None = None) -> str:
    """The help of a program, whose flags are defined: at most `WIDTH` columns.

    Args:
      module: that defined them, by its name to absl: of a program that runs, `sys.argv[0]`.
      doc: its docstring.
      keys: of its config.
    """
    parts = [inspect.cleandoc(doc)]
    parts.append("Flags:\n" + _columns(_flag(flag) for flag in flags.FLAGS.get_key_flags_for_module(module)))
    if keys is not None:
        rows = [(_setting(name, value), text) for name, value, text in _described(keys)]
        parts.append(f"Keys of the config that matter, given as --config.KEY=VALUE:\n{_columns(rows)}")
    return "\n\n".join(parts)


def field_docs(cls: type) -> dict[str, str]:
    """What a dataclass's docstring says of each field under "Attributes:", as one line each."""
    _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    section = re.split(r"^\S", section, maxsplit=1, flags=re.M)[0]
    found = re.findall(r"^  (\w+(?:, \w+)*): (.*(?:\n    .*)*)", section, re.M)
    return {name: " ".join(text.split()) for names, text in found for name in names.split(", ")}


def _flag(flag: flags.Flag) -> tuple[str, str]:
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
    help = re.sub(r"^<.*?>: |;\s+repeat this option to specify a list of values$", "", flag.help)  # what absl adds
    if choices := getattr(flag.parser, "enum_values", None):
        name += f"={'|'.join(choices)}"
    elif flag.default not in (None, "", [], [""]) and not flag.boolean:
        default = str(flag.default_as_str).strip("'")
        name += f"={os.path.relpath(default) if os.path.isabs(default) else default}"
    return name, help


def _described(keys: ConfigKeys) -> Iterator[tuple[str, Any, str]]:
    """Name, default and first sentence of each key."""
    for name in keys.names:
        config = _default(keys.config)
        *sections, last = name.split(".")
        for i, section in enumerate(sections):
            config = getattr(config, section)
            if instead := keys.defaults.get(".".join(sections[: i + 1])):
                config = _default(instead)
        sentence = re.split(r"\. (?=[A-Z`])", field_docs(type(config))[last], maxsplit=1)[0]
        yield name, getattr(config, last), sentence.rstrip(".").replace("`", "")


def _default(name: str) -> Any:
    module, _, cls = name.partition(":")
    return getattr(importlib.import_module(module), cls)()


def _setting(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{name}.NAME="
    text = ",".join(map(str, value)) if isinstance(value, tuple | list) else value
    return f"{name}={text}"


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    width = min(max(len(name) for name, _ in rows), _NAMES)
    lines = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, WIDTH - width - 4, break_on_hyphens=False) or [""]
        if len(name) > width:
            lines.append(f"  {name}")
            name = ""
        lines += [f"  {name if i == 0 else '':{width}}  {line}".rstrip() for i, line in enumerate(wrapped)]
    return "\n".join(lines)
