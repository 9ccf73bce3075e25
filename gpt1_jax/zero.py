"""ZeRO stage 1 (Rajbhandari et al. 2020, section 5.1): the optimizer's state lies over `data`, too.

Each data-parallel copy keeps a part of the moments and updates that part of the parameters; the new parameters are then
gathered. The numbers are those of copies that each do everything, and a checkpoint is the same: only where arrays lie
differs, so that it can be switched on or off when a run is continued.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import optax

from gpt1_jax.model import GPT1
from gpt1_jax.sharding import constrain

OVER_DATA = {"embed": "embed_over_data"}
"""Logical axis of a parameter -> that of its moments. Every matrix has it; biases of heads and of the MLP are small."""


def sharded_over_data(optimizer: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """The same optimizer; what it keeps of each parameter lies over `data` as well.

    `init` renames the axes in Flax's partitioning boxes, from which all shardings are made (see sharding.py).
    """

    def init(params: Any) -> Any:
        return optimizer.init(jax.tree.map(_rename, params, is_leaf=_is_box))

    return optax.GradientTransformationExtraArgs(init, optimizer.update)


def gradient_layout(model: GPT1) -> Callable[[Any], Any]:
    """Lays the summed gradients out as the moments lie, so that each device only gets the part that it needs.

    See `gpt1_jax.train.make_train_step`.
    """
    boxed = jax.eval_shape(model.init_partitioned, jax.random.key(0))
    names = jax.tree.map(lambda box: _rename(box).names, boxed, is_leaf=_is_box)
    return lambda grads: jax.tree.map(lambda grad, axes: constrain(grad, *axes), grads, names)


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.LogicallyPartitioned)


def _rename(leaf: Any) -> Any:
    return leaf.replace(names=tuple(OVER_DATA.get(name, name) for name in leaf.names)) if _is_box(leaf) else leaf
