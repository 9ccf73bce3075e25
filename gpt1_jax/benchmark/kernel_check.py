"""Every attention kernel of this device against plain JAX: values and gradients, with dropout and padding.

The reference is computed in float32 from the same inputs, with the same entries dropped. What is computed in bfloat16
may be as far from it as plain JAX in bfloat16 is, twice; float32 may differ by the order of its sums.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpt1_jax.attention import KERNELS, select_kernel, self_attention
from gpt1_jax.benchmark.settings import Settings
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.dropout import Dropout

LENGTHS = (64, 448, 512, 704)
DTYPES = ("float32", "bfloat16")
RATE = 0.1
FLOAT32_ERROR = 3e-5  # of sums of some hundred terms, and their exponentials, in another order
_BATCH, _HEADS, _HEAD_DIM = 2, 4, 64


@dataclasses.dataclass(frozen=True)
class Check:
    """A kernel on one shape.

    Attributes:
      kernel: its name in `attention.KERNELS`.
      interpreted: on a CPU, where no time would say anything.
      length: tokens of a row.
      dtype: of the projection of q, k and v.
      dropout: rate.
      padded: a part of the keys is padding.
      value_error: largest difference from the reference, over the reference's largest number.
      gradient_error: likewise, the larger of those of the projection and of its bias.
      allowed: how large both may be.
    """

    kernel: str
    interpreted: bool
    length: int
    dtype: str
    dropout: float
    padded: bool
    value_error: float
    gradient_error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether it computes the same; not where an error is no number."""
        return all(error <= self.allowed for error in (self.value_error, self.gradient_error))

    def line(self) -> str:
        """For people."""
        return (
            f"{self.kernel:5} {self.length:4} tokens  {self.dtype:8}  dropout {self.dropout:g}  "
            f"{'padded  ' if self.padded else 'unpadded'}  errors {self.value_error:.1e} {self.gradient_error:.1e}  "
            f"{'passed' if self.passed else 'FAILED'} (allowed {self.allowed:.1e})" + ", interpreted" * self.interpreted
        )


def checks(lengths: Sequence[int] = LENGTHS) -> Iterator[Check]:
    """All kernels but plain JAX; on a CPU those of other devices too, interpreted."""
    for name in _kernels_here():
        for length in lengths:
            for dtype in DTYPES:
                for rate, padded in ((0.0, False), (RATE, False), (RATE, True)):
                    yield _check(name, length, dtype, rate, padded)


def timed_kernels(settings: Settings, batch_size: int) -> dict[str, Callable[[], Contestant]]:
    """Forward and backward pass of a layer's attention by this device's kernel and by plain JAX."""
    best = select_kernel("auto", settings.model.n_ctx, settings.model.head_dim)
    return {name: functools.partial(_timed, settings, batch_size, name) for name in dict.fromkeys((best, "xla"))}


def _kernels_here() -> list[str]:
    if jax.default_backend() == "cpu":
        return [name for name in KERNELS if name != "xla"]
    best = select_kernel("auto", 1, _HEAD_DIM)
    return [best] if best != "xla" else []


def _check(name: str, length: int, dtype: str, rate: float, padded: bool) -> Check:
    inputs = _inputs(_BATCH, length, _HEADS * _HEAD_DIM, dtype)
    rounded = tuple(x.astype(jnp.float32) for x in inputs)
    lengths = jnp.asarray([length, length - length // 4])
    kv_mask = jnp.arange(length)[None, :] < lengths[:, None] if padded else None
    reference = _value_and_gradients("xla", _HEADS, rate, kv_mask)(*rounded)
    errors = _errors(_value_and_gradients(name, _HEADS, rate, kv_mask)(*inputs), reference)
    allowed = FLOAT32_ERROR
    if dtype != "float32":
        allowed = 2 * max(_errors(_value_and_gradients("xla", _HEADS, rate, kv_mask)(*inputs), reference))
    value_error, *gradient_errors = errors
    interpreted = jax.default_backend() == "cpu"
    return Check(name, interpreted, length, dtype, rate, padded, value_error, float(np.max(gradient_errors)), allowed)


def _inputs(n_rows: int, length: int, width: int, dtype: str) -> tuple[Array, Array, Array]:
    """The projection of q, k and v, its bias, and what comes back to the output."""
    keys = jax.random.split(jax.random.key(0), 3)
    product = jax.random.normal(keys[0], (n_rows, 3, length, width), dtype)
    bias = jax.random.normal(keys[1], (3, 1, width), jnp.float32)
    return product, bias, jax.random.normal(keys[2], (n_rows, length, width), dtype)


def _value_and_gradients(
    kernel: str, n_heads: int, rate: float, kv_mask: Array | None
) -> Callable[..., tuple[Array, ...]]:
    """As a layer calls it."""

    def run(product: Array, bias: Array, back: Array) -> tuple[Array, ...]:
        words = jnp.asarray([0x12345678, 0x9ABCDEF0], jnp.uint32)
        dropout = Dropout(rate, key_words=words, rows=jnp.arange(product.shape[0])) if rate else None
        attend = functools.partial(self_attention, n_heads=n_heads, kv_mask=kv_mask, dropout=dropout, kernel=kernel)
        value, pull = jax.vjp(attend, product, bias)
        return value, *pull(back)

    return jax.jit(run)


def _errors(found: Sequence[Array], reference: Sequence[Array]) -> list[float]:
    pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(found, reference, strict=True)]
    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs]


def _timed(settings: Settings, batch_size: int, name: str) -> Contestant:
    c = settings.model
    inputs = _inputs(batch_size, c.n_ctx, c.n_embd, c.dtype)
    run = _value_and_gradients(name, c.n_head, c.attn_pdrop, None)
    return Contestant(
        name,
        lambda: run(*inputs),
        amount=batch_size * c.n_ctx,
        flops=3.0 * 4.0 * batch_size * c.n_ctx**2 * c.n_embd,
        about=f"{c.dtype}, {c.n_head} heads of {c.head_dim}, dropout {c.attn_pdrop:g}, forward and backward",
    )
