"""The models that a page offers: what was loaded, and what its task calls its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax

from gpt1_jax.config import from_config
from gpt1_jax.errors import InputError
from gpt1_jax.mirror import copy_of
from gpt1_jax.model import GPT1, count_parameters
from gpt1_jax.pretrained import Params, format_of, load_pretrained
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.spec import FIELDS
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.workdir import read_config

MAX_CHARACTERS = 100_000
"""Of a text. The model reads a few thousand at most; a book pasted by mistake would keep everybody waiting."""


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
    """A model on the device.

    Attributes:
      name: the path that was given, which the page shows.
      model: the model.
      params: its parameters.
      tokenizer: its tokenizer.
      fields: of a fine-tuned model, each of `FIELDS[kind]` with its name in the task's own data.
    """

    name: str
    model: GPT1
    params: Params
    tokenizer: Tokenizer
    fields: Mapping[str, str]

    def describe(self) -> str:
        """What it is and where, in one line."""
        config, readout = self.model.config, self.model.readout
        parts = ["language model"] if readout is None else [f"fine-tuned for {readout.kind.replace('_', ' ')}"]
        if readout is not None and readout.score_range is not None:
            parts[0] += " with scores from {:g} to {:g}".format(*readout.score_range)
        elif readout is not None and readout.labels:
            shown = ", ".join(readout.labels[:4]) + ", ..." * (len(readout.labels) > 4)
            parts[0] += f" ({shown})"
        n_parameters = count_parameters(config, readout)
        devices = {str(device) for x in jax.tree.leaves(self.params) for device in x.devices()}
        parts += [
            f"{n_parameters / 1e6:.1f} M parameters" if n_parameters > 1e6 else f"{n_parameters:,} parameters",
            config.trunk_summary,
            f"n_ctx={config.n_ctx}",
            f"on {', '.join(sorted(devices))}",
        ]
        return "; ".join(parts)


def load(paths: Sequence[str]) -> list[Loaded]:
    """Loads every checkpoint, in the order given.

    Raises:
      InputError: none is given, one is given twice or cannot be loaded.
    """
    if not paths:
        raise InputError("checkpoint is empty; give at least one, such as --checkpoint=runs/books")
    plain = [path.rstrip("/") or path for path in paths]
    for path in plain:
        if plain.count(path) > 1:
            raise InputError(f"checkpoint={path} is given twice; leave one out")
    return [_load(path) for path in plain]


def _load(path: str) -> Loaded:
    model, params, tokenizer = load_pretrained(path)
    return Loaded(path, model, params, tokenizer, _field_names(path, model))


def _field_names(path: str, model: GPT1) -> dict[str, str]:
    """The columns of the run's task; the kind's own words where the folder does not say, or its data are elsewhere."""
    if model.readout is None:
        return {}
    names = {field: field for field in FIELDS[model.readout.kind]}
    folder = copy_of(path)
    record = read_config(folder).get("config", {}).get("task") if format_of(folder) == "gpt1_jax" else None
    if not record:
        return names
    try:
        columns = make_spec(from_config(TaskConfig, record, where="task")).fields
    except InputError:
        return names
    return {
        field: (" + " if field != "answers" else ", ").join([own] if isinstance(own := columns[field], str) else own)
        for field in names
        if field in columns
    }


def check_text(name: str, text: object) -> str:
    """Returns `text` if a tokenizer and a page can take it.

    Raises:
      InputError: it is no text, too long, or holds half of a character.
    """
    if not isinstance(text, str):
        raise InputError(f"{name}: a text is expected, got {text!r:.80}")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{name} has {len(text):,} characters; give at most {MAX_CHARACTERS:,}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{name}: character {error.start} is half of a surrogate pair; remove it") from None
    return text
