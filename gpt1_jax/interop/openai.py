"""The official code's parameters (openai/finetune-transformer-lm), by name and in its layout.

    model/we                          [n_vocab + n_special + n_ctx, D]   token rows, special rows, position rows
    model/h<i>/attn/c_attn/{w,b}      [1, D, 3 D], [3 D]                 q | k | v, each of H heads side by side
    model/h<i>/attn/c_proj/{w,b}      [1, D, D], [D]
    model/h<i>/ln_{1,2}/{g,b}         [D]                                gain and bias
    model/h<i>/mlp/c_fc/{w,b}         [1, D, 4 D], [4 D]
    model/h<i>/mlp/c_proj/{w,b}       [1, 4 D, D], [D]
    model/clf/{w,b}                   [D, n_outputs], [n_outputs]        the task head

Both directions only rename, split and reshape, so a round trip returns every byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1Config, ReadOut, param_shapes

TreePath = tuple[str, ...]


def check_blocks(config: GPT1Config, whose: str) -> None:
    """Refuses a model without the blocks that the formats of other programs are made for.

    Raises:
      InputError: it is an LSTM.
    """
    if config.trunk != "transformer":
        raise InputError(
            f"trunk={config.trunk!r}: {whose} has a place for the Transformer's blocks and nothing else; use "
            "format='gpt1_jax'"
        )


def params_from_official(
    get: Callable[[str], np.ndarray], config: GPT1Config, readout: ReadOut | None = None
) -> dict[str, Any]:
    """The parameters of `GPT1(config, readout)` from arrays in the official layout.

    Args:
      get: official name -> array, as listed in the module's docstring.
      config: the model; its `n_rows` and `n_ctx` say where `model/we` is cut into tokens and positions.
      readout: takes the task head as well.

    Returns:
      The tree of numpy arrays, rows that pad the token table zero.

    Raises:
      InputError: an array does not have the shape that `config` asks for.
    """
    tables = _checked("model/we", get("model/we"), (config.n_rows + config.n_ctx, config.n_embd))
    tokens, positions = np.split(tables, [config.n_rows])
    leaves: dict[tuple[str, ...], np.ndarray] = {
        ("tokens_embed", "embedding"): np.pad(tokens, ((0, config.padded_rows - config.n_rows), (0, 0))),
        ("positions_embed", "embedding"): positions.copy(),  # a view would keep all of `tables` in memory
    }
    shapes = flatten_dict(param_shapes(config, readout))
    for name, path in _names(config.n_layer).items():
        if path not in shapes:  # no task head, or one without bias
            continue
        shape = shapes[path].shape
        leaves[path] = _checked(name, get(name), _official_shape(name, shape)).reshape(shape)
    return unflatten_dict(leaves)


def params_to_official(params: Mapping[str, Any], config: GPT1Config) -> dict[str, np.ndarray]:
    """The official arrays of a tree of parameters (or of their gradients), in the official order of names.

    Rows that pad the token table are left out; the task head is there if `params` has one.
    """
    leaves = flatten_dict(params)
    tokens, positions = (np.asarray(leaves[table, "embedding"]) for table in ("tokens_embed", "positions_embed"))
    official = {"model/we": np.concatenate([tokens[: config.n_rows], positions])}
    for name, path in _names(config.n_layer).items():
        if path in leaves:
            value = np.asarray(leaves[path])
            official[name] = value.reshape(_official_shape(name, value.shape))
    return official


def _names(n_layer: int) -> dict[str, TreePath]:
    """Official name -> path in our tree, for all but the tables, in the official order."""
    names: dict[str, TreePath] = {}
    for i in range(n_layer):
        for module in ("attn/c_attn", "attn/c_proj", "ln_1", "mlp/c_fc", "mlp/c_proj", "ln_2"):
            first = ("g", "scale") if module.startswith("ln_") else ("w", "kernel")
            for theirs, ours in (first, ("b", "bias")):
                names[f"model/h{i}/{module}/{theirs}"] = (f"h_{i}", *module.split("/"), ours)
    return names | {"model/clf/w": ("clf", "kernel"), "model/clf/b": ("clf", "bias")}


def _official_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Our shape with q, k, v and heads side by side; projections are convolutions of width 1 there."""
    n_in = int(np.prod(shape[:-1])) if "c_proj" in name else shape[0]
    if name.endswith("/w"):
        matrix = (n_in, int(np.prod(shape)) // n_in)
        return matrix if name.startswith("model/clf") else (1, *matrix)
    return (int(np.prod(shape)),)


def _checked(name: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    value = np.asarray(value)
    if value.shape != shape:
        raise InputError(
            f"{name} has shape {list(value.shape)}, the model's config asks for {list(shape)}; "
            f"set vocab_size, n_special, n_ctx, n_embd and n_layer to those of the weights"
        )
    return value
