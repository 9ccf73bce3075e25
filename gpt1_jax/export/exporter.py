"""Writes a model as a folder that runs without this package, and compares what it computes with the model."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import jax
import numpy as np

from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.export.programs import PLATFORMS, Program, flatten, lm_programs, task_program
from gpt1_jax.export.standalone import predict as standalone
from gpt1_jax.files import make_directory, write_json
from gpt1_jax.mirror import copy_of
from gpt1_jax.model import GPT1, GPT1Config, count_parameters
from gpt1_jax.pretrained import Params, load_pretrained
from gpt1_jax.tasks.spec import FIELDS
from gpt1_jax.tasks.transforms import SpecialTokens
from gpt1_jax.text_table import aligned
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.tokenizers import approximate as approximate_words
from gpt1_jax.tokenizers.protocol import find_marker
from gpt1_jax.version import __version__

CARD, PARAMS = "model_card.json", "params.npz"
HEADS = ("task", "lm")

_INPUTS = {
    "classification": "one stream: start text extract",
    "entailment": "one stream: start premise delimiter hypothesis extract",
    "similarity": "two streams, one for each order: start text_a delimiter text_b extract",
    "multiple_choice": "one stream per answer: start context question delimiter answer extract",
    "next token": "the ids of the text; an empty one is the separator, which stands between documents",
}
_NEEDS = {"sentencepiece": ["sentencepiece"], "exact": ["ftfy", "spacy"]}
_TOLERANCE = {"float32": 1e-5, "bfloat16": 0.05}  # of the largest number; the compiler may fuse otherwise


@dataclasses.dataclass(frozen=True)
class Export:
    """What was exported.

    Attributes:
      source, target: the folders.
      card: what model_card.json says.
      n_compared: numbers compared between the model and the exported programs, on this machine's device.
    """

    source: str
    target: Path
    card: dict[str, Any]
    n_compared: int

    @property
    def try_it(self) -> str:
        """What to write behind `python predict.py` in a shell."""
        return {0: "'It was a'", 1: "'a text' 'another'"}.get(len(self.card["fields"]), "< examples.tsv")

    def __str__(self) -> str:
        """The summary as a text table."""
        card = self.card
        sizes = {path: path.stat().st_size for path in sorted(self.target.rglob("*")) if path.is_file()}
        answers = ", ".join(card["labels"])
        if card["score_range"]:
            answers = "a score from {:g} to {:g}".format(*card["score_range"])
        programs = [program["file"] for program in card["programs"].values()]
        rows = [
            ("source", self.source),
            ("target", f"{self.target}, {sum(sizes.values()) / 1e6:,.1f} MB"),
            ("predicts", f"{card['predicts']}: {answers}" if answers else card["predicts"]),
            ("programs", ", ".join(f"{file} ({sizes[self.target / file] / 1e3:,.0f} kB)" for file in programs)),
            ("platforms", ", ".join(card["platforms"])),
            ("parameters", f"{card['n_parameters']:,}, float32, in {PARAMS}"),
            ("tokenizer", _tokenizer_row(card["tokenizer"])),
            ("runs with", card["runs_with"]),
            ("self-check", f"{self.n_compared:,} numbers agree with the model's"),
        ]
        return "\n".join(aligned(rows, n_left=2))


def run(
    checkpoint: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    head: str | None = None,
    step: int | None = None,
    dtype: str | None = None,
    approximate: bool = False,
) -> Export:
    """Exports the model of a folder, see `gpt1_jax.export`.

    Args:
      checkpoint: what `load_pretrained` reads.
      target: a new or empty folder of this machine.
      head: "task" for the fine-tuned model's answers, "lm" for the language model; default the task head where there
        is one.
      step: which checkpoint of a workdir.
      dtype: of the computation, "float32" or "bfloat16"; default the model's own.
      approximate: the approximate variant of the original tokenizer, which needs no spaCy where it is served and gives
        other ids for some words.

    Raises:
      InputError: what `load_pretrained` refuses, a task head that is not there, or a target that cannot be written.
      RuntimeError: the exported programs do not compute what the model does. Whatever ends it, no folder is left.
    """
    source, target = str(checkpoint), Path(target)
    if head not in (None, *HEADS):
        raise InputError(f"head={head!r} is unknown; use one of {list(HEADS)}, or leave it out")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(
            f"target={str(target)!r} is there already, and is no empty folder; remove it, or choose a new one"
        )
    tokenizer = tokenizers.load(copy_of(checkpoint), "approximate") if approximate else None
    model, params, tokenizer = load_pretrained(checkpoint, step=step, dtype=dtype, tokenizer=tokenizer)
    if head == "task" and model.readout is None:
        raise InputError(
            f"head='task': {source} is a language model without a task head; fine-tune it first, or give head='lm'"
        )
    if model.readout is not None and head == "lm":
        params = {name: value for name, value in params.items() if name != "clf"}
        model = GPT1(model.config)
    if model.config.trunk == "transformer":  # the one kernel that is no custom call, and so runs everywhere and keeps
        model = GPT1(dataclasses.replace(model.config, attention="xla", remat="none"), model.readout)
    programs = lm_programs(model) if model.readout is None else (task_program(model),)
    make_directory(target, "target")
    try:
        card = _write(target, source, model, params, tokenizer, programs)
        return Export(source, target, card, _compare(target, model, params, programs))
    except BaseException:  # nobody should find half of it, or what computes something else
        shutil.rmtree(target, ignore_errors=True)
        raise


def _write(
    target: Path, source: str, model: GPT1, params: Params, tokenizer: Tokenizer, programs: Sequence[Program]
) -> dict[str, Any]:
    """Writes the folder, the card last, and returns that."""
    entries = {}
    for program in programs:
        exported = program.export(model)
        file = f"{program.name}.jax_export"
        (target / file).write_bytes(exported.serialize())
        entries[program.name] = {
            "file": file,
            "arguments": _shapes(program),
            "returns": program.returns,
            "calling_convention": exported.calling_convention_version,
        }
    np.savez(target / PARAMS, **jax.device_get(flatten(params)))
    shutil.copyfile(standalone.__file__, target / "predict.py")
    # What `jax.export` reads its files with: small, pure Python, and not among what JAX installs.
    packages, ignored = target / "packages" / "flatbuffers", shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(flatbuffers.__file__).parent, packages, ignore=ignored)
    card = _describe(source, model)
    card |= {"programs": entries, "tokenizer": save_tokenizer(target / "tokenizer", tokenizer)}
    write_json(target / CARD, card)
    return card


def _shapes(program: Program) -> dict[str, str]:
    """The arguments after the parameters in words, such as "int32 [b, l]" or "12 of float32 [b, 12, s, 64]"."""
    texts = {}
    for name, value in program.arguments.items():
        shapes = value if isinstance(value, tuple) else (value,)
        many = f"{len(value)} of " if isinstance(value, tuple) else ""
        texts[name] = many + " ".join(f"{shape.dtype} [{', '.join(map(str, shape.shape))}]" for shape in shapes[:1])
    return texts


def _describe(source: str, model: GPT1) -> dict[str, Any]:
    """What the card says of the model."""
    config, readout = model.config, model.readout
    kind = "next token" if readout is None else readout.kind
    special = readout is not None and readout.read_at == "extract"
    versions = {
        "gpt1_jax": __version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
    }
    return {
        "format": 1,
        "source": source,
        "exported": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions,
        "runs_with": f"JAX up to 6 months newer than {jax.__version__} or 3 weeks older, as jax.export guarantees",
        "platforms": list(PLATFORMS),
        "predicts": kind,
        "labels": list(readout.labels) if readout else [],
        "score_range": list(readout.score_range) if readout and readout.score_range else None,
        "fields": list(FIELDS[kind]) if readout else [],
        "input": _INPUTS[kind] + ("" if special or not readout else ", without start, delimiter and extract"),
        "read_at": readout.read_at if readout else None,
        "special_tokens": dataclasses.asdict(SpecialTokens.after(config.vocab_size)) if special else {},
        "vocab_size": config.vocab_size,
        "n_ctx": config.n_ctx,
        "trunk": config.trunk,
        **_cache_sizes(config),
        "dtype": config.dtype,
        "n_parameters": count_parameters(config, readout),
        "params": PARAMS,
    }


def _cache_sizes(config: GPT1Config) -> dict[str, int]:
    """What predict.py makes an empty cache of."""
    if config.trunk == "lstm":
        return {"lstm_units": config.lstm_units}
    return {"n_layer": config.n_layer, "n_head": config.n_head, "head_dim": config.head_dim}


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Writes a tokenizer's files with the code that reads them, and returns what the card says of it."""
    tokenizer.save(folder)
    found = find_marker(folder)
    assert found is not None, "a tokenizer marks what it saves"
    _, marker = found
    variant = marker.get("variant")
    shutil.copyfile(Path(standalone.__file__).with_name("text.py"), folder / "text.py")
    if variant == "approximate":
        shutil.copyfile(approximate_words.__file__, folder / "approximate.py")
    return {
        "type": marker["type"],
        **({"variant": variant} if variant else {}),
        "needs": _NEEDS.get(variant or marker["type"], []),
        "separator": list(tokenizer.document_separator),
        "fingerprint": tokenizer.fingerprint,
    }


def _tokenizer_row(tokenizer: Mapping[str, Any]) -> str:
    if tokenizer["type"] == "missing":
        return "none: it takes ids"
    return f"{tokenizer['type']}, which needs {' and '.join(tokenizer['needs']) or 'no further package'}"


def _compare(target: Path, model: GPT1, params: Params, programs: Sequence[Program]) -> int:
    """How many numbers the exported folder gives for random ids, all of them those of the model.

    Raises:
      RuntimeError: they differ.
    """
    config, exported = model.config, standalone.load(target)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, 2, min(16, config.n_ctx)), np.int32)
    function = jax.jit(programs[0].function)
    if isinstance(exported, standalone.Task):
        examples = ids[:, :1] if model.task_readout.kind in ("classification", "entailment") else ids
        expected = [function(flatten(params), examples, np.full(examples.shape[:2], examples.shape[-1], np.int32))]
        found = [exported.predict_ids(examples.tolist())]
    else:
        row = ids[0, 0]
        logits = np.asarray(function(flatten(params), row[None]))[0]
        expected, found = [logits, logits[-1:]], [exported.logits(row), exported.next_logits([row])]
    for before, after in zip(expected, found, strict=True):
        difference = np.abs(np.asarray(before, np.float64) - after).max()
        if not difference <= _TOLERANCE[config.dtype] * max(1.0, np.abs(before).max()):  # NaN as well
            raise RuntimeError(
                f"self-check: the exported programs differ from the model by up to {difference}; nothing is exported"
            )
    return sum(after.size for after in found)
