"""Scores in place of classes, such as STS-B's 0 to 5: how a number is learned, and how it is read out.

Of the two ways, `ReadOut.score_points` chooses:

- K >= 2 points, equally spaced from the lowest to the highest score: the outputs of W_y are their logits. A true score
  is shared between the two points next to it, and the loss is the divergence KL(target || softmax). This is section 4.2
  of Tai, Socher & Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks"
  (2015), where the points are whole numbers. What is predicted is the expected value, sum_k r_k p_k; it is always
  within the range.
- 0: one output, the score as its place in the range, 0 the lowest and 1 the highest. The loss is the squared error of
  that place. What is predicted may leave the range.

Shapes: B examples, K points.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from gpt1_jax.model_config import ReadOut


def soft_targets(scores: Float32[Array, " B"], readout: ReadOut) -> Float32[Array, "B K"]:
    """The distribution over the points whose expected value is the score: float32 [B, K].

    With whole numbers as points, p_i = y - floor(y) at i = floor(y) + 1 and floor(y) - y + 1 at i = floor(y).

    Args:
      scores: float32 [B], within `readout.score_range`.
      readout: one with points.
    """
    place = _place(scores, readout)[:, None] * (readout.score_points - 1)
    return jnp.maximum(1.0 - jnp.abs(place - jnp.arange(readout.score_points)), 0.0)


def score_loss(
    outputs: Float32[Array, "B n_outputs"], scores: Float32[Array, " B"], readout: ReadOut
) -> Float32[Array, " B"]:
    """The loss of each example, see the module: float32 [B].

    Args:
      outputs: float32 [B, n_outputs], of W_y.
      scores: float32 [B], the true ones.
      readout: one of scores.
    """
    if not readout.score_points:
        return jnp.square(outputs[:, 0] - _place(scores, readout))
    target = soft_targets(scores, readout)
    log_target = jnp.log(jnp.where(target > 0, target, 1.0))  # 0 log 0 = 0
    return jnp.sum(target * (log_target - jax.nn.log_softmax(outputs, axis=-1)), axis=-1)


def predicted_scores(outputs: Float32[Array, "B n_outputs"], readout: ReadOut) -> Float32[Array, " B"]:
    """The score that the outputs [B, n_outputs] say: float32 [B]."""
    low, high = _ends(readout)
    if not readout.score_points:
        return low + (high - low) * outputs[:, 0]
    points = jnp.linspace(low, high, readout.score_points)
    return jnp.sum(jax.nn.softmax(outputs, axis=-1) * points, axis=-1)


def _ends(readout: ReadOut) -> tuple[float, float]:
    assert readout.score_range is not None, f"{readout} has classes"
    return readout.score_range


def _place(scores: Array, readout: ReadOut) -> Array:
    """0 for the lowest score to 1 for the highest, both exactly."""
    low, high = map(jnp.float32, _ends(readout))
    return (scores - low) / (high - low)
