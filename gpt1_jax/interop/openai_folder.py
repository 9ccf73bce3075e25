"""The folder in which OpenAI released the model (`model/` of openai/finetune-transformer-lm), in and out.

    params_shapes.json            the shapes of all arrays in their order, a list of lists
    params_0.npy .. params_9.npy  the values of all arrays one after the other (openai_shards.py)

The order is: position rows [n_ctx, D], token rows [V, D], then of each block the twelve arrays of `_block`, under their
official names (openai.py). The release writes a projection as [1, n_in, n_out]; [n_in, n_out], as other programs have
it, is read too. The folder does not say the number of heads and the activation, and has no place for special rows and
a task head.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from flax.traverse_util import flatten_dict

from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory, similar, write_atomically
from gpt1_jax.interop.openai import check_blocks, params_from_official, params_to_official
from gpt1_jax.interop.openai_shards import COPY_AGAIN, Shard, find_shards, read_shards, write_shards
from gpt1_jax.model import GPT1Config, param_shapes

SHAPES = "params_shapes.json"
N_HEAD = GPT1Config.n_head  # the release's

Entry = tuple[str, list[int]]  # an array's name and its shape


def openai_folder(path: str | os.PathLike[str]) -> Path | None:
    """The folder with the parameters: `path`, or `model/` in it; None if neither has a file of this format."""
    for folder in (Path(path), Path(path) / "model"):
        if (folder / SHAPES).is_file() or any(folder.glob("params_*.npy")):
            return folder
    return None


def is_openai_folder(path: str | os.PathLike[str]) -> bool:
    """Whether `path`, or `model/` in it, has a file of this format; it may be damaged."""
    return openai_folder(path) is not None


def load_openai(path: str | os.PathLike[str], *, n_head: int | None = None) -> tuple[GPT1Config, dict[str, Any]]:
    """Reads a folder in OpenAI's layout.

    Args:
      path: the folder, or the one in which it is called `model`.
      n_head: the number of heads, which the folder does not say; default 12.

    Returns:
      The config that follows from the shapes (n_special=0), and the parameters as float32 numpy arrays.

    Raises:
      InputError: no such folder; a file is missing, damaged or of another kind; the shapes are not those of a GPT-1;
        shapes and values do not add up; a value is not finite or not a float32; n_head does not divide the width.
    """
    folder = openai_folder(path)
    if folder is None:
        raise InputError(_nothing_there(Path(path)))
    entries = entries_from_shapes(_read_shapes(folder / SHAPES), folder / SHAPES)
    config = _config(entries, n_head, folder)
    shards = find_shards(folder)
    sizes = [math.prod(shape) for _, shape in entries]
    _check_total(shards, sum(sizes), folder)
    values = np.split(read_shards(shards), np.cumsum(sizes)[:-1])
    arrays = {name: value.reshape(shape) for (name, shape), value in zip(entries, values, strict=True)}
    for i, (name, array) in enumerate(arrays.items()):
        finite = np.isfinite(array)
        if not finite.all():
            index = int(np.argmin(finite))
            raise InputError(
                f"{_shard_of(shards, sum(sizes[:i]) + index).path}: {name} holds {array.flat[index]}, all values must "
                f"be finite; {COPY_AGAIN}, or take weights from before the training diverged"
            )
    arrays["model/we"] = np.concatenate([arrays.pop("token rows"), arrays.pop("position rows")])
    return config, params_from_official(arrays.__getitem__, config)


def save_openai(path: str | os.PathLike[str], config: GPT1Config, params: Mapping[str, Any]) -> None:
    """Writes parameters in OpenAI's layout, as the release has it.

    Files in the release's form that NumPy 1.14 or later wrote come back byte for byte when what `load_openai` made
    of them is saved; with the headers of an older NumPy, their values do.

    What the format has no place for is left out with a warning: special rows, the task head, and an n_head or
    activation other than the release's. Rows that pad the token table never leave. The shapes are written last: a
    folder with them is whole.

    Args:
      path: a folder without files of this format, made if missing; a tokenizer's may be there.
      config: the model.
      params: its parameters, float32.

    Raises:
      InputError: the model is an LSTM; the folder has such files or cannot be made; `params` are not those of
        `config`, not float32 or not finite. Nothing is written then.
    """
    folder = Path(path)
    if (taken := openai_folder(folder)) is not None:
        raise InputError(f"path={str(path)!r}: {taken} has weights in OpenAI's layout already; choose a new folder")
    check_blocks(config, "OpenAI's layout")
    _check_params(config, params)
    official = params_to_official(params, config)
    tables = official.pop("model/we")
    blocks = [array for name, array in official.items() if not name.startswith("model/clf/")]
    arrays = [tables[config.n_rows :], tables[: config.vocab_size], *blocks]
    dropped = {
        f"the {config.n_special} special rows": config.n_special > 0,
        "the task head": "clf" in params,
        f"activation={config.activation!r}": config.activation != GPT1Config.activation,
        f"n_head={config.n_head} (give it when loading)": config.n_head != N_HEAD,
    }
    for what in (what for what, is_there in dropped.items() if is_there):
        logging.warning("%s: OpenAI's layout has no place for %s; left out", folder, what)
    make_directory(folder, "path")
    write_shards(folder, np.concatenate([array.reshape(-1) for array in arrays]))
    write_atomically(folder / SHAPES, shapes_text(config).encode("utf-8"))


def shapes_text(config: GPT1Config) -> str:
    """The content of params_shapes.json, to the byte."""
    return json.dumps([shape for _, shape in _entries(config.n_ctx, config.vocab_size, config.n_embd, config.n_layer)])


def entries_from_shapes(shapes: Any, where: object) -> list[Entry]:
    """Puts names to the content of params_shapes.json.

    Returns:
      (name, shape) of every array in order, projections as [1, n_in, n_out] however they are written.

    Raises:
      InputError: it is not the list of a GPT-1's shapes; the first entry that does not fit is named, in file `where`.
    """

    def wrong(i: int, name: str, expected: object) -> InputError:
        found = f"is {_short(shapes[i])}" if i < len(shapes) else f"is missing, there are {len(shapes)} entries"
        return InputError(
            f"{where}: entry {i} ({name}) {found}, expected {expected}; it is damaged or not of a GPT-1: {COPY_AGAIN}, "
            f"or give another folder"
        )

    if not isinstance(shapes, list):
        raise InputError(f"{where}: holds {_short(shapes)}, expected a list of shapes; {COPY_AGAIN}")
    for i, name in enumerate(("position rows", "token rows")):
        if i >= len(shapes) or not _is_shape(shapes[i]) or len(shapes[i]) != 2 or shapes[i][1] != shapes[0][1]:
            raise wrong(i, name, f"[vocab_size, {shapes[0][1]}]" if i else "[n_ctx, n_embd]")
    (n_ctx, n_embd), (vocab_size, _) = shapes[:2]
    n_layer = math.ceil((len(shapes) - 2) / len(_block(n_embd)))
    entries = _entries(n_ctx, vocab_size, n_embd, n_layer)
    for i, (name, shape) in enumerate(entries):
        allowed = [shape, shape[1:]] if len(shape) == 3 else [shape]
        if i >= len(shapes) or not _is_shape(shapes[i]) or shapes[i] not in allowed:
            raise wrong(i, name, shape)
    return entries


def _block(d: int) -> dict[str, list[int]]:
    """Names and shapes of the arrays of one block of width d, in the order of the file."""
    return {
        "attn/c_attn/w": [1, d, 3 * d],
        "attn/c_attn/b": [3 * d],
        "attn/c_proj/w": [1, d, d],
        "attn/c_proj/b": [d],
        "ln_1/g": [d],
        "ln_1/b": [d],
        "mlp/c_fc/w": [1, d, 4 * d],
        "mlp/c_fc/b": [4 * d],
        "mlp/c_proj/w": [1, 4 * d, d],
        "mlp/c_proj/b": [d],
        "ln_2/g": [d],
        "ln_2/b": [d],
    }


def _entries(n_ctx: int, vocab_size: int, d: int, n_layer: int) -> list[Entry]:
    blocks = [(f"model/h{i}/{name}", shape) for i in range(n_layer) for name, shape in _block(d).items()]
    return [("position rows", [n_ctx, d]), ("token rows", [vocab_size, d]), *blocks]


def _config(entries: list[Entry], n_head: int | None, folder: Path) -> GPT1Config:
    (n_ctx, n_embd), (vocab_size, _) = (shape for _, shape in entries[:2])
    if n_head is None and n_embd % N_HEAD:
        raise InputError(
            f"{folder}: n_embd={n_embd} is not divisible by {N_HEAD}, the released model's number of heads, and the "
            f"folder does not say its own; give n_head, or write a folder that says it with launch/convert.py --n_head"
        )
    n_layer = (len(entries) - 2) // len(_block(n_embd))
    n_head = N_HEAD if n_head is None else n_head
    return GPT1Config(vocab_size=vocab_size, n_ctx=n_ctx, n_embd=n_embd, n_head=n_head, n_layer=n_layer)


def _read_shapes(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}), and without it the weights beside it have no shape; "
            f"{COPY_AGAIN}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON in UTF-8 ({error}); {COPY_AGAIN}") from None


def _check_total(shards: list[Shard], expected: int, folder: Path) -> None:
    ends = [int(end) for end in np.cumsum([shard.n for shard in shards])]
    if ends[-1] == expected:
        return
    if expected in ends:
        remedy = f"{shards[ends.index(expected)].path.name} ends just there: move the files after it elsewhere"
    else:
        remedy = "a file is missing, or they belong to different models: copy or download the folder again"
    raise InputError(
        f"{folder}: {shards[0].path.name} to {shards[-1].path.name} hold {ends[-1]} values, {SHAPES} asks for "
        f"{expected}; {remedy}"
    )


def _shard_of(shards: list[Shard], index: int) -> Shard:
    """The file that holds a value of the whole vector."""
    ends = np.cumsum([shard.n for shard in shards])
    return shards[int(np.searchsorted(ends, index, side="right"))]


def _check_params(config: GPT1Config, params: Mapping[str, Any]) -> None:
    wanted = param_shapes(config)
    trunk = {name: value for name, value in params.items() if name != "clf"}
    if flatten_dict(trunk).keys() != flatten_dict(wanted).keys():
        raise InputError("params: are not the tree of arrays of this config; give model.config and its own parameters")

    def check(path: tuple[Any, ...], value: Any, like: jax.ShapeDtypeStruct) -> None:
        name = "/".join(key.key for key in path)
        if value.shape != like.shape or value.dtype != like.dtype:
            raise InputError(
                f"params: {name} is {value.dtype} {list(value.shape)}, config asks for {like.dtype} "
                f"{list(like.shape)}; give model.config and its own parameters"
            )
        if not np.isfinite(np.asarray(value)).all():
            raise InputError(f"params: {name} has values that are not finite; take an earlier checkpoint")

    jax.tree.map_with_path(check, trunk, wanted)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n > 0 for n in value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _nothing_there(path: Path) -> str:
    if path.is_file():
        return f"{path}: is a file, expected a folder with {SHAPES}; unpack an archive first (tar -xf)"
    if not path.is_dir():
        close = similar(path, folder=True)
        return f"{path}: no such folder" + (f"; did you mean {close[0]}?" if close else "; check the path")
    return f"{path}: has no {SHAPES} and no params_0.npy, nor has a folder model/ in it; give the folder that has"
