"""`config.json` of a Hugging Face `openai-gpt` folder, in and out.

| there, and older names | here |
|---|---|
| vocab_size | vocab_size + n_special |
| n_positions, max_position_embeddings, n_ctx | n_ctx |
| n_embd, hidden_size; n_head, num_attention_heads; n_layer, num_hidden_layers | n_embd; n_head; n_layer |
| afn: gelu, relu, swish or silu | activation: gelu, relu, swish |
| embd_pdrop, attn_pdrop, resid_pdrop, summary_first_dropout | embd_pdrop, attn_pdrop, resid_pdrop, clf_pdrop |
| id2label | labels of a readout of kind classification or entailment |
| gpt1_jax: a section of ours | all that has no word there |

transformers leaves a section that it does not know as it is, also when it saves the model again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt1_jax.config import from_config, to_dict
from gpt1_jax.errors import InputError
from gpt1_jax.files import read_object
from gpt1_jax.interop.huggingface_layout import MULTIPLE_CHOICE, SCORE
from gpt1_jax.model_config import GPT1Config, ReadOut

MODEL_TYPE = "openai-gpt"
SECTION = "gpt1_jax"

ARCHITECTURES = {
    None: "OpenAIGPTLMHeadModel",
    SCORE: "OpenAIGPTForSequenceClassification",
    MULTIPLE_CHOICE: "OpenAIGPTDoubleHeadsModel",
}
"""Class of a model there, by the module that is its task head."""

_NAMES = {
    "vocab_size": ("vocab_size",),
    "n_ctx": ("n_positions", "max_position_embeddings", "n_ctx"),
    "n_embd": ("n_embd", "hidden_size"),
    "n_head": ("n_head", "num_attention_heads"),
    "n_layer": ("n_layer", "num_hidden_layers"),
    "embd_pdrop": ("embd_pdrop",),
    "attn_pdrop": ("attn_pdrop",),
    "resid_pdrop": ("resid_pdrop",),
    "clf_pdrop": ("summary_first_dropout",),
    "activation": ("afn",),
}
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "swish", "silu": "swish"}
_KINDS = {SCORE: ("classification", "entailment"), MULTIPLE_CHOICE: ("multiple_choice",)}


@dataclasses.dataclass(frozen=True)
class FolderConfig:
    """What a folder's `config.json` says.

    Attributes:
      file: the file.
      raw: its content.
      model: the network. A folder that this package did not write has n_special=0.
      recorded: what this package wrote about the task head; empty without one, or in a folder of another program.
    """

    file: Path
    raw: Mapping[str, Any]
    model: GPT1Config
    recorded: Mapping[str, Any]

    @property
    def named_head(self) -> str | None:
        """The task head of the model class that the file names."""
        named = self.raw.get("architectures") or [None]
        return next((head for head, name in ARCHITECTURES.items() if name == named[0]), None)


def is_openai_gpt(raw: Mapping[str, Any]) -> bool:
    """Whether this is the `config.json` of a GPT-1; the oldest do not name the type but have `afn`, like no other."""
    if "model_type" in raw:
        return raw["model_type"] == MODEL_TYPE
    return {"afn", "n_embd", "n_head", "n_layer", "vocab_size"} <= raw.keys()


def read_folder_config(folder: Path) -> FolderConfig:
    """Reads `config.json`.

    Raises:
      InputError: there is none, it is of another kind of model, or says something that this model cannot do.
    """
    file = folder / "config.json"
    raw = read_object(file)
    if not is_openai_gpt(raw):
        raise InputError(
            f"{file}: model_type={raw.get('model_type')!r}; only {MODEL_TYPE!r} (GPT-1) can be loaded into this model"
        )
    epsilon = raw.get("layer_norm_epsilon", 1e-5)
    if epsilon != 1e-5:
        raise InputError(f"{file}: layer_norm_epsilon={epsilon!r}; the LayerNorm of this model has 1e-5 and no other")
    values = _network(file, raw)
    n_rows = values["vocab_size"]
    try:
        model = from_config(GPT1Config, {**values, **_recorded(raw, "model")}, where=f"{SECTION}.model")
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    if model.n_rows != n_rows:
        raise InputError(
            f"{file}: vocab_size={n_rows}, but this package wrote {model.vocab_size} tokens and {model.n_special} "
            f"special ones: the table was resized since. Remove the section {SECTION!r} from the file to load the "
            f"folder as one of another program, without special tokens"
        )
    return FolderConfig(file, raw, model, _recorded(raw, "readout"))


def read_readout(config: FolderConfig, head: str | None, n_outputs: int) -> tuple[GPT1Config, ReadOut | None]:
    """The network and its readout, for a folder that holds a task head of `n_outputs` outputs.

    The head that the folder holds decides. What this package recorded counts where it is about such a head: another
    program may have put one in its place. Heads of other programs read the last token; their `score` has no bias.

    Raises:
      InputError: the head is not one that this model can have.
    """
    model = config.model
    if head is None:
        return model, None
    recorded = dict(config.recorded) if config.recorded.get("kind") in _KINDS[head] else {}
    if head == SCORE:
        recorded["labels"] = _scored_labels(config, n_outputs)
    else:
        _check_summary(config, n_outputs)
    if "kind" not in recorded:
        model = dataclasses.replace(model, clf_bias=head == MULTIPLE_CHOICE)
    values = {"kind": _KINDS[head][0], "read_at": "last", **recorded}
    try:
        return model, from_config(ReadOut, values, where=f"{SECTION}.readout")
    except InputError as error:
        raise InputError(f"{config.file}: {error}") from None


def _scored_labels(config: FolderConfig, n_outputs: int) -> tuple[str, ...]:
    """Names of the classes that `score` tells apart."""
    problem = config.raw.get("problem_type")
    if n_outputs < 2 or problem not in (None, "single_label_classification"):
        raise InputError(
            f"{config.file}: problem_type={problem!r} with {n_outputs} outputs; only a softmax over two or more "
            f"classes can be loaded ('single_label_classification')"
        )
    names = config.raw.get("id2label")
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(n_outputs))
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(n_outputs)}:
        raise InputError(
            f"{config.file}: id2label={names!r} must name the classes 0 .. {n_outputs - 1} of score.weight"
        )
    return tuple(str(names[str(i)]) for i in range(n_outputs))


def _check_summary(config: FolderConfig, n_outputs: int) -> None:
    """Refuses a multiple-choice head that is more, or less, than one linear layer with one output on one token."""
    allowed = {
        "summary_type": ("cls_index", "last"),
        "summary_use_proj": (True,),
        "summary_proj_to_labels": (True,),
        "summary_activation": (None, "", "linear"),
    }
    for name, values in allowed.items():
        value = config.raw.get(name, values[0])
        if value not in values:
            raise InputError(
                f"{config.file}: {name}={value!r}; the multiple-choice head of this model is one linear layer on one "
                f"token ({name}={values[0]!r})"
            )
    if n_outputs != 1:
        raise InputError(f"{config.file}: a multiple-choice head with {n_outputs} outputs; this model's has one")


def folder_config(config: GPT1Config, readout: ReadOut | None, head: str | None) -> dict[str, Any]:
    """The content of `config.json`; `head` is a key of ARCHITECTURES."""
    values = to_dict(config)
    shared = {theirs[0]: values.pop(ours) for ours, theirs in _NAMES.items()}
    written: dict[str, Any] = {
        "architectures": [ARCHITECTURES[head]],
        "model_type": MODEL_TYPE,
        **shared,
        "vocab_size": config.n_rows,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "summary_activation": None,
        "summary_proj_to_labels": True,
        "tie_word_embeddings": True,
    }
    record = to_dict(readout) if readout else None
    if head == SCORE and record is not None:
        labels = record.pop("labels")
        written["id2label"] = {str(i): label for i, label in enumerate(labels)}
        written["label2id"] = {label: i for i, label in enumerate(labels)}
        written["problem_type"] = "single_label_classification"
        # The class is read at the last token that is not this one. Our batches are padded with it, and a stream ends
        # with its extract token.
        written["pad_token_id"] = 0
    return written | {SECTION: {"model": {"vocab_size": config.vocab_size, **values}, "readout": record}}


def _recorded(raw: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A part of our section; empty where there is none."""
    section = raw.get(SECTION)
    found = section.get(part) if isinstance(section, dict) else None
    return found if isinstance(found, dict) else {}


def _network(file: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `GPT1Config` that have a name there; what is absent has the default, which is the same there."""
    values: dict[str, Any] = {}
    for ours, names in _NAMES.items():
        default = getattr(GPT1Config(), ours)
        name = next((name for name in names if raw.get(name) is not None), names[0])
        value = raw.get(name, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and isinstance(default, float)) and type(value) is not type(default):
            raise InputError(f"{file}: {name}={value!r} must be of type {type(default).__name__}")
        values[ours] = type(default)(value)
    if values["activation"] not in _ACTIVATIONS:
        raise InputError(f"{file}: afn={values['activation']!r}; this model knows {', '.join(_ACTIVATIONS)}")
    values["activation"] = _ACTIVATIONS[values["activation"]]
    return values
