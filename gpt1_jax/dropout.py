"""Dropout whose mask is a pure function of where an entry stands, not of how the batch is laid out.

A threefry or hardware generator draws a mask as one block: its bits depend on the shape of the block, cost as much as
attention itself and have to be kept for the backward pass. Here the keep/drop decision of an entry is a 32-bit hash of

    (key of the step and the site, global row of the batch, ..., index on the last axis)

so that every kernel, every sharding and any number of micro-batches drops the very same entries, and XLA computes the
bits inside the fusion that needs them instead of storing them. The hash has two stages: everything but the last axis
is folded into a pair of 32-bit words, and the last axis is hashed with both words, one before and one between the
rounds. (One linear index would wrap at 2^32 elements, and a single word combined by XOR or addition would give
permuted or shifted copies of one mask.)
"""

from __future__ import annotations

import math

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Int32, UInt32

MASKS = "dropout_masks"
"""The Flax collection from which a site takes its mask, where one is given, instead of drawing it."""

_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: spreads consecutive indices over the whole range


def _mix(x: Array, key: Array) -> Array:
    """A 32-bit bijective finaliser (two multiply / xor-shift rounds) with `key` XORed in between the rounds."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = (x ^ key) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def keep_mask(
    key_words: UInt32[Array, "2"], rows: Int[Array, " B"], shape: tuple[int, ...], rate: float
) -> Bool[Array, "B ..."]:
    """Which entries are kept.

    Args:
      key_words: uint32 [2], the key of the step and the site.
      rows: int32 [shape[0]], the global row of each leading index: row 3 of micro-batch 1 is still row 3 + its offset.
      shape: shape of the mask, at least two axes.
      rate: probability of dropping an entry, 0 <= rate < 1.

    Returns:
      bool `shape`, True where the entry is kept.
    """
    first, second = row_words(key_words, rows, shape[:-1])
    columns = jax.lax.broadcasted_iota(jnp.uint32, shape, len(shape) - 1)
    return element_bits(first[..., None], second[..., None], columns) < keep_threshold(rate)


def keep_threshold(rate: float) -> Int32[Array, ""]:
    """The int32 below which the bits of a kept entry lie: (1 - rate) * 2^32 - 2^31."""
    return jnp.int32(min(math.floor((1.0 - rate) * 2**32), 2**32 - 1) - 2**31)


def row_words(
    key_words: UInt32[Array, "2"], rows: Int[Array, " B"], shape: tuple[int, ...]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """First stage: folds row and middle axes (head, query position) into two uint32 words of `shape` each."""
    index = rows.astype(jnp.uint32).reshape((-1,) + (1,) * (len(shape) - 1))
    first = _mix(index * jnp.uint32(_GOLDEN) + key_words[0], key_words[1])
    for axis in range(1, len(shape)):
        index = jax.lax.broadcasted_iota(jnp.uint32, (1, *shape[1:]), axis)
        first = _mix(first + index * jnp.uint32(_GOLDEN), key_words[axis % 2])
    first = jnp.broadcast_to(first, shape)
    return first, _mix(first + jnp.uint32(_GOLDEN), key_words[0])


def element_bits(first: Array, second: Array, columns: Array) -> Array:
    """Second stage: 32 bits for each index of the last axis, from both words of its row, as int32.

    What `_mix` does less what a comparison does not see: its last step leaves the high half as it is, its first one
    brings disorder that `first` already has. With the signed comparison that every vector unit knows, the decision is
    seven operations an entry.
    """
    x = (columns * jnp.uint32(_GOLDEN) ^ first) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15) ^ second) * jnp.uint32(0x846CA68B)
    return x.astype(jnp.int32)


class Dropout(flax.struct.PyTreeNode):
    """What one dropout site needs: y = x * keep / (1 - rate).

    Either `key_words` and `rows` (the mask is drawn) or `mask` (it is given) is set.
    """

    rate: float = flax.struct.field(pytree_node=False)
    key_words: UInt32[Array, "2"] | None = None
    rows: Int[Array, " B"] | None = None
    mask: Bool[Array, "..."] | None = None

    def keep(self, shape: tuple[int, ...]) -> Bool[Array, "..."]:
        """The site's mask, bool, broadcastable to `shape`."""
        if self.mask is not None:
            return self.mask
        return keep_mask(*self._drawn_from(), shape, self.rate)

    def words(self, shape: tuple[int, ...]) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
        """`row_words` of a mask that is drawn."""
        return row_words(*self._drawn_from(), shape)

    def _drawn_from(self) -> tuple[Array, Array]:
        assert self.key_words is not None, "the mask is given"
        assert self.rows is not None
        return self.key_words, self.rows

    def __call__(self, x: Float[Array, "*axes"], shape: tuple[int, ...] | None = None) -> Float[Array, "*axes"]:
        """Drops entries of x; `shape` (default: x's own) is the mask's shape where it is shared along an axis."""
        keep = self.keep(shape or x.shape)
        # In float32: a rate of 0.1 would be 0.1016 in bfloat16.
        kept = (x.astype(jnp.float32) / (1.0 - self.rate)).astype(x.dtype)
        return jnp.where(keep, kept, jnp.zeros((), x.dtype))


def dropout_site(
    module: nn.Module, name: str, rate: float, rows: Int[Array, " B"], deterministic: bool
) -> Dropout | None:
    """The dropout site `name` of a Flax module, or None where nothing is dropped.

    Takes the mask from the collection `dropout_masks` (same path and name) where it is there, and otherwise a key from
    the random stream `dropout`.
    """
    if deterministic or rate == 0.0:
        return None
    if module.has_variable(MASKS, name):
        return Dropout(rate, mask=module.get_variable(MASKS, name))
    # The key of the site is as random as bits drawn from it would be, and each drawing is hundreds of instructions.
    key_words = jax.random.key_data(module.make_rng("dropout"))[:2]
    return Dropout(rate, key_words=key_words, rows=rows)
