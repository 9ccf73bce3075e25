"""Tiles of sequences in the registers of a GPU: how they are cut, read and written, and what is done to each."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from gpt1_jax.dropout import element_bits, keep_threshold
from gpt1_jax.kernels.sharded import Words
from gpt1_jax.precision import matmul_precision

try:
    from jax.experimental.pallas import triton

    AVAILABLE = True
except ImportError:  # announced with JAX 0.11 for some later one
    AVAILABLE = False


def dot(a: Array, b: Array) -> Array:
    """The matrix product, summed in float32. Of float32 it is exact, too, and not TF32."""
    return triton.dot(a, b, precision=matmul_precision(a.dtype))


def line(x: Array, axis: int) -> Array:
    """One number of each row (axis 0) or column (axis 1) of a tile."""
    return x[:, None] if axis == 0 else x[None, :]


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How sequences are cut: rows `block * i` to `block * (i + 1)` of arrays [length, head_dim], zeros beyond both.

    The sizes follow from the registers that the assembler counts for A100 and H100, 255 to a thread at most: with 64 x
    64 and 4 warps two programs share a multiprocessor in the backward pass and three in the forward pass, and next to
    nothing is spilled; larger tiles spill. Float32 goes without tensor cores, which takes more of them. None of it was
    measured on a card.

    Attributes:
      length: L.
      head_dim: of q, k and v.
      dtype: likewise.
      rate: of dropout; 0 for none.
      interpret: run as plain JAX, on a CPU.
    """

    length: int
    head_dim: int
    dtype: Any
    rate: float
    interpret: bool

    @property
    def block(self) -> int:
        """Rows of a tile: a power of two, and at least the 16 that a tensor core takes."""
        return min(64 if self.dtype == jnp.bfloat16 else 32, max(16, pl.next_power_of_2(self.length)))

    @property
    def n_blocks(self) -> int:
        return pl.cdiv(self.length, self.block)

    @property
    def width(self) -> int:
        """Columns of a tile, likewise."""
        return max(16, pl.next_power_of_2(self.head_dim))

    @property
    def scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return self.head_dim**-0.5

    @property
    def n_warps(self) -> int:
        """Of 32 threads each, over which the tiles of a program are spread."""
        return 4 if self.dtype == jnp.bfloat16 and self.width <= 64 else 8

    @property
    def compiler_params(self) -> Any:
        """What Triton is told; by this type it is asked for."""
        return triton.CompilerParams(num_warps=self.n_warps, num_stages=2)

    def index(self, i: Any) -> Array:
        """[block]: the rows of tile i."""
        return i * self.block + jnp.arange(self.block)

    def _inside(self, i: Any) -> Array | None:
        """[block, width]: what there is of tile i; None: all of it, for which memory is read in larger pieces."""
        inside = None
        if self.length % self.block:
            inside = (self.index(i) < self.length)[:, None]
        if self.width != self.head_dim:
            columns = (jnp.arange(self.width) < self.head_dim)[None, :]
            inside = columns if inside is None else inside & columns
        return inside

    def load(self, ref: Any, i: Any) -> Array:
        """[block, width]: tile i of [length, head_dim]."""
        inside = self._inside(i)
        other = None if inside is None else 0
        return triton.load(ref.at[pl.ds(i * self.block, self.block), :], mask=inside, other=other)

    def store(self, ref: Any, i: Any, x: Array, *part: int) -> None:
        """Writes tile i, rounded to the array's dtype; `part` where it has parts, [length, parts, head_dim]."""
        tile = ref.at[pl.ds(i * self.block, self.block), *map(jnp.int32, part), :]
        triton.store(tile, x.astype(ref.dtype), mask=self._inside(i))

    def load_line(self, ref: Any, i: Any, other: Any) -> Array:
        """[block]: one number of each row of tile i; `other` beyond the end."""
        inside = self.index(i) < self.length if self.length % self.block else None
        other = None if inside is None else other
        return triton.load(ref.at[pl.ds(i * self.block, self.block)], mask=inside, other=other)

    def store_line(self, ref: Any, i: Any, x: Array) -> None:
        """Likewise."""
        inside = self.index(i) < self.length if self.length % self.block else None
        triton.store(ref.at[pl.ds(i * self.block, self.block)], x, mask=inside)

    def exp(self, scores: Array) -> Array:
        """The exponential of `scale` times q k^T, by the one instruction that there is for it.

        The library's function spends three more on results below 2^-126, which are zero here.
        """
        bits = scores * (self.scale * math.log2(math.e))
        if self.interpret:
            return jnp.exp2(bits)
        shape = jax.ShapeDtypeStruct(bits.shape, bits.dtype)
        instruction, registers = "ex2.approx.ftz.f32 $0, $1;", "=f,f"
        return triton.elementwise_inline_asm(
            instruction, args=[bits], constraints=registers, pack=1, result_shape_dtypes=[shape]
        )[0]

    def load_words(self, refs: Any, i: Any) -> Words | None:
        """Those of dropout, of each row of tile i."""
        if refs is None:
            return None
        first, second = (self.load_line(ref, i, 0) for ref in refs)
        return first, second

    def seen(self, queries: Any, keys: Any, seen_ref: Any, diagonal: bool, axis: int) -> Array | bool:
        """Which keys of a tile the queries see; True: all. The queries lie along `axis` of the tile."""
        seen: Array | bool = True
        if diagonal:  # the tiles before it are seen whole, and those after it are not visited
            seen = line(self.index(queries), axis) >= line(self.index(keys), 1 - axis)
        if seen_ref is not None:
            seen &= line(self.load_line(seen_ref, keys, False), 1 - axis)
        return seen

    def kept(self, words: Words | None, keys: Any, x: Array, axis: int) -> Array:
        """A tile with zeros for dropped probabilities; `words` are those of the queries, which lie along `axis`."""
        if words is None:
            return x
        first, second = (line(word, axis) for word in words)
        columns = line(self.index(keys).astype(jnp.uint32), 1 - axis)
        return jnp.where(element_bits(first, second, columns) < keep_threshold(self.rate), x, 0.0)
