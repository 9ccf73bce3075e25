"""GPT-1 as in the paper (section 3) and in its official code: post-LayerNorm blocks, tied head, task head W_y.

    h_0 = W_e[token] + W_p[position]
    n   = LayerNorm(h_l + attention(h_l));   h_{l+1} = LayerNorm(n + mlp(n)),   l = 0 .. n_layer - 1
    P(next token) = softmax(h_n W_e^T)                     P(label) = softmax(h_n[extract] W_y)

Shapes: B batch, C streams of one example, L length, S cache slots, D n_embd, H heads, V vocabulary, R table rows.
`python -m gpt1_jax.model` prints the parameters of the paper's model.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from gpt1_jax.attention import self_attention
from gpt1_jax.dropout import Dropout, dropout_site
from gpt1_jax.errors import InputError
from gpt1_jax.kernels.cached import cached_attention
from gpt1_jax.kernels.xla import attention_probabilities, visible
from gpt1_jax.model_config import ACTIVATIONS, N_SPECIAL, REMAT_POLICIES, GPT1Config, ReadOut
from gpt1_jax.precision import matmul_precision
from gpt1_jax.sharding import constrain, look_up

__all__ = ["GPT1", "GPT1Config", "KVCache", "ReadOut", "count_parameters", "param_shapes"]

INIT_STD = 0.02


@flax.struct.dataclass
class KVCache:
    """Keys and values of the tokens seen so far.

    Attributes:
      keys: one [B, H, S, head_dim] per layer; row b holds its token t at slot t. Heads come before slots because the
        products over the cache want them so: no step has to transpose the cache.
      values: likewise.
      length: int32 [B], tokens held by each row; slots from there on are free.
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    length: Array

    @classmethod
    def empty(cls, config: GPT1Config, batch_size: int, n_slots: int | None = None) -> KVCache:
        """A cache of `n_slots` (default: n_ctx) free slots for each of `batch_size` rows."""
        shape = (batch_size, config.n_head, n_slots or config.n_ctx, config.n_embd // config.n_head)
        layers = tuple(jnp.zeros(shape, config.dtype) for _ in range(config.n_layer))
        return cls(keys=layers, values=layers, length=jnp.zeros((batch_size,), jnp.int32))


def _normal(*axes: str | None) -> nn.initializers.Initializer:
    return nn.with_logical_partitioning(nn.initializers.normal(INIT_STD), axes)


def _zeros(*axes: str | None) -> nn.initializers.Initializer:
    return nn.with_logical_partitioning(nn.initializers.zeros_init(), axes)


def _ones(*axes: str | None) -> nn.initializers.Initializer:
    return nn.with_logical_partitioning(nn.initializers.ones_init(), axes)


def _linear(config: GPT1Config, features: Any, axes: tuple[str | None, ...], n_in: int = 1, **kwargs: Any) -> nn.Module:
    """A linear layer over the last `n_in` axes; `axes` are the logical names of its kernel's."""
    dtype = jnp.dtype(config.dtype)
    return nn.DenseGeneral(
        features,
        axis=tuple(range(-n_in, 0)),
        dtype=dtype,
        kernel_init=_normal(*axes),
        bias_init=_zeros(*axes[n_in:]),
        precision=matmul_precision(dtype),
        **kwargs,
    )


def _layer_norm(config: GPT1Config) -> nn.Module:
    # The plain two-pass variance: E[x^2] - E[x]^2 loses digits that the original keeps.
    return nn.LayerNorm(
        epsilon=1e-5,
        dtype=jnp.dtype(config.dtype),
        use_fast_variance=False,
        scale_init=_ones("embed"),
        bias_init=_zeros("embed"),
    )


@flax.struct.dataclass
class Context:
    """What every layer of one call shares.

    Attributes:
      rows: int32 [B], global row of the batch (see dropout.py).
      kv_mask: bool [B, L], False where a token is padding, or None.
      start: int32 [B], the cache slot of each row's first token, or None without a cache.
      deterministic: True switches dropout off.
    """

    rows: Array
    kv_mask: Array | None
    start: Array | None
    deterministic: bool = flax.struct.field(pytree_node=False)


class _HeadsLinear(nn.Module):
    """A linear layer whose parameters have an axis of heads and one of head_dim, and whose product has one for both.

    On a TPU an array [..., H, head_dim] of 12 x 64 lies in tiles of 8 x 128 or is transposed; either is copied before
    and after a kernel.

    Attributes:
      config: of the model.
      shape: of the stored kernel; "heads" among `axes` and the axis after it are the two.
      axes: their logical names.
      contraction: of the input and the kernel [D, 3, H * head_dim] or [H * head_dim, D].
    """

    config: GPT1Config
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    contraction: str

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """[B, L, D] -> [B, 3, L, H * head_dim], or [B, L, H * head_dim] -> [B, L, D]; and the bias beside it."""
        at, dtype = self.axes.index("heads"), jnp.dtype(self.config.dtype)
        n_in = 1 if at else 2
        kernel = self.param("kernel", _normal(*self.axes), self.shape)
        bias = self.param("bias", _zeros(*self.axes[n_in:]), self.shape[n_in:])
        joined = (*self.shape[:at], -1, *self.shape[at + 2 :])
        kernel = jnp.asarray(kernel, dtype).reshape(joined)
        product = jnp.einsum(self.contraction, x, kernel, precision=matmul_precision(dtype))
        return product, bias.reshape(*joined[1:-1], 1, joined[-1])


def _sum(product: Array, bias: Array) -> Array:
    """In float32, and so is the bias's gradient: a sum over all tokens in bfloat16 is slow on TPUs, and coarse."""
    return (product.astype(jnp.float32) + bias).astype(product.dtype)


class Attention(nn.Module):
    """Multi-head causal self-attention with its output projection and residual dropout."""

    config: GPT1Config

    def setup(self) -> None:
        """One fused projection for q, k and v, stored [D, 3, H, head_dim] so that heads shard whole."""
        c = self.config
        heads = (c.n_head, c.n_embd // c.n_head)
        self.c_attn = _HeadsLinear(c, (c.n_embd, 3, *heads), ("embed", None, "heads", None), "bld,dpe->bple")
        self.c_proj = _HeadsLinear(c, (*heads, c.n_embd), ("heads", None, "embed"), "ble,ed->bld")

    def __call__(
        self, x_BxLxD: Array, context: Context, layer_cache: tuple[Array, Array] | None = None
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """Returns the branch's output [B, L, D] and the updated (keys, values) of the layer, if there is a cache."""
        c = self.config
        product, bias = self.c_attn(x_BxLxD)
        product = constrain(product, "batch", None, None, "heads")
        heads = (*x_BxLxD.shape[:2], c.n_head, c.n_embd // c.n_head)
        q, k, v = (part.reshape(heads) for part in jnp.split(_sum(product, bias), 3, axis=1))
        if layer_cache is not None:
            a, layer_cache = cached_attention(q, k, v, layer_cache, context.start)
            a = a.reshape(x_BxLxD.shape)
        else:
            if self.is_mutable_collection("intermediates"):
                mask = visible(None, k.shape[1], context.kv_mask)
                self.sow("intermediates", "probabilities", attention_probabilities(q, k, mask))
            dropout = dropout_site(self, "attn_probs", c.attn_pdrop, context.rows, context.deterministic)
            a = self_attention(product, bias, c.n_head, kv_mask=context.kv_mask, dropout=dropout, kernel=c.attention)
        a = _sum(*self.c_proj(a))
        resid = dropout_site(self, "resid", c.resid_pdrop, context.rows, context.deterministic)
        return (a if resid is None else resid(a)), layer_cache


class MLP(nn.Module):
    """Position-wise feed-forward branch of width 4 D, with its residual dropout."""

    config: GPT1Config

    def setup(self) -> None:
        """Two linear layers."""
        self.c_fc = _linear(self.config, 4 * self.config.n_embd, ("embed", "mlp"))
        self.c_proj = _linear(self.config, self.config.n_embd, ("mlp", "embed"))

    def __call__(self, x_BxLxD: Array, context: Context) -> Array:
        """Returns the branch's output [B, L, D]."""
        h = constrain(self.c_fc(x_BxLxD), "batch", None, "mlp")
        m = self.c_proj(ACTIVATIONS[self.config.activation](h))
        resid = dropout_site(self, "resid", self.config.resid_pdrop, context.rows, context.deterministic)
        return m if resid is None else resid(m)


class Block(nn.Module):
    """One post-LayerNorm block: n = LN(x + attention(x)); LN(n + mlp(n))."""

    config: GPT1Config

    def setup(self) -> None:
        """Two branches, each followed by a LayerNorm."""
        self.attn = Attention(self.config)
        self.ln_1 = _layer_norm(self.config)
        self.mlp = MLP(self.config)
        self.ln_2 = _layer_norm(self.config)

    def __call__(
        self, x_BxLxD: Array, context: Context, layer_cache: tuple[Array, Array] | None = None
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """Returns the block's output [B, L, D] and the layer's updated cache."""
        a, layer_cache = self.attn(x_BxLxD, context, layer_cache)
        n = self.ln_1(x_BxLxD + a)
        h = self.ln_2(n + self.mlp(n, context))
        return constrain(h, "batch", None, None), layer_cache


def _block(config: GPT1Config, **kwargs: Any) -> nn.Module:
    if config.remat == "none":
        return Block(config, **kwargs)
    return nn.remat(Block, policy=REMAT_POLICIES[config.remat], prevent_cse=True)(config, **kwargs)


class GPT1(nn.Module):
    """The language model, and with a `readout` the fine-tuned model: the same parameters and W_y.

    `init` returns plain arrays; sharding.py reads the logical axis names of the parameters through
    `init_partitioned`. Calling the model gives LM logits.
    """

    config: GPT1Config
    readout: ReadOut | None = None

    def setup(self) -> None:
        """Tied token table, position table, blocks and, with a readout, the task head."""
        c = self.config
        if self.readout is not None and self.readout.read_at == "extract" and c.n_special != N_SPECIAL:
            raise InputError(
                f"n_special={c.n_special}: a model with a task head needs n_special={N_SPECIAL}, or read_at='last' in "
                f"its readout"
            )
        self.tokens_embed = Embedding(c.padded_rows, c.n_rows, c.n_embd, "vocab")
        self.positions_embed = Embedding(c.n_ctx, c.n_ctx, c.n_embd, None)
        self.h = [_block(c) for _ in range(c.n_layer)]
        if self.readout is not None:
            self.clf = _linear(c, self.readout.n_outputs, ("embed", None), use_bias=c.clf_bias)

    def __call__(
        self,
        tokens: Array,
        *,
        positions: Array | None = None,
        attention_mask: Array | None = None,
        rows: Array | None = None,
        deterministic: bool = True,
    ) -> Array:
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
        tokens: Array,
        *,
        positions: Array | None = None,
        attention_mask: Array | None = None,
        rows: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Array]:
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

    def decode(self, tokens: Array, cache: KVCache) -> tuple[Array, KVCache]:
        """Appends tokens to the cache: hidden states [B, L, D] of the new tokens, and the cache that holds them.

        Args:
          tokens: int32 [B, L]; token i of row b goes to position and slot `cache.length[b] + i`. A row shorter than L
            is padded on the right; its caller then sets `length` back, and the padding is never seen.
          cache: keys and values of the tokens before; there must be room for L more.

        Returns:
          hidden states [B, L, D] and the cache, `length` L higher.
        """
        n_tokens = tokens.shape[1]
        slots = cache.length[:, None] + jnp.arange(n_tokens)[None, :]
        context = Context(
            rows=jnp.arange(tokens.shape[0]),
            kv_mask=None,
            start=cache.length,
            deterministic=True,
        )
        # Padding may reach past the last position; its hidden states are never read.
        x, _ = self._embed(tokens, jnp.minimum(slots, self.config.n_ctx - 1), context)
        keys, values = [], []
        for block, k, v in zip(self.h, cache.keys, cache.values, strict=True):
            x, (k, v) = block(x, context, (k, v))
            keys.append(k)
            values.append(v)
        return x, KVCache(tuple(keys), tuple(values), cache.length + n_tokens)

    def output_table(self) -> Array:
        """The table [R, D] of the LM head without dropout, in the compute dtype."""
        return self._output_table(self._tables()[0], self.positions_embed())

    def lm_logits(self, h: Array, table: Array | None = None) -> Array:
        """H W_e^T over the rows that mean something: float32 [..., n_logits]."""
        table = self.output_table() if table is None else table
        logits = jnp.einsum("...d,rd->...r", h, table, precision=matmul_precision(h.dtype))
        return logits[..., : self.config.n_logits].astype(jnp.float32)

    def task_logits(
        self,
        h: Array,
        tokens: Array,
        *,
        at: Array | None = None,
        rows: Array | None = None,
        deterministic: bool = True,
    ) -> Array:
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
        if self.readout is None:
            raise InputError("this model has no task head; build it as GPT1(config, readout=ReadOut(...))")
        rows = jnp.arange(tokens.shape[0]) if rows is None else rows
        if at is None and self.readout.read_at == "extract":
            at = jnp.argmax(tokens == self.config.extract_id, axis=-1)
        elif at is None:
            at = jnp.full(tokens.shape[:-1], tokens.shape[-1] - 1)
        h_BxCxD = jnp.take_along_axis(h, at[..., None, None], axis=2)[:, :, 0]
        if self.readout.kind == "similarity":
            h_BxCxD = h_BxCxD.sum(axis=1, keepdims=True)
        dropout = dropout_site(self, "clf", self.config.clf_pdrop, rows, deterministic)
        if dropout is not None:
            h_BxCxD = dropout(h_BxCxD, (h_BxCxD.shape[0], 1, h_BxCxD.shape[-1]))
        logits = self.clf(h_BxCxD).astype(jnp.float32)
        return logits[:, :, 0] if self.readout.kind == "multiple_choice" else logits[:, 0]

    def init(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.init`, with plain arrays: {"params": ...}."""
        return nn.unbox(super().init(rngs, *args, **kwargs))

    def init_partitioned(self, key: Array) -> Any:
        """The parameters in Flax's partitioning boxes, which carry the logical axis names."""
        return super().init(key, jnp.zeros((1, 1), jnp.int32))["params"]

    @nn.nowrap  # no level of its own among the names of the compiled program
    def _trunk(self, x_BxLxD: Array, context: Context) -> Array:
        """All blocks, one after another."""
        c = self.config
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
            return _block(c, parent=None).apply(variables, x_BxLxD, context, rngs=rngs)[0], None

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

    def _embed(self, tokens: Array, positions: Array, context: Context) -> tuple[Array, Array]:
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


class Embedding(nn.Module):
    """A float32 table [n_rows, n_embd]; rows from `n_used` on are padding and stay zero."""

    n_rows: int
    n_used: int
    n_embd: int
    rows_axis: str | None

    @nn.compact
    def __call__(self) -> Array:
        """The whole table."""

        def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
            used = nn.initializers.normal(INIT_STD)(key, (self.n_used, shape[1]), dtype)
            return jnp.pad(used, ((0, shape[0] - self.n_used), (0, 0)))

        init = nn.with_logical_partitioning(init, (self.rows_axis, "embed"))
        return self.param("embedding", init, (self.n_rows, self.n_embd))


def param_shapes(config: GPT1Config, readout: ReadOut | None = None) -> Any:
    """The parameters of `GPT1(config, readout)` as `jax.ShapeDtypeStruct`s: nothing is computed."""
    return nn.unbox(jax.eval_shape(GPT1(config, readout).init_partitioned, jax.random.key(0)))


def count_parameters(config: GPT1Config, readout: ReadOut | None = None) -> int:
    """Number of trainable parameters, padded rows of the token table not counted."""
    n_padding = (config.padded_rows - config.n_rows) * config.n_embd
    return sum(math.prod(x.shape) for x in jax.tree.leaves(param_shapes(config, readout))) - n_padding


def main() -> None:
    """Prints the parameters of the paper's model."""
    config = GPT1Config()
    for path, x in jax.tree_util.tree_leaves_with_path(param_shapes(config)):
        print(f"{jax.tree_util.keystr(path, simple=True, separator='/'):40} {x.shape}")
    print(f"{count_parameters(config) / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
