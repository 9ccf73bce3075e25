"""GPT-1 as in the paper (section 3) and in its official code: post-LayerNorm blocks, tied head, task head W_y.

    h_0 = W_e[token] + W_p[position]
    n   = LayerNorm(h_l + attention(h_l));   h_{l+1} = LayerNorm(n + mlp(n)),   l = 0 .. n_layer - 1
    P(next token) = softmax(h_n W_e^T)                     P(label) = softmax(h_n[extract] W_y)

With `trunk="lstm"` an LSTM stands in place of the blocks (lstm.py); all else is the same.

Shapes: B batch, C streams of one example, L length, D n_embd, V vocabulary, R table rows.
`python -m gpt1_jax.model` prints the parameters of the paper's model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32, Int, Shaped

from gpt1_jax.block import INIT_STD, Context, linear, make_block
from gpt1_jax.caches import Cache, KVCache, LSTMCache
from gpt1_jax.dropout import Dropout, dropout_site
from gpt1_jax.errors import InputError
from gpt1_jax.lstm import LSTM
from gpt1_jax.model_config import N_SPECIAL, GPT1Config, ReadOut
from gpt1_jax.precision import matmul_precision
from gpt1_jax.sharding import constrain, look_up

__all__ = ["GPT1", "GPT1Config", "KVCache", "ReadOut", "apply", "count_parameters", "param_shapes"]

T = TypeVar("T")


class GPT1(nn.Module):
    """The language model, and with a `readout` the fine-tuned model: the same parameters and W_y.

    `init` returns plain arrays; sharding.py reads the logical axis names of the parameters through
    `init_partitioned`. Calling the model gives LM logits.
    """

    config: GPT1Config
    readout: ReadOut | None = None

    def setup(self) -> None:
        """Tied token table, position table, blocks or LSTM and, with a readout, the task head."""
        c = self.config
        if self.readout is not None and self.readout.read_at == "extract" and c.n_special != N_SPECIAL:
            raise InputError(
                f"n_special={c.n_special}: a model with a task head needs n_special={N_SPECIAL}, or read_at='last' in "
                f"its readout"
            )
        self.tokens_embed = Embedding(c.padded_rows, c.n_rows, c.n_embd, "vocab")
        self.positions_embed = Embedding(c.n_ctx, c.n_ctx, c.n_embd, None)
        if c.trunk == "lstm":
            self.lstm = LSTM(c)
        else:
            self.h = [make_block(c) for _ in range(c.n_layer)]
        if self.readout is not None:
            self.clf = linear(c, self.readout.n_outputs, ("embed", None), use_bias=c.clf_bias)

    @property
    def task_readout(self) -> ReadOut:
        """The readout of a model that has one.

        Raises:
          InputError: it has none.
        """
        if self.readout is None:
            raise InputError("this model has no task head; build it as GPT1(config, readout=ReadOut(...))")
        return self.readout

    def __call__(
        self,
        tokens: Int[Array, "B L"],
        *,
        positions: Int[Array, "#B L"] | None = None,
        attention_mask: Shaped[Array, "B L"] | None = None,
        rows: Int[Array, " B"] | None = None,
        deterministic: bool = True,
    ) -> Float32[Array, "B L n_logits"]:
        """LM logits of every position (paper, equation 2).

        Args:
          tokens: int32 [B, L], L <= n_ctx.
          positions: int32 [B, L]; default counts the real tokens of each row, so that padding on either side changes
            nothing.
          attention_mask: bool [B, L], False where a token is padding.
          rows: int32 [B], global rows of the batch, for dropout; default 0..B-1.
          deterministic: False switches dropout on; needs the random stream "dropout".

        Returns:
          float32 [B, L, vocab_size + n_special], and n_ctx more with `softmax_over_positions`.

        Raises:
          InputError: L is longer than n_ctx.
        """
        h, table = self.features(
            tokens, positions=positions, attention_mask=attention_mask, rows=rows, deterministic=deterministic
        )
        if self.is_initializing() and self.readout is not None:
            self.clf(h[:, 0])
        return self.lm_logits(h, table)

    def features(
        self,
        tokens: Int[Array, "B L"],
        *,
        positions: Int[Array, "#B L"] | None = None,
        attention_mask: Shaped[Array, "B L"] | None = None,
        rows: Int[Array, " B"] | None = None,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B L D"], Float[Array, "R D"]]:
        """The top hidden states [B, L, D] and the table [R, D] that the LM head multiplies them with.

        Both come from one call because dropout on the table itself (`embedding_dropout="table"`) has to reach both.
        Arguments as in `__call__`.
        """
        n_tokens = tokens.shape[1]
        self._check_length(n_tokens)
        if attention_mask is not None:
            attention_mask = attention_mask.astype(bool)
        if positions is None:
            if attention_mask is None:
                positions = jnp.arange(n_tokens)[None, :]
            else:
                positions = jnp.maximum(jnp.cumsum(attention_mask, axis=1) - 1, 0)
        context = Context(
            rows=jnp.arange(tokens.shape[0]) if rows is None else rows,
            kv_mask=attention_mask,
            start=None,
            deterministic=deterministic,
        )
        x, table = self._embed(tokens, positions, context)
        return self._trunk(x, context), table

    def decode(
        self, tokens: Int[Array, "B L"], cache: Cache, lengths: Int[Array, " B"] | None = None
    ) -> tuple[Float[Array, "B L D"], Cache]:
        """Appends tokens to the cache: hidden states [B, L, D] of the new tokens, and the cache that holds them.

        Args:
          tokens: int32 [B, L]; token i of row b goes to position and slot `cache.length[b] + i`.
          cache: what is remembered of the tokens before, see `caches.empty_cache`; there must be room for L more.
          lengths: int32 [B], how many of a row's tokens are real; the padding after them is never seen. Default: all.

        Returns:
          hidden states [B, L, D], those of padding without meaning, and the cache, its `length` higher by `lengths`.
        """
        n_tokens = tokens.shape[1]
        offsets = jnp.arange(n_tokens)[None, :]
        slots = cache.length[:, None] + offsets
        context = Context(
            rows=jnp.arange(tokens.shape[0]),
            kv_mask=None if lengths is None else offsets < lengths[:, None],
            start=cache.length,
            deterministic=True,
        )
        # Padding may reach past the last position; its hidden states are never read.
        x, _ = self._embed(tokens, jnp.minimum(slots, self.config.n_ctx - 1), context)
        length = cache.length + (n_tokens if lengths is None else lengths)
        if isinstance(cache, LSTMCache):
            x, (c, h) = self.lstm(x, context, cache.state)
            return x, LSTMCache(c, h, length)
        keys, values = [], []
        for block, k, v in zip(self.h, cache.keys, cache.values, strict=True):
            x, (k, v) = block(x, context, (k, v))
            keys.append(k)
            values.append(v)
        return x, KVCache(tuple(keys), tuple(values), length)

    def output_table(self) -> Float[Array, "R D"]:
        """The table [R, D] of the LM head without dropout, in the compute dtype."""
        return self._output_table(self._tables()[0], self.positions_embed())

    def lm_logits(
        self, h: Float[Array, "*batch D"], table: Float[Array, "R D"] | None = None
    ) -> Float32[Array, "*batch n_logits"]:
        """H W_e^T over the rows that mean something: float32 [..., n_logits]."""
        table = self.output_table() if table is None else table
        logits = jnp.einsum("...d,rd->...r", h, table, precision=matmul_precision(h.dtype))
        return logits[..., : self.config.n_logits].astype(jnp.float32)

    def task_logits(
        self,
        h: Float[Array, "B C L D"],
        tokens: Int[Array, "B C L"],
        *,
        at: Int[Array, "B C"] | None = None,
        rows: Int[Array, " B"] | None = None,
        deterministic: bool = True,
    ) -> Float32[Array, "B n_outputs"]:
        """W_y at one token of every stream (paper, equations 3-4 and section 3.3).

        Args:
          h: [B, C, L, D], top hidden states.
          tokens: int32 [B, C, L].
          at: int32 [B, C], the token that is read; default the first extract token of a stream, position 0 where there
            is none, or with `read_at="last"` the last of the L tokens.
          rows: int32 [B], global rows of the examples, for dropout.
          deterministic: False switches dropout on. One mask serves all streams of an example.

        Returns:
          float32 [B, n_outputs]; for multiple choice [B, C], one per answer.
        """
        readout = self.task_readout
        rows = jnp.arange(tokens.shape[0]) if rows is None else rows
        if at is None and readout.read_at == "extract":
            at = jnp.argmax(tokens == self.config.extract_id, axis=-1)
        elif at is None:
            at = jnp.full(tokens.shape[:-1], tokens.shape[-1] - 1)
        h_BxCxD = jnp.take_along_axis(h, at[..., None, None], axis=2)[:, :, 0]
        if readout.kind == "similarity":
            h_BxCxD = h_BxCxD.sum(axis=1, keepdims=True)
        dropout = dropout_site(self, "clf", self.config.clf_pdrop, rows, deterministic)
        if dropout is not None:
            h_BxCxD = dropout(h_BxCxD, (h_BxCxD.shape[0], 1, h_BxCxD.shape[-1]))
        logits = self.clf(h_BxCxD).astype(jnp.float32)
        return logits[:, :, 0] if readout.kind == "multiple_choice" else logits[:, 0]

    def init(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.init`, with plain arrays: {"params": ...}."""
        return nn.unbox(super().init(rngs, *args, **kwargs))

    def init_partitioned(self, key: Array) -> Any:
        """The parameters in Flax's partitioning boxes, which carry the logical axis names.

        Traced once per model and process, since a run asks several times, and each time would trace all blocks.
        """
        return _init_partitioned(self, key)

    @nn.nowrap  # no level of its own among the names of the compiled program
    def _trunk(self, x_BxLxD: Float[Array, "B L D"], context: Context) -> Float[Array, "B L D"]:
        """All blocks, one after another, or the LSTM."""
        c = self.config
        if c.trunk == "lstm":
            return self.lstm(x_BxLxD, context)[0]
        if not c.scan_layers or c.n_layer == 0 or self.is_mutable_collection("intermediates") or self.is_initializing():
            for block in self.h:
                x_BxLxD, _ = block(x_BxLxD, context)
            return x_BxLxD
        layers = jax.tree.map(lambda *layer: jnp.stack(layer), *(block.variables for block in self.h))
        draws = not context.deterministic and self.has_rng("dropout")
        keys = jax.random.split(self.make_rng("dropout"), c.n_layer) if draws else None

        def run(x_BxLxD: Array, layer: tuple[Any, Array | None]) -> tuple[Array, None]:
            variables, key = layer
            rngs = {} if key is None else {"dropout": key}
            return make_block(c, parent=None).apply(variables, x_BxLxD, context, rngs=rngs)[0], None

        return jax.lax.scan(run, x_BxLxD, (layers, keys))[0]

    def _check_length(self, n_tokens: int) -> None:
        if n_tokens > self.config.n_ctx:
            raise InputError(
                f"tokens are {n_tokens} long, n_ctx={self.config.n_ctx}: the model has no position beyond; shorten the "
                f"input or use a sliding window"
            )

    def _tables(self) -> tuple[Array, Array]:
        dtype = jnp.dtype(self.config.dtype)
        # Cast once, for the look-up and for the head, so that their gradients are summed before they are reduced; and
        # gathered over the width, since rows sharded one way and width another cannot be looked up without a copy.
        tokens, positions = (jnp.asarray(table(), dtype) for table in (self.tokens_embed, self.positions_embed))
        return constrain(tokens, "vocab", None), positions

    def _embed(
        self, tokens: Int[Array, "B L"], positions: Int[Array, "#B L"], context: Context
    ) -> tuple[Float[Array, "B L D"], Float[Array, "R D"]]:
        """Summed embeddings [B, L, D] and the output table [R, D]."""
        c = self.config
        table, position_table = self._tables()
        site = dropout_site(self, "embd", c.embd_pdrop, context.rows, context.deterministic)
        if site is not None and c.embedding_dropout == "table":
            site = site if site.mask is not None else site.replace(rows=jnp.zeros((1,), jnp.int32))
            shape = (1, c.n_rows + c.n_ctx, c.n_embd)
            keep = jnp.broadcast_to(site.keep(shape), shape)[0]  # a given mask may lack the first axis
            kept_tokens = jnp.pad(keep[: c.n_rows], ((0, c.padded_rows - c.n_rows), (0, 0)))
            table = constrain(Dropout(site.rate, mask=kept_tokens)(table), "vocab", None)
            position_table = Dropout(site.rate, mask=keep[c.n_rows :])(position_table)
            site = None
        x = constrain(look_up(table, tokens) + position_table[positions], "batch", None, None)
        return (x if site is None else site(x)), self._output_table(table, position_table)

    def _output_table(self, table: Array, position_table: Array) -> Array:
        if not self.config.softmax_over_positions:
            return table
        return jnp.concatenate([table[: self.config.n_rows], position_table.astype(table.dtype)])


@functools.partial(jax.jit, static_argnums=0)
def _init_partitioned(model: GPT1, key: Array) -> Any:
    return nn.Module.init(model, key, jnp.zeros((1, 1), jnp.int32))["params"]


class Embedding(nn.Module):
    """A float32 table [n_rows, n_embd]; rows from `n_used` on are padding and stay zero."""

    n_rows: int
    n_used: int
    n_embd: int
    rows_axis: str | None

    @nn.compact
    def __call__(self) -> Float32[Array, "n_rows n_embd"]:
        """The whole table."""

        def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
            used = nn.initializers.normal(INIT_STD)(key, (self.n_used, shape[1]), dtype)
            return jnp.pad(used, ((0, shape[0] - self.n_used), (0, 0)))

        boxed: nn.initializers.Initializer = nn.with_logical_partitioning(init, (self.rows_axis, "embed"))
        return self.param("embedding", boxed, (self.n_rows, self.n_embd))


def apply(model: GPT1, params: Any, method: Callable[[GPT1], T], *, rngs: dict[str, Array] | None = None) -> T:
    """What `method` makes of the model with these parameters; `rngs` are its random streams, for dropout."""
    result: Any = model.apply({"params": params}, rngs=rngs, method=method)
    return result


def param_shapes(config: GPT1Config, readout: ReadOut | None = None) -> Any:
    """The parameters of `GPT1(config, readout)` as `jax.ShapeDtypeStruct`s: nothing is computed."""
    return nn.unbox(jax.eval_shape(GPT1(config, readout).init_partitioned, jax.random.key(0)))


def count_parameters(config: GPT1Config, readout: ReadOut | None = None) -> int:
    """Number of trainable parameters, padded rows of the token table not counted."""
    n_padding = (config.padded_rows - config.n_rows) * config.n_embd
    return sum(math.prod(x.shape) for x in jax.tree.leaves(param_shapes(config, readout))) - n_padding


def describe_model(config: GPT1Config, readout: ReadOut | None = None) -> str:
    """The network in a line: "2 layers, 4 heads, width 128, n_ctx 96, 4,096 tokens, 0.9 M parameters, float32"."""
    size = count_parameters(config, readout) / 1e6
    parts = [
        config.trunk_summary,
        f"width {config.n_embd}",
        f"n_ctx {config.n_ctx}",
        f"{config.vocab_size:,} tokens",
        f"{size:.1f} M parameters" if size >= 0.1 else f"{round(size * 1e6):,} parameters",
        config.dtype,
    ]
    if readout is not None:
        parts.append(f"head for {readout.kind.replace('_', ' ')}")
    return ", ".join(parts)


def main() -> None:
    """Prints the parameters of the paper's model."""
    config = GPT1Config()
    for path, x in jax.tree_util.tree_leaves_with_path(param_shapes(config)):
        print(f"{jax.tree_util.keystr(path, simple=True, separator='/'):40} {x.shape}")
    print(f"{count_parameters(config) / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
