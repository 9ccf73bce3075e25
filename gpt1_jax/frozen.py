"""Fine-tuning without the trunk: only what fine-tuning adds is trained, the rest stays as it was, to the bit.

What it adds are W_y and the rows of start, delimiter and extract ("the only extra parameters we require during
fine-tuning", section 3.2 of the paper). The rows are trained as well, since they are drawn at random: a frozen extract
token would read the sequence through noise.

Two halves: `frozen_objective` gives everything else a gradient of zero, so that norms and clipping see the trained part
only and the backward pass saves the products of the trunk's weights; `frozen_optimizer` decays and changes nothing else
and keeps no moments for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gpt1_jax.losses import Batch, Metrics, Objective
from gpt1_jax.model_config import GPT1Config

FREEZE = ("none", "trunk")
"""Values of `FinetuneConfig.freeze`."""

_TABLE = "tokens_embed"


def frozen_objective(objective: Objective, config: GPT1Config) -> Objective:
    """The same loss; its gradient is zero everywhere but in the task head and the special rows."""

    def trained_part(params: Any) -> Any:
        fixed = jax.lax.stop_gradient(params)
        rows = slice(config.vocab_size, config.n_rows)
        table = fixed[_TABLE]["embedding"].at[rows].set(params[_TABLE]["embedding"][rows])
        return {**fixed, "clf": params["clf"], _TABLE: {"embedding": table}}

    def loss(
        params: Any, batch: Batch, rows: Array, key: Array, scheduled: Mapping[str, Array]
    ) -> tuple[Array, Metrics]:
        return objective.loss(trained_part(params), batch, rows, key, scheduled)

    return dataclasses.replace(objective, loss=loss)


def frozen_optimizer(
    optimizer: optax.GradientTransformationExtraArgs, config: GPT1Config
) -> optax.GradientTransformationExtraArgs:
    """`optimizer` for the task head and the special rows alone: its state has no other parameters."""
    rows = slice(config.vocab_size, config.n_rows)

    def part(tree: Any) -> Any:
        (table,) = jax.tree.leaves(tree[_TABLE])  # out of its partitioning box, if any: three rows are not sharded
        return {"clf": tree["clf"], _TABLE: {"embedding": table[rows]}}

    def init(params: Any) -> Any:
        return optimizer.init(part(params))

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        changes, state = optimizer.update(part(grads), state, part(params), **extra)
        updates = jax.tree.map(lambda p: jnp.full_like(p, -0.0), params)  # x + -0.0 is x, where 0.0 turns -0.0 into 0.0
        table = updates[_TABLE]["embedding"].at[rows].set(changes[_TABLE]["embedding"])
        return {**updates, "clf": changes["clf"], _TABLE: {"embedding": table}}, state

    return optax.GradientTransformationExtraArgs(init, update)
