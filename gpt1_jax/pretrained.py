"""Models on disk, in three formats."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
from absl import logging

from gpt1_jax import bucket, tokenizers
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.config import from_config, to_dict
from gpt1_jax.errors import InputError, did_you_mean
from gpt1_jax.files import make_new_directory
from gpt1_jax.interop.huggingface import is_huggingface_folder, load_huggingface, save_huggingface
from gpt1_jax.interop.openai_folder import is_openai_folder, load_openai, save_openai
from gpt1_jax.mirror import checkpoints_of, copy_of
from gpt1_jax.model import GPT1, GPT1Config, ReadOut, describe_model
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.tokenizers.protocol import check_tokenizer
from gpt1_jax.workdir import read_config, write_config

Params = Any

FORMATS = ("gpt1_jax", "huggingface", "openai")
"""What `load_pretrained` reads and `save_pretrained` writes."""


def load_pretrained(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    n_ctx: int | None = None,
    n_head: int | None = None,
    dtype: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> tuple[GPT1, Params, Tokenizer]:
    """Loads a model, its parameters (float32 arrays on the default device) and its tokenizer.

    Args:
      path: a workdir of `pretrain` or `finetune`, a folder written by `save_pretrained`, OpenAI's released folder
        (`params_shapes.json`, `params_0.npy` ...), or a Hugging Face folder of an `openai-gpt` model. Each may be in a
        bucket, as `gs://bucket/folder`.
      step: which checkpoint of a workdir; default the best by the run's own metric where it keeps one, else the latest.
      n_ctx: a shorter context: the first n_ctx positions are kept.
      n_head: the number of heads, which OpenAI's folder does not say; 12 unless given.
      dtype: dtype of the computation, "float32" or "bfloat16".
      tokenizer: takes the place of the folder's own. Without it, weights of other programs that come without tokenizer
        files give a tokenizer that raises when it is used.

    Raises:
      InputError: no such folder or checkpoint, damaged files, a tokenizer of another size, an n_ctx that is longer
        than the weights', an n_head that contradicts them.
    """
    path = copy_of(path)
    format, saved = format_of(path), None
    if format != "gpt1_jax" and step is not None:
        raise InputError(f"step={step}: {path} holds one set of weights, not the checkpoints of a run; leave it out")
    if format == "openai":
        readout = None
        config, params = load_openai(path, n_head=n_head)
    elif format == "huggingface":
        config, readout, params = load_huggingface(path)
    else:
        config, readout, params, saved = _load_own(path, step)
    if n_head not in (None, config.n_head):
        raise InputError(f"n_head={n_head}: {path} says that its weights have n_head={config.n_head}; leave it out")
    if dtype is not None:
        config = dataclasses.replace(config, dtype=dtype)
    if n_ctx is not None:
        config, params = slice_positions(config, params, n_ctx)
    if tokenizer is None:
        tokenizer = _tokenizer_of(path, format, config)
    check_tokenizer(tokenizer, config.vocab_size, path)
    of = format if saved is None else f"step {saved}"
    logging.info("model of %s (%s), on %s: %s", path, of, jax.default_backend(), describe_model(config, readout))
    return GPT1(config, readout), jax.tree.map(jax.numpy.asarray, params), tokenizer


def format_of(path: str | os.PathLike[str]) -> str:
    """Which of `FORMATS` a folder has.

    Raises:
      InputError: it has none of them.
    """
    path = copy_of(path)
    if is_openai_folder(path):
        return "openai"
    if is_huggingface_folder(path):
        return "huggingface"
    stored = read_config(path)
    if stored.get("program") == "finetune, repeated":
        runs = sorted(str(file.parent) for file in path.glob("**/seed_*/config.json"))
        raise InputError(f"{path} holds several runs: give one of them, {' or '.join(runs) or 'once there are any'}")
    if "model" not in stored:
        raise InputError(
            f"{path}/config.json describes no GPT-1; give the workdir of a run, a folder that save_pretrained wrote, "
            "OpenAI's folder, or a Hugging Face folder whose model_type is openai-gpt"
        )
    return "gpt1_jax"


def _load_own(path: Path, step: int | None) -> tuple[GPT1Config, ReadOut | None, Params, int]:
    stored = read_config(path)
    config = from_config(GPT1Config, stored["model"], where=f"{path}/config.json: model")
    readout = ReadOut(**stored["readout"]) if stored.get("readout") else None
    checkpoints = checkpoints_of(path)
    with Checkpointer(checkpoints, **stored.get("best", {}), read_only=True) as checkpointer:
        if step is None and stored.get("best"):
            step = checkpointer.best_step()
        if step is None:
            step = checkpointer.latest_step()
        if step is None:
            raise InputError(f"{checkpoints} holds no finished checkpoint; let the run go on until it has saved one")
        return config, readout, checkpointer.restore_params(step), step


def _tokenizer_of(path: Path, format: str, config: GPT1Config) -> Tokenizer:
    if format == "gpt1_jax":
        return tokenizers.load(path)
    if found := tokenizers.find(path):
        return found
    logging.warning("%s has no tokenizer files: give tokenizer=tokenizers.load(...) to read or write text", path)
    return tokenizers.MissingTokenizer(config.vocab_size, str(path))


def save_pretrained(
    path: str | os.PathLike[str], model: GPT1, params: Params, tokenizer: Tokenizer, format: str = "gpt1_jax"
) -> None:
    """Writes a folder that `load_pretrained` reads.

    Args:
      path: a new or empty folder.
      model: the model.
      params: its parameters.
      tokenizer: its tokenizer.
      format: "gpt1_jax"; "huggingface", which `transformers` loads; or "openai", the layout of the released weights,
        which has no room for special rows and task head: they are left out, with a warning.

    Raises:
      InputError: unknown format, a folder that cannot be made or is not empty, a tokenizer of another size, or a model
        that the format cannot express.
    """
    if bucket.is_url(path):
        raise InputError(f"path={path}: write a local folder, and copy it with gcloud storage cp --recursive")
    path = Path(path)
    if format not in FORMATS:
        raise InputError(f"format={format!r} is unknown; use one of {list(FORMATS)}{did_you_mean(format, FORMATS)}")
    check_tokenizer(tokenizer, model.config.vocab_size, path)
    make_new_directory(path, "path")
    missing = isinstance(tokenizer, tokenizers.MissingTokenizer)
    original = tokenizer if isinstance(tokenizer, tokenizers.OpenAITokenizer) else None
    # Weights come first: a model that the format cannot express leaves an empty folder.
    if format == "openai":
        save_openai(path, model.config, params)
        if original:
            original.save_openai(path)
        if not missing and not (original and original.variant == "exact"):
            tokenizer.save(path / "tokenizer")  # there is no word for it in OpenAI's layout
    elif format == "huggingface":
        save_huggingface(path, model, params)
        if original:
            original.save_huggingface(path, tokenizers.SPECIAL_TOKENS if model.config.n_special else ())
        if not missing:
            tokenizer.save(path / "tokenizer")  # ours beside theirs, which has no SentencePiece and splits otherwise
    else:
        tokenizer.save(path / "tokenizer")
        with Checkpointer(path / "checkpoints") as checkpointer:
            checkpointer.save(0, {"params": params}, {})
        write_config(path, model_record(model))


def model_record(model: GPT1) -> dict[str, Any]:
    """What `config.json` says about a model."""
    return {"model": to_dict(model.config), "readout": to_dict(model.readout) if model.readout else None}


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
