"""Models of Hugging Face transformers (`openai-gpt`), in and out, without transformers.

    config.json              see huggingface_config.py
    model.safetensors        see huggingface_layout.py and, for other files of weights that are read, tensor_files.py
    generation_config.json   written: special tokens are never generated

Both directions only rename, reshape and transpose, so a round trip returns every byte.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory, read_object, write_atomically, write_json
from gpt1_jax.interop.huggingface_config import (
    FolderConfig,
    folder_config,
    is_openai_gpt,
    read_folder_config,
    read_readout,
)
from gpt1_jax.interop.huggingface_layout import HEADS, MULTIPLE_CHOICE, SCORE, TABLE, TRUNK, Entry, layout
from gpt1_jax.interop.openai import TreePath, check_blocks
from gpt1_jax.interop.tensor_files import WEIGHT_FILES, StoredTensor, open_tensors
from gpt1_jax.model import GPT1, GPT1Config, ReadOut

_TIED = "lm_head.weight"
_BUFFERS = re.compile(r"h\.\d+\.attn\.bias|position_ids")  # the causal mask, and 0, 1, 2, ...
_FLOATS = ("float32", "float16", "bfloat16", "float64")


def is_huggingface_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder's `config.json` is that of a GPT-1 of transformers."""
    try:
        return is_openai_gpt(read_object(Path(path) / "config.json"))
    except InputError:
        return False


def load_huggingface(path: str | os.PathLike[str]) -> tuple[GPT1Config, ReadOut | None, dict[str, Any]]:
    """Loads a folder that transformers wrote for one of its GPT-1 classes, or `save_huggingface`.

    A task head that another program trained reads the last token of a stream (`read_at="last"`). Types other than
    float32 are converted, buffers that old versions stored are left out; both are logged.

    Returns:
      The config, the readout (None without a task head) and the tree of float32 numpy arrays.

    Raises:
      InputError: a file is missing, damaged or not safe to open; the config asks for what this model cannot do; or
        tensors are missing, unknown, of other shapes or types, not finite, or not tied as they should be.
    """
    folder = Path(path)
    folder_says = read_folder_config(folder)
    tensors = _without_prefix(folder, open_tensors(folder))
    _untie(tensors)
    head = next((head for head in HEADS if f"{head}.weight" in tensors), folder_says.named_head)
    _check_names(folder_says, head, tensors)
    config, readout = read_readout(folder_says, head, tensors[f"{head}.weight"].shape[0] if head else 0)
    if head == MULTIPLE_CHOICE and not config.clf_bias and tensors[f"{head}.bias"].read().any():
        logging.warning("%s: the task head has got a bias since it was exported: clf_bias=True", folder)
        config = dataclasses.replace(config, clf_bias=True)

    entries = layout(config, readout, head)
    _check_tensors(folder_says, tensors, entries)
    leaves = {entry.path: entry.from_theirs(_read(tensors[name], name)) for name, entry in entries.items()}
    if head == SCORE and readout is not None and config.clf_bias:  # it was zero, or there would be no such folder
        leaves["clf", "bias"] = np.zeros((readout.n_outputs,), np.float32)
    return config, readout, unflatten_dict(leaves)


def save_huggingface(path: str | os.PathLike[str], model: GPT1, params: Mapping[str, Any]) -> None:
    """Writes a folder that the class of transformers that fits the model loads.

    Without a readout that is OpenAIGPTLMHeadModel; for classification and entailment
    OpenAIGPTForSequenceClassification, which reads the last token that is no padding (id 0); for multiple choice
    OpenAIGPTDoubleHeadsModel, which has to be told what to read: `mc_token_ids` are the places of the extract tokens.
    The special rows follow the vocabulary; the rows that pad our token table are left out.

    Args:
      path: a folder without a model; it is made if need be.
      model: the model.
      params: its parameters, float32.

    Raises:
      InputError: no class there computes what this model computes, or the folder holds a model.
    """
    check_blocks(model.config, "transformers' GPT-1")
    path = Path(path)
    config, readout = model.config, model.readout
    leaves = {path: np.asarray(leaf) for path, leaf in flatten_dict(params).items()}
    head = _head_for(model, leaves)
    entries = layout(config, readout, head)
    tensors = {
        name if name.startswith(HEADS) else TRUNK + name: entry.to_theirs(leaf)
        for (name, entry), leaf in zip(entries.items(), _checked(entries, leaves), strict=True)
    }
    if head == MULTIPLE_CHOICE and not config.clf_bias:
        tensors[f"{head}.bias"] = np.zeros((1,), np.float32)

    make_directory(path, "path")
    there = [name for name in ("config.json", *WEIGHT_FILES) if (path / name).exists()]
    if there:
        raise InputError(f"path={str(path)!r} already holds a model ({', '.join(there)}); choose a new folder")
    from safetensors.numpy import save

    write_atomically(path / WEIGHT_FILES[0], save(tensors, metadata={"format": "pt"}))
    if config.n_special:
        special = list(range(config.vocab_size, config.n_rows))
        write_json(path / "generation_config.json", {"suppress_tokens": special})
    write_json(path / "config.json", folder_config(config, readout, head))  # last: a folder that has it is complete


def _head_for(model: GPT1, leaves: Mapping[TreePath, np.ndarray]) -> str | None:
    """The module there that computes what the model's task head does."""
    config, readout = model.config, model.readout
    if config.softmax_over_positions:
        raise InputError(
            "softmax_over_positions=True: transformers has no language model whose softmax spans the position rows. "
            "Export dataclasses.replace(config, softmax_over_positions=False): its logits of tokens are the same, its "
            "probabilities are not"
        )
    if readout is None:
        return None
    if readout.kind == "similarity":
        raise InputError(
            "kind='similarity': transformers has no GPT-1 that adds both orders of a pair before the task head; use "
            "format='gpt1_jax'"
        )
    if readout.score_range is not None:
        raise InputError(
            f"score_range={readout.score_range}: transformers' GPT-1 has no head that reads a score out as this one "
            "does; use format='gpt1_jax'"
        )
    if readout.kind == "multiple_choice":
        return MULTIPLE_CHOICE
    if np.any(leaves.get(("clf", "bias"), 0)):
        raise InputError(
            f"kind={readout.kind!r}: the task head has a bias, and `score` of OpenAIGPTForSequenceClassification has "
            f"none; fine-tune with clf_bias=False to export such a model, or use format='gpt1_jax'"
        )
    return SCORE


def _checked(entries: Mapping[str, Entry], leaves: Mapping[TreePath, np.ndarray]) -> list[np.ndarray]:
    """The parameters in the order of `entries`, if they are those of the model."""
    for entry in entries.values():
        leaf = leaves.get(entry.path)
        found = "missing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
        if found != f"float32{list(entry.ours)}":
            raise InputError(
                f"params[{'/'.join(entry.path)}] is {found}, the model asks for float32{list(entry.ours)}; pass the "
                f"parameters of this model"
            )
    more = leaves.keys() - {entry.path for entry in entries.values()} - {("clf", "bias")}
    if more:
        raise InputError(f"params[{'/'.join(min(more))}] is not of this model; is its readout missing?")
    return [leaves[entry.path] for entry in entries.values()]


def _without_prefix(folder: Path, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors by their name in the trunk, without its buffers."""
    short: dict[str, StoredTensor] = {}
    buffers = []
    for name, tensor in tensors.items():
        stem = name.removeprefix(TRUNK)
        if _BUFFERS.fullmatch(stem):
            buffers.append(name)
        elif stem in short:
            raise InputError(f"{tensor.file}: has {stem} both with and without {TRUNK!r}; remove the wrong one")
        else:
            short[stem] = tensor
    if buffers:
        logging.info("%s: %d buffers, which are no weights, are left out: %s", folder, len(buffers), _listed(buffers))
    return short


def _untie(tensors: dict[str, StoredTensor]) -> None:
    """Leaves the one table that is both the embedding and the LM head, under the name of the embedding."""
    if _TIED not in tensors:
        return
    tied = tensors.pop(_TIED)
    table = tensors.setdefault(TABLE, tied)
    if table is not tied and not np.array_equal(table.read(), tied.read()):
        raise InputError(
            f"{tied.file}: {_TIED} differs from {TABLE}, and in this model they are one table; it was trained with "
            f"tie_word_embeddings=False, or one of them is damaged: take other weights"
        )


def _check_names(folder_says: FolderConfig, head: str | None, tensors: Mapping[str, StoredTensor]) -> None:
    """Every tensor of the model is there, and no other."""
    any_readout = ReadOut("multiple_choice", read_at="last") if head else None
    names = layout(dataclasses.replace(folder_says.model, clf_bias=True), any_readout, head).keys()
    missing, unknown = sorted(names - tensors.keys()), sorted(tensors.keys() - names)
    if missing or unknown:
        problems = [f"{_listed(missing)} are missing"] * bool(missing)
        problems += [f"{_listed(unknown)} are unknown"] * bool(unknown)
        raise InputError(
            f"{folder_says.file.parent}: of its tensors {', and '.join(problems)}; config.json describes "
            f"{folder_says.model.n_layer} layers and {f'the task head {head}' if head else 'no task head'}; "
            f"correct it, or download both again"
        )


def _check_tensors(
    folder_says: FolderConfig, tensors: Mapping[str, StoredTensor], entries: Mapping[str, Entry]
) -> None:
    """Shapes are those of the config, types are floats."""
    wrong = [
        f"{name} has shape {list(tensors[name].shape)} instead of {list(entry.shape)}"
        for name, entry in entries.items()
        if tensors[name].shape != entry.shape
    ]
    if wrong:
        raise InputError(
            f"{folder_says.file}: does not fit the weights beside it: {_listed(wrong, 3)}; check vocab_size, "
            f"n_positions and n_embd"
        )
    for name in entries:
        if tensors[name].dtype not in _FLOATS:
            raise InputError(
                f"{tensors[name].file}: {name} is stored as {tensors[name].dtype}, and only {', '.join(_FLOATS)} can "
                f"be loaded; take the checkpoint as it was before it was quantized"
            )
    for dtype, n in collections.Counter(tensors[name].dtype for name in entries).items():
        if dtype != "float32":
            word = "rounded" if dtype == "float64" else "widened"
            logging.info("%s: %d tensors of type %s are %s to float32", folder_says.file.parent, n, dtype, word)


def _read(tensor: StoredTensor, name: str) -> np.ndarray:
    """The values as float32."""
    with np.errstate(over="ignore"):  # found just below
        values = np.asarray(tensor.read(), np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        raise InputError(
            f"{tensor.file}: {name} holds {tensor.read().flat[int(np.argmin(finite))]}, all values must be finite in "
            f"float32; download it again, or take weights from before the training diverged"
        )
    return values


def _listed(names: list[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
