"""The paper's optimizer: Adam with a scheduled rate, decoupled decay on matrices, and clipping by the global norm.

As the official code writes it, with t counted from 1 and s(.) the schedule at (t - 1) / T:

    rate_t  = learning_rate s((t - 1) / T) sqrt(1 - b2^t) / (1 - b1^t)
    theta  <- theta - rate_t m_t / (sqrt(v_t) + eps) - rate_t weight_decay theta

so epsilon is outside the bias corrections, decay is inside the rate, and a warm-up makes the first update zero. `optax`
parts give exactly this once epsilon and decay follow the corrections.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float32

from gpt1_jax.config import check_fields
from gpt1_jax.errors import InputError
from gpt1_jax.precision import MATRICES, leaves_named

DECAYED = MATRICES
"""Names of the parameters that decay: matrices, whatever their number of axes, and no bias or gain."""

SCHEDULES = ("cosine", "warmup_cosine", "warmup_linear", "warmup_constant", "constant")
"""Of the learning rate, see `OptimizerConfig`."""

LM_SCHEDULES = {"constant": "constant", "linear": "fall", "cosine": "fall_cosine", "step": "until"}
"""Of lambda, see `make_lm_schedule`, and the curve that each is."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam and its schedule; the defaults are those of pre-training (paper, section 4.1).

    Attributes:
      learning_rate: peak rate.
      schedule: after the linear warm-up, "cosine" falls from 1 to 0 over the steps that are left; "warmup_cosine",
        "warmup_linear" and "warmup_constant" are the official code's, which are functions of t / T that are not
        re-scaled after the warm-up.
      warmup_steps: length of the warm-up in steps; None takes `warmup_fraction` of all steps.
      warmup_fraction: used where `warmup_steps` is None.
      b1: decay rate of the first moment.
      b2: decay rate of the second moment.
      eps: added to the root of the second moment.
      weight_decay: decoupled decay of matrices.
      clip_norm: largest global norm of the gradients; 0 switches clipping off.
    """

    learning_rate: float = 2.5e-4
    schedule: str = "cosine"
    warmup_steps: int | None = 2000
    warmup_fraction: float = 0.002
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Checks names and ranges."""
        check_fields(self, "optimizer")
        if self.schedule not in SCHEDULES:
            raise InputError(f"optimizer.schedule={self.schedule!r} is unknown; use one of {list(SCHEDULES)}")
        for name in ("learning_rate", "eps", "weight_decay", "clip_norm", "warmup_steps", "warmup_fraction"):
            if (getattr(self, name) or 0) < 0:
                raise InputError(f"optimizer.{name}={getattr(self, name)} must not be negative")
        if self.warmup_fraction > 1:
            raise InputError(f"optimizer.warmup_fraction={self.warmup_fraction} must be at most 1, the whole run")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"optimizer.{name}={getattr(self, name)} must be at least 0 and below 1")


class Schedule(flax.struct.PyTreeNode):
    """A number that changes with the step: x = step / n_steps -> value.

    All of it is an input of a compiled step, so that one compilation serves any rate, any shape and any length of a
    run.

    Attributes:
      peak: value at the end of the warm-up; where there is none, at the start.
      n_steps: length T of the run, in steps.
      turn: part of the run that rises linearly from zero; of "until" the part after which the value is 0.
      shape: which curve, its number in `SHAPES`.
    """

    peak: jax.typing.ArrayLike
    n_steps: jax.typing.ArrayLike = 1.0
    turn: jax.typing.ArrayLike = 0.0
    shape: jax.typing.ArrayLike = 0

    def __call__(self, step: jax.typing.ArrayLike) -> Float32[jax.Array, ""]:
        """The value before update `step` + 1: float32 []."""
        x = jnp.asarray(step, jnp.float32) / self.n_steps
        turn = jnp.asarray(self.turn)
        curves = jnp.stack([curve(x, turn) for curve in _CURVES.values()])
        return curves[self.shape] * self.peak


def _half_cosine(x: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jnp.cos(jnp.pi * x))


def _warm_up(x: jax.Array, turn: jax.Array, after: jax.Array, during: jax.Array | float = 1.0) -> jax.Array:
    return jnp.where((x <= turn) & (turn > 0), x / jnp.maximum(turn, 1e-12) * during, after)


_CURVES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "constant": lambda x, turn: jnp.ones_like(x),
    "cosine": lambda x, turn: _warm_up(x, turn, _half_cosine((x - turn) / jnp.maximum(1.0 - turn, 1e-12))),
    "warmup_cosine": lambda x, turn: _warm_up(x, turn, _half_cosine(x)),
    # The official code's linear decay begins at step 0, inside the warm-up.
    "warmup_linear": lambda x, turn: _warm_up(x, turn, 1.0 - x, during=1.0 - x),
    "warmup_constant": lambda x, turn: _warm_up(x, turn, jnp.ones_like(x)),
    "fall": lambda x, turn: 1.0 - x,
    "fall_cosine": lambda x, turn: _half_cosine(x),
    "until": lambda x, turn: jnp.where(x < turn, 1.0, 0.0),
}
SHAPES = tuple(_CURVES)


def make_schedule(config: OptimizerConfig, n_steps: int) -> Schedule:
    """The learning rate at step 0, 1, ... of `n_steps`.

    Raises:
      InputError: the warm-up is longer than the run.
    """
    if n_steps < 1:
        raise InputError(f"n_steps={n_steps} must be at least 1")
    if config.warmup_steps is not None and config.warmup_steps >= n_steps:
        raise InputError(
            f"optimizer.warmup_steps={config.warmup_steps} does not fit a run of {n_steps} steps; "
            f"use a number below {n_steps}, or warmup_steps=None for warmup_fraction={config.warmup_fraction} of it"
        )
    warmup = config.warmup_fraction if config.warmup_steps is None else config.warmup_steps / n_steps
    return _schedule(config.learning_rate, n_steps, warmup, config.schedule)


def make_lm_schedule(lm_coef: float, schedule: str, n_steps: int, drop_at: float = 0.5) -> Schedule:
    """Lambda, the weight of L1 in fine-tuning, at step 0, 1, ... of `n_steps`.

    Args:
      lm_coef: its value at the start.
      schedule: "constant"; "linear" and "cosine" fall to 0 at the end of the run; "step" is 0 from a part of it on.
      n_steps: length of the run.
      drop_at: that part, rounded to whole steps.

    Raises:
      InputError: a schedule of another name.
    """
    if schedule not in LM_SCHEDULES:
        raise InputError(f"lm_coef_schedule={schedule!r} is unknown; use one of {list(LM_SCHEDULES)}")
    turn = (round(drop_at * n_steps) - 0.5) / n_steps  # between two steps, so that no rounding decides
    return _schedule(lm_coef, n_steps, turn, LM_SCHEDULES[schedule])


def _schedule(peak: float, n_steps: int, turn: float, shape: str) -> Schedule:
    return Schedule(np.float32(peak), np.float32(n_steps), np.float32(turn), np.int32(SHAPES.index(shape)))


def decays(params: Any) -> Any:
    """Which leaves decay, by name (`DECAYED`): a tree of True and False."""
    return leaves_named(params, DECAYED)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """The update of the module's docstring as an optax transformation of raw gradients.

    The rate is an argument of every update: `optimizer.update(grads, state, params, learning_rate=schedule(step))`.
    """

    def root(step: jax.Array) -> jax.Array:
        return jnp.sqrt(1.0 - config.b2 ** (step + 1.0))

    def correction(step: jax.Array) -> jax.Array:
        return root(step) / (1.0 - config.b1 ** (step + 1.0))

    # Static, or 1 - b2 would be taken from a float32 b2 and the second moment be 1e-5 too small.
    adam = optax.inject_hyperparams(optax.scale_by_adam, static_args=("b1", "b2"))(
        b1=config.b1, b2=config.b2, eps=lambda step: config.eps / root(step)
    )
    decay = optax.inject_hyperparams(optax.add_decayed_weights, static_args="mask")(
        weight_decay=lambda step: config.weight_decay * correction(step), mask=decays
    )
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        adam,
        decay if config.weight_decay else optax.identity(),
        _scale_by_rate(),
    )


def _scale_by_rate() -> optax.GradientTransformationExtraArgs:
    """Multiplies the updates with minus the `learning_rate` that the call of `update` brings."""

    def update(
        updates: Any, state: optax.EmptyState, params: Any = None, *, learning_rate: jax.Array, **extra: Any
    ) -> tuple[Any, optax.EmptyState]:
        del params, extra
        return jax.tree.map(lambda u: -learning_rate * u, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
