"""What generation remembers of the tokens that it has read, so that each is read once.

Shapes: B batch, H heads, S slots, U lstm_units.
"""

from __future__ import annotations

import flax.struct
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Float32, Int

from gpt1_jax.lstm import zero_state
from gpt1_jax.model_config import GPT1Config


class KVCache(flax.struct.PyTreeNode):
    """Keys and values of the tokens seen so far.

    Attributes:
      keys: one [B, H, S, head_dim] per layer; row b holds its token t at slot t. Heads come before slots because the
        products over the cache want them so: no step has to transpose the cache.
      values: likewise.
      length: int32 [B], tokens held by each row; slots from there on are free.
    """

    keys: tuple[Float[Array, "B H S head_dim"], ...]
    values: tuple[Float[Array, "B H S head_dim"], ...]
    length: Int[Array, " B"]

    @classmethod
    def empty(cls, config: GPT1Config, batch_size: int, n_slots: int | None = None) -> KVCache:
        """A cache of `n_slots` (default: n_ctx) free slots for each of `batch_size` rows."""
        shape = (batch_size, config.n_head, n_slots or config.n_ctx, config.head_dim)
        layers = tuple(jnp.zeros(shape, config.dtype) for _ in range(config.n_layer))
        return cls(keys=layers, values=layers, length=jnp.zeros((batch_size,), jnp.int32))

    def with_row(self, row: Int[Array, ""], other: Cache) -> KVCache:
        """The same with one row taken from a cache of one row, of no more slots."""
        assert isinstance(other, KVCache), "all caches of a model are of one kind"

        def put(layers: tuple[Array, ...], new: tuple[Array, ...]) -> tuple[Array, ...]:
            pairs = zip(layers, new, strict=True)
            return tuple(lax.dynamic_update_slice(old, new, (row, 0, 0, 0)) for old, new in pairs)

        length = self.length.at[row].set(other.length[0])
        return KVCache(put(self.keys, other.keys), put(self.values, other.values), length)


class LSTMCache(flax.struct.PyTreeNode):
    """The state of an LSTM after the tokens seen so far. It takes the same space for any number of them.

    Attributes:
      c: float32 [B, U].
      h: float32 [B, U].
      length: int32 [B], tokens read by each row. Where it is 0, c and h count as zero, whatever they are.
    """

    c: Float32[Array, "B U"]
    h: Float32[Array, "B U"]
    length: Int[Array, " B"]

    @classmethod
    def empty(cls, config: GPT1Config, batch_size: int) -> LSTMCache:
        """The cache of `batch_size` rows that have read nothing."""
        c, h = zero_state(config, batch_size)
        return cls(c, h, jnp.zeros((batch_size,), jnp.int32))

    @property
    def state(self) -> tuple[Float32[Array, "B U"], Float32[Array, "B U"]]:
        """C and h of every row."""
        begun = (self.length > 0)[:, None]
        return jnp.where(begun, self.c, 0.0), jnp.where(begun, self.h, 0.0)

    def with_row(self, row: Int[Array, ""], other: Cache) -> LSTMCache:
        """The same with one row taken from a cache of one row."""
        assert isinstance(other, LSTMCache), "all caches of a model are of one kind"
        c, h = self.c.at[row].set(other.c[0]), self.h.at[row].set(other.h[0])
        return LSTMCache(c, h, self.length.at[row].set(other.length[0]))


Cache = KVCache | LSTMCache


def empty_cache(config: GPT1Config, batch_size: int, n_slots: int | None = None) -> Cache:
    """What a model of this config remembers of no token; `n_slots` (default: n_ctx) of keys and values."""
    if config.trunk == "lstm":
        return LSTMCache.empty(config, batch_size)
    return KVCache.empty(config, batch_size, n_slots)
