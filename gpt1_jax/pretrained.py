"""Models on disk: `load_pretrained` and `save_pretrained`, and how a pre-trained model is made ready for a task."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gpt1_jax import tokenizers
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.config import from_config, to_dict
from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory
from gpt1_jax.model import GPT1, INIT_STD, GPT1Config, ReadOut
from gpt1_jax.model_config import N_SPECIAL
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.workdir import read_config, write_config

Params = Any

ARCHITECTURE = ("vocab_size", "n_embd", "n_head", "n_layer", "activation")
"""What the weights were trained as; everything else about a `GPT1Config` may differ where they are used."""


def load_pretrained(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    n_ctx: int | None = None,
    n_head: int | None = None,
    dtype: str | None = None,
) -> tuple[GPT1, Params, Tokenizer]:
    """Loads a model, its parameters (float32 arrays on the default device) and its tokenizer.

    Args:
      path: a workdir of `pretrain` or `finetune`, or a folder written by `save_pretrained`.
      step: which checkpoint; default the best by the run's own metric where it keeps one, else the latest.
      n_ctx: a shorter context: the first n_ctx positions are kept.
      n_head: overrides the number of heads, where a folder cannot say it.
      dtype: dtype of the computation, "float32" or "bfloat16".

    Raises:
      InputError: no such folder or checkpoint, a damaged checkpoint, a tokenizer of another size, an n_ctx that is
        longer than the weights'.
    """
    path = Path(path)
    stored = read_config(path)
    if "model" not in stored:
        raise InputError(
            f"{path}/config.json describes no model of this package; give the workdir of a run, or a folder that "
            f"save_pretrained wrote"
        )
    config = from_config(GPT1Config, stored["model"], where=f"{path}/config.json: model")
    changes = {"n_head": n_head, "dtype": dtype}
    config = dataclasses.replace(config, **{k: v for k, v in changes.items() if v is not None})
    readout = ReadOut(**stored["readout"]) if stored.get("readout") else None
    with Checkpointer(path / "checkpoints", **stored.get("best", {}), read_only=True) as checkpointer:
        if step is None and stored.get("best"):
            step = checkpointer.best_step()
        if step is None:
            step = checkpointer.latest_step()
        if step is None:
            raise InputError(
                f"{path}/checkpoints holds no finished checkpoint; let the run go on until it has saved one"
            )
        params = checkpointer.restore_params(step)
    if n_ctx is not None:
        config, params = slice_positions(config, params, n_ctx)
    tokenizer = tokenizers.load(path)
    check_tokenizer(tokenizer, config, path)
    return GPT1(config, readout), jax.tree.map(jax.numpy.asarray, params), tokenizer


def save_pretrained(
    path: str | os.PathLike[str], model: GPT1, params: Params, tokenizer: Tokenizer, format: str = "gpt1_jax"
) -> None:
    """Writes a folder that `load_pretrained` reads.

    Args:
      path: a new or empty folder.
      model: the model.
      params: its parameters.
      tokenizer: its tokenizer.
      format: "gpt1_jax".

    Raises:
      InputError: unknown format, a folder that cannot be made or is not empty, or a tokenizer of another size.
    """
    path = Path(path)
    if format != "gpt1_jax":
        raise InputError(f"format={format!r} is unknown; use 'gpt1_jax'")
    check_tokenizer(tokenizer, model.config, path)
    make_directory(path, "path")
    if any(path.iterdir()):
        raise InputError(f"path={str(path)!r} is not empty; choose a new folder")
    tokenizer.save(path / "tokenizer")
    with Checkpointer(path / "checkpoints") as checkpointer:
        checkpointer.save(0, {"params": params}, {})
    write_config(path, model_record(model))


def model_record(model: GPT1) -> dict[str, Any]:
    """What `config.json` says about a model."""
    return {"model": to_dict(model.config), "readout": to_dict(model.readout) if model.readout else None}


def check_tokenizer(tokenizer: Tokenizer, config: GPT1Config, where: object) -> None:
    """Refuses a tokenizer that was not made for the model.

    Raises:
      InputError: the sizes differ.
    """
    if tokenizer.vocab_size != config.vocab_size:
        raise InputError(
            f"{where}: the tokenizer has {tokenizer.vocab_size} tokens and the model vocab_size={config.vocab_size}; "
            f"use the tokenizer that the weights were trained with, or set model.vocab_size={tokenizer.vocab_size}"
        )


def slice_positions(config: GPT1Config, params: Params, n_ctx: int) -> tuple[GPT1Config, Params]:
    """Keeps the first `n_ctx` positions.

    Raises:
      InputError: the weights have fewer.
    """
    if n_ctx > config.n_ctx:
        raise InputError(
            f"n_ctx={n_ctx} is longer than the {config.n_ctx} positions of the weights; use at most {config.n_ctx}"
        )
    table = params["positions_embed"]["embedding"][:n_ctx]
    return dataclasses.replace(config, n_ctx=n_ctx), params | {"positions_embed": {"embedding": table}}


def add_special_rows(config: GPT1Config, params: Params, seed: int) -> tuple[GPT1Config, Params]:
    """Appends the rows of start, delimiter and extract after the vocabulary, as fine-tuning begins.

    Like the official code they are drawn from NumPy's `RandomState(seed)` with standard deviation 0.02. A model that
    has them (it was fine-tuned before) is returned as it is.
    """
    if config.n_special:
        return config, params
    config = dataclasses.replace(config, n_special=N_SPECIAL)
    old = np.asarray(params["tokens_embed"]["embedding"])
    table = np.zeros((config.padded_rows, config.n_embd), np.float32)
    table[: config.vocab_size] = old[: config.vocab_size]
    drawn = np.random.RandomState(seed).randn(N_SPECIAL, config.n_embd) * INIT_STD
    table[config.vocab_size : config.n_rows] = drawn.astype(np.float32)
    return config, params | {"tokens_embed": {"embedding": table}}
