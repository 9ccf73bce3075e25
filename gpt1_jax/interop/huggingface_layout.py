"""Parameters as transformers stores a GPT-1, by name and shape.

    tokens_embed.weight                            [n_rows, D]        special rows included
    positions_embed.weight                         [n_ctx, D]
    h.<i>.attn.c_attn.{weight,bias}                [D, 3 D], [3 D]    q | k | v, each of H heads side by side
    h.<i>.attn.c_proj.{weight,bias}                [D, D], [D]
    h.<i>.ln_{1,2}.{weight,bias}                   [D]
    h.<i>.mlp.c_fc.{weight,bias}                   [D, 4 D], [4 D]
    h.<i>.mlp.c_proj.{weight,bias}                 [4 D, D], [D]
    score.weight                                   [n_labels, D]
    multiple_choice_head.summary.{weight,bias}     [1, D], [1]

Names of the trunk have `transformer.` before them, except in a file of the trunk alone.
"""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
from flax.traverse_util import flatten_dict

from gpt1_jax.interop.openai import TreePath
from gpt1_jax.model import GPT1Config, ReadOut, param_shapes

TRUNK = "transformer."
TABLE = "tokens_embed.weight"
SCORE = "score"
MULTIPLE_CHOICE = "multiple_choice_head.summary"
HEADS = (SCORE, MULTIPLE_CHOICE)
"""Modules that are a task head there."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One parameter, there and here.

    Attributes:
      path: its path in our tree.
      shape: its shape there.
      ours: its shape here.
    """

    path: TreePath
    shape: tuple[int, ...]
    ours: tuple[int, ...]

    def to_theirs(self, value: np.ndarray) -> np.ndarray:
        """Our array in their layout; rows that pad the token table are left out."""
        if self.path == ("clf", "kernel"):
            return np.ascontiguousarray(value.T)
        return np.ascontiguousarray(value[: self.shape[0]] if self._is_table else value.reshape(self.shape))

    def from_theirs(self, value: np.ndarray) -> np.ndarray:
        """Their array in our layout; rows that pad the token table are zero."""
        if self.path == ("clf", "kernel"):
            return np.ascontiguousarray(value.T)
        if self._is_table:
            return np.pad(value, ((0, self.ours[0] - self.shape[0]), (0, 0)))
        return value.reshape(self.ours)

    @property
    def _is_table(self) -> bool:
        return self.path[-1] == "embedding"


def layout(config: GPT1Config, readout: ReadOut | None, head: str | None) -> dict[str, Entry]:
    """The parameters of `GPT1(config, readout)` by their name there, without the trunk's prefix.

    Args:
      config: the network.
      readout: its task head, or None.
      head: the module of HEADS that holds the task head; `score` has no place for a bias.
    """
    entries = {
        _name(path, head): Entry(path, _shape(path, leaf.shape, config), leaf.shape)
        for path, leaf in sorted(flatten_dict(param_shapes(config, readout)).items())
    }
    entries.pop(f"{SCORE}.bias", None)
    return entries


def _name(path: TreePath, head: str | None) -> str:
    *modules, kind = path
    if modules == ["clf"]:
        modules = [str(head)]
    kind = "bias" if kind == "bias" else "weight"
    return ".".join([re.sub(r"^h_(\d+)$", r"h.\1", module) for module in modules] + [kind])


def _shape(path: TreePath, ours: tuple[int, ...], config: GPT1Config) -> tuple[int, ...]:
    *_, module, kind = path
    if kind == "embedding":
        return (config.n_rows if module == "tokens_embed" else config.n_ctx, config.n_embd)
    if kind != "kernel":
        return (math.prod(ours),)
    if module == "clf":
        return ours[::-1]
    n_out = ours[-1] if module == "c_proj" else math.prod(ours[1:])
    return (math.prod(ours) // n_out, n_out)
