"""The next token: drawn from softmax(logits / temperature), restricted to the likeliest tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int, Key


def draw(
    logits: Float32[Array, "B V"],
    keys: Key[Array, " B"],
    temperature: Float32[Array, ""],
    top_k: Int[Array, ""],
    top_p: Float32[Array, ""],
) -> Int[Array, " B"]:
    """One token id for each row, from softmax(logits / temperature) restricted to top_k, then to top_p.

    Args:
      logits: float32 [B, V].
      keys: random keys [B].
      temperature: float32 scalar; 0 takes the likeliest token.
      top_k: int32 scalar, 1 .. V; V keeps all.
      top_p: float32 scalar, in (0, 1]; 1 keeps all. Applied to the probabilities renormalised over the top k.

    Returns:
      int32 [B].
    """

    def random(logits: Array) -> Array:
        # The largest score is 0 before the division, so that no temperature overflows.
        scores = (logits - logits.max(axis=-1, keepdims=True)) / temperature
        noise = jax.vmap(lambda key: jax.random.gumbel(key, scores.shape[1:]))(keys)
        return _first_highest(restrict(scores, top_k, top_p) + noise)  # as `jax.random.categorical` does

    return lax.cond(temperature < jnp.finfo(jnp.float32).tiny, _first_highest, random, logits)


def restrict(scores: Float32[Array, "B V"], top_k: Int[Array, ""], top_p: Float32[Array, ""]) -> Float32[Array, "B V"]:
    """-inf for every token outside the k likeliest, and then outside the smallest set of probability top_p.

    Args and shapes as in `draw`; of equal tokens the lower ids count as likelier, so the sets are exact. At least one
    token is left.
    """

    def k_likeliest(scores: Array) -> Array:
        kept = _likeliest(scores, jnp.ones_like(scores), top_k.astype(jnp.float32))
        return jnp.where(kept, scores, -jnp.inf)

    def nucleus(scores: Array) -> Array:
        # Below that, float32 on a device may take it for 0, which no token at all sums to.
        target = jnp.maximum(top_p, jnp.finfo(jnp.float32).tiny)
        kept = _likeliest(scores, jax.nn.softmax(scores, axis=-1), target)
        return jnp.where(kept, scores, -jnp.inf)

    scores = lax.cond(top_k < scores.shape[-1], k_likeliest, lambda scores: scores, scores)
    return lax.cond(top_p < 1, nucleus, lambda scores: scores, scores)


def _first_highest(scores: Float32[Array, "B V"]) -> Int[Array, " B"]:
    """`argmax` of each row as two plain reductions, which a CPU does several times faster: [B, V] -> int32 [B]."""
    last = scores.shape[-1] - 1
    is_highest = scores == scores.max(axis=-1, keepdims=True)
    return jnp.where(is_highest, lax.broadcasted_iota(jnp.int32, scores.shape, 1), last).min(axis=-1)


def _likeliest(
    scores: Float32[Array, "B V"], weights: Float32[Array, "B V"], target: Float32[Array, ""]
) -> Bool[Array, "B V"]:
    """The smallest set of highest scores whose weights sum to the target or more: bool [B, V].

    Equal scores must have equal weights. The lowest score of the set is found bit by bit, which takes 32 sums where
    sorting 40k tokens takes several times as long.
    """
    bits = lax.bitcast_convert_type(jnp.where(scores == 0, 0.0, scores), jnp.uint32)  # -0 equals 0
    top_bit = jnp.uint32(1 << 31)
    order = jnp.where(bits >= top_bit, ~bits, bits | top_bit)  # unsigned integers in the order of the floats

    def lower_bit(i: Array, lowest: Array) -> Array:
        raised = lowest | (top_bit >> i.astype(jnp.uint32))
        enough = jnp.sum(jnp.where(order >= raised, weights, 0), axis=-1, keepdims=True) >= target
        return jnp.where(enough, raised, lowest)

    lowest = lax.fori_loop(0, 32, lower_bit, jnp.zeros((scores.shape[0], 1), jnp.uint32))
    above = jnp.sum(jnp.where(order > lowest, weights, 0), axis=-1, keepdims=True)
    tied = order == lowest
    before = jnp.cumsum(tied, axis=-1) - tied
    return (order > lowest) | (tied & (above + before * weights < target))
