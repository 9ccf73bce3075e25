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

import jax
import numpy as np

from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, GPT1Config, ReadOut

Path = tuple[str, ...]


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
    params: dict[str, Any] = {}

    def put(path: Path, value: np.ndarray) -> None:
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = value

    tables = _checked("model/we", get("model/we"), (config.n_rows + config.n_ctx, config.n_embd))
    tokens, positions = np.split(tables, [config.n_rows])
    put(("tokens_embed", "embedding"), np.pad(tokens, ((0, config.padded_rows - config.n_rows), (0, 0))))
    put(("positions_embed", "embedding"), positions.copy())  # a view would keep all of `tables` in memory
    shapes = _leaves(
        jax.eval_shape(GPT1(config, readout).init, jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    )
    for name, path in _names(config.n_layer).items():
        if path not in shapes:  # no task head, or one without bias
            continue
        shape = shapes[path].shape
        put(path, _checked(name, get(name), _official_shape(name, shape)).reshape(shape))
    return params


def params_to_official(params: Mapping[str, Any], config: GPT1Config) -> dict[str, np.ndarray]:
    """The official arrays of a tree of parameters (or of their gradients), in the official order of names.

    Rows that pad the token table are left out; the task head is there if `params` has one.
    """
    leaves = _leaves(params)
    tokens, positions = (np.asarray(leaves[table, "embedding"]) for table in ("tokens_embed", "positions_embed"))
    official = {"model/we": np.concatenate([tokens[: config.n_rows], positions])}
    for name, path in _names(config.n_layer).items():
        if path in leaves:
            value = np.asarray(leaves[path])
            official[name] = value.reshape(_official_shape(name, value.shape))
    return official


def _names(n_layer: int) -> dict[str, Path]:
    """Official name -> path in our tree, for all but the tables, in the official order."""
    names: dict[str, Path] = {}
    for i in range(n_layer):
        for module in ("attn/c_attn", "attn/c_proj", "ln_1", "mlp/c_fc", "mlp/c_proj", "ln_2"):
            for theirs, ours in (
                (("g", "scale"), ("b", "bias")) if "ln_" in module else (("w", "kernel"), ("b", "bias"))
            ):
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


def _leaves(tree: Any) -> dict[Path, Any]:
    return {tuple(k.key for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}
