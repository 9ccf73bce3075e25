"""ZeRO stage 1 (Rajbhandari et al. 2020, section 5.1): the optimizer's state lies over `data`, too.

Each data-parallel copy keeps a part of the moments and of the float32 parameters, and updates that part. A step begins
with gathering the parameters in the dtype of the computation and ends with each copy getting the sum of its part of
the gradients: together the bytes of one reduction of all to all in that dtype. The numbers are those of copies that
each do everything, and a checkpoint is the same: only where arrays lie differs, so that it can be switched on or off
when a run is continued.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from gpt1_jax.model import GPT1
from gpt1_jax.sharding import MeshConfig, constrain, param_shardings

OVER_DATA = {"embed": "embed_over_data"}
"""Logical axis of a parameter -> that of its part. Every matrix has it; biases of heads and of the MLP are small."""


def is_sharded(config: MeshConfig, mesh: Mesh, width: int, *, few_moments: bool = False) -> bool:
    """Whether the optimizer is sharded over `data`: what `config.shard_optimizer` says, and with None where it can be.

    The TPU compiler's estimates speak for it, see launch/README.md.

    Args:
      config: of the mesh.
      mesh: the devices.
      width: what the copies share of every matrix: n_embd, see `GPT1Config.shared_width`.
      few_moments: most parameters are frozen, so that there is nothing to share.
    """
    if config.shard_optimizer is not None:
        return config.shard_optimizer
    n_parts = mesh.shape["data"] * mesh.shape["fsdp"]
    return mesh.shape["data"] > 1 and width % n_parts == 0 and not few_moments


class ShardedOverData(optax.GradientTransformationExtraArgs):
    """An optimizer whose state, and whose parameters between two updates, lie over `data` as well."""


def sharded_over_data(optimizer: optax.GradientTransformationExtraArgs) -> ShardedOverData:
    """The same optimizer, by which `train.initial_state` lays out parameters and moments."""
    return ShardedOverData(optimizer.init, optimizer.update)


@dataclasses.dataclass(frozen=True)
class DataLayout:
    """What a step does with parameters and gradients on their way, see `gpt1_jax.train.make_train_step`.

    Attributes:
      gather: parameters -> the same, whole on every copy.
      scatter: gradients -> the same, each copy with its part.
    """

    gather: Callable[[Any], Any]
    scatter: Callable[[Any], Any]


def data_layout(model: GPT1) -> DataLayout:
    """The two for the parameters of a model."""
    whole = jax.eval_shape(model.init_partitioned, jax.random.key(0))

    def lay_out(boxed: Any) -> Callable[[Any], Any]:
        names = jax.tree.map(lambda box: box.names, boxed, is_leaf=_is_box)
        return lambda tree: jax.tree.map(lambda x, axes: constrain(x, *axes), tree, names)

    return DataLayout(gather=lay_out(whole), scatter=lay_out(renamed(whole)))


def gathered(params: Any) -> Any:
    """Nothing but a name: all runs of a process share its compilation, which they would not of a function of each."""
    return params


def made_whole(model: GPT1, mesh: Mesh) -> Callable[[Any], Any]:
    """Parameters -> the same, whole on every copy, where they are not so already: to evaluate, and for who trained."""
    shardings = param_shardings(model, mesh)
    gather = jax.jit(gathered, out_shardings=shardings)

    def whole(params: Any) -> Any:
        lies_so = jax.tree.map(lambda x, wanted: x.sharding.is_equivalent_to(wanted, x.ndim), params, shardings)
        return params if jax.tree.all(lies_so) else gather(params)

    return whole


def renamed(params: Any) -> Any:
    """Boxed parameters with the axes of their parts, from which all shardings are made (see sharding.py)."""

    def rename(leaf: Any) -> Any:
        return leaf.replace(names=tuple(OVER_DATA.get(name, name) for name in leaf.names)) if _is_box(leaf) else leaf

    return jax.tree.map(rename, params, is_leaf=_is_box)


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.LogicallyPartitioned)
