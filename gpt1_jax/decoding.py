"""Generation as one compiled loop over what is cached of the tokens read; `sampling` prepares what it takes.

Shapes: B rows, T slots of the token buffer, S slots of the cache, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int, Key

from gpt1_jax.caches import Cache, empty_cache
from gpt1_jax.drawing import draw
from gpt1_jax.model import GPT1, apply
from gpt1_jax.precision import cast_matrices, matmul_precision

PIECE = 32
"""Tokens of each prompt that are read at a time: the prompts' length compiles nothing."""

_ANY = -1  # in a stop sequence: matches every token


class Rows(flax.struct.PyTreeNode):
    """The sequences as the loop carries them.

    Attributes:
      tokens: int32 [B, T], T a multiple of `PIECE`.
      length: int32 [B], tokens known so far; a row is active while length < limit.
      limit: int32 [B]; lowered to `length` when a stop sequence ends the row.
      dropped: int32 [B], tokens of the prompt before tokens[:, 0].
    """

    tokens: Int[Array, "B T"]
    length: Int[Array, " B"]
    limit: Int[Array, " B"]
    dropped: Int[Array, " B"]

    @property
    def active(self) -> Bool[Array, " B"]:
        """Which rows still want tokens: bool [B]."""
        return self.length < self.limit


class _Reading(flax.struct.PyTreeNode):
    """The rows and what is cached of them: all tokens of a row's window but the newest."""

    rows: Rows
    cache: Cache


@functools.partial(jax.jit, static_argnames=("model", "stride"))
def run(
    model: GPT1,
    params: Mapping[str, Any],
    rows: Rows,
    stops: Int[Array, "N M"],
    key: Key[Array, ""],
    temperature: Float32[Array, ""],
    top_k: Int[Array, ""],
    top_p: Float32[Array, ""],
    *,
    stride: int,
) -> Rows:
    """Reads the prompts, then adds tokens until no row is active.

    Args:
      model: any GPT1.
      params: its parameters; matrices are cast to the compute dtype once.
      rows: the prompts.
      stops: int32 [N, M], see `pad_left`.
      key: random key of the call.
      temperature: as in `draw`.
      top_k: likewise.
      top_p: likewise.
      stride: tokens by which a full window moves.

    Returns:
      the rows with the new tokens.
    """
    config = model.config
    n_rows, n_slots = rows.tokens.shape
    n_kept = config.n_ctx - stride
    prompt_end = rows.length
    row_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n_rows))
    params = cast_matrices(params, config.dtype)
    table = apply(model, params, GPT1.output_table)

    def decode(tokens: Array, cache: Cache, lengths: Array | None = None) -> tuple[Array, Cache]:
        return apply(model, params, lambda m: m.decode(tokens, cache, lengths))

    def next_logits(h: Array) -> Array:
        """[B, D] -> float32 [B, V]; with the table first, which is how a CPU multiplies few rows the fastest."""
        logits = jnp.einsum("rd,bd->rb", table, h, precision=matmul_precision(h.dtype))
        return logits[: config.vocab_size].T.astype(jnp.float32)

    def step(reading: _Reading) -> _Reading:
        """Reads the newest token of every row and draws the next one."""
        s = reading.rows
        newest = jnp.take_along_axis(s.tokens, s.length[:, None] - 1, axis=1)
        h, cache = decode(newest, reading.cache, s.active.astype(jnp.int32))
        keys = jax.vmap(jax.random.fold_in)(row_keys, s.dropped + s.length)
        drawn = draw(next_logits(h[:, 0]), keys, temperature, top_k, top_p)
        at = jnp.where(s.active, s.length, n_slots)
        tokens = s.tokens.at[jnp.arange(n_rows), at].set(drawn, mode="drop")
        length = s.length + s.active
        stopped = s.active & _ends_with(tokens, prompt_end, length, stops)
        return _Reading(
            s.replace(tokens=tokens, length=length, limit=jnp.where(stopped, length, s.limit)),
            cache,
        )

    def full(reading: _Reading) -> Array:
        return reading.rows.active & (reading.cache.length == config.n_ctx)

    def slide(reading: _Reading) -> _Reading:
        """Moves the window of one full row: the newest token is read by the next step, those before it here.

        One row at a time, so that rows that fill up at different times cost nothing to each other.
        """
        row = jnp.argmax(full(reading))
        s, cache = reading.rows, reading.cache
        if not n_kept:
            return reading.replace(cache=cache.replace(length=cache.length.at[row].set(0)))
        window = lax.dynamic_slice(s.tokens, (row, s.length[row] - 1 - n_kept), (1, n_kept))
        _, read = decode(window, empty_cache(config, 1, n_kept))
        return reading.replace(cache=cache.with_row(row, read))

    def until_full(reading: _Reading) -> _Reading:
        reading = lax.while_loop(lambda r: full(r).any(), slide, reading)
        return lax.while_loop(lambda r: r.rows.active.any() & ~full(r).any(), step, reading)

    def read_piece(i: Array, cache: Cache) -> Cache:
        piece = lax.dynamic_slice_in_dim(rows.tokens, i * PIECE, PIECE, axis=1)
        return decode(piece, cache, jnp.clip(rows.length - 1 - i * PIECE, 0, PIECE))[1]

    # All but the last token of every prompt.
    n_pieces = (rows.length.max() - 1 + PIECE - 1) // PIECE
    empty = empty_cache(config, n_rows, min(n_slots, -(-config.n_ctx // PIECE) * PIECE))
    cache = lax.fori_loop(0, n_pieces, read_piece, empty)
    reading = _Reading(rows, cache)
    body = until_full if n_slots > config.n_ctx else step
    return lax.while_loop(lambda r: r.rows.active.any(), body, reading).rows


def _ends_with(
    tokens: Int[Array, "B T"], start: Int[Array, " B"], end: Int[Array, " B"], sequences: Int[Array, "N M"]
) -> Bool[Array, " B"]:
    """Whether tokens[b, start[b] : end[b]] ends with one of the sequences [N, M] (see `pad_left`): bool [B]."""
    at = end[:, None] + jnp.arange(-sequences.shape[1], 0)
    tail = jnp.take_along_axis(tokens, jnp.maximum(at, 0), axis=1)
    same = (tail[:, None] == sequences) & (at >= start[:, None])[:, None]
    return (same | (sequences == _ANY)).all(axis=-1).any(axis=-1)


def pad_left(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """The sequences as rows of one array int32 [N, M], filled up with `_ANY` on the left."""
    width = max(map(len, sequences), default=1)
    return np.asarray([[_ANY] * (width - len(s)) + list(s) for s in sequences], np.int32).reshape(-1, width)
