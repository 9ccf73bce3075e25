"""The block of GPT-1: attention and MLP, each added to its input and followed by a LayerNorm.

    n = LayerNorm(x + attention(x));   h = LayerNorm(n + mlp(n))

Shapes: B batch, L length, D n_embd, H heads.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int

from gpt1_jax.attention import self_attention, split_heads
from gpt1_jax.dropout import dropout_site
from gpt1_jax.kernels.cached import LayerCache, cached_attention
from gpt1_jax.kernels.xla import attention_probabilities, visible
from gpt1_jax.model_config import ACTIVATIONS, REMAT_POLICIES, GPT1Config
from gpt1_jax.precision import add_bias, matmul_precision
from gpt1_jax.products import alone_on_cpu, layer_product
from gpt1_jax.sharding import constrain

INIT_STD = 0.02
"""Of the normal distribution that matrices are drawn from."""


def _normal(*axes: str | None) -> nn.initializers.Initializer:
    return nn.with_logical_partitioning(nn.initializers.normal(INIT_STD), axes)


def _zeros(*axes: str | None) -> nn.initializers.Initializer:
    return nn.with_logical_partitioning(nn.initializers.zeros_init(), axes)


def _ones(*axes: str | None) -> nn.initializers.Initializer:
    return nn.with_logical_partitioning(nn.initializers.ones_init(), axes)


def linear(
    config: GPT1Config,
    features: int,
    axes: tuple[str | None, str | None],
    *,
    init: nn.initializers.Initializer = nn.initializers.normal(INIT_STD),  # noqa: B008  (a pure function)
    **kwargs: Any,
) -> nn.Module:
    """A linear layer; `axes` are the logical names of its kernel's, and `init` draws it."""
    dtype = jnp.dtype(config.dtype)
    return nn.Dense(
        features,
        dtype=dtype,
        kernel_init=nn.with_logical_partitioning(init, axes),
        bias_init=_zeros(axes[1]),
        precision=matmul_precision(dtype),
        dot_general=layer_product,
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


class Context(flax.struct.PyTreeNode):
    """What every layer of one call shares.

    Attributes:
      rows: int32 [B], global row of the batch (see dropout.py).
      kv_mask: bool [B, L], False where a token is padding, or None.
      start: int32 [B], the cache slot of each row's first token, or None without a cache.
      deterministic: True switches dropout off.
    """

    rows: Int[Array, " B"]
    kv_mask: Bool[Array, "B L"] | None
    start: Int[Array, " B"] | None
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
    def __call__(self, x: Float[Array, "B L n_in"]) -> tuple[Float[Array, "B ..."], Float32[Array, "... n_out"]]:
        """[B, L, D] -> [B, 3, L, H * head_dim], or [B, L, H * head_dim] -> [B, L, D]; and the bias beside it."""
        at, dtype = self.axes.index("heads"), jnp.dtype(self.config.dtype)
        n_in = 1 if at else 2
        kernel = self.param("kernel", _normal(*self.axes), self.shape)
        bias = self.param("bias", _zeros(*self.axes[n_in:]), self.shape[n_in:])
        joined = (*self.shape[:at], -1, *self.shape[at + 2 :])
        kernel = jnp.asarray(kernel, dtype).reshape(joined)
        precision = matmul_precision(dtype)
        if alone_on_cpu():
            product = layer_product(x, kernel, precision=precision)
            product = product.swapaxes(1, 2) if at else product
        else:
            product = jnp.einsum(self.contraction, x, kernel, precision=precision)
        return product, bias.reshape(*joined[1:-1], 1, joined[-1])


class Attention(nn.Module):
    """Multi-head causal self-attention with its output projection and residual dropout."""

    config: GPT1Config

    def setup(self) -> None:
        """One fused projection for q, k and v, stored [D, 3, H, head_dim] so that heads shard whole."""
        c = self.config
        heads = (c.n_head, c.head_dim)
        self.c_attn = _HeadsLinear(c, (c.n_embd, 3, *heads), ("embed", None, "heads", None), "bld,dpe->bple")
        self.c_proj = _HeadsLinear(c, (*heads, c.n_embd), ("heads", None, "embed"), "ble,ed->bld")

    def __call__(
        self, x_BxLxD: Float[Array, "B L D"], context: Context, layer_cache: LayerCache | None = None
    ) -> tuple[Float[Array, "B L D"], LayerCache | None]:
        """Returns the branch's output [B, L, D] and the updated (keys, values) of the layer, if there is a cache."""
        c = self.config
        product, bias = self.c_attn(x_BxLxD)
        product = constrain(product, "batch", None, None, "heads")
        if layer_cache is not None:
            assert context.start is not None, "a cache is written from some slot on"
            q, k, v = split_heads(product, bias, c.n_head)
            a, layer_cache = cached_attention(q, k, v, layer_cache, context.start)
            a = a.reshape(x_BxLxD.shape)
        else:
            if self.is_mutable_collection("intermediates"):
                q, k, _ = split_heads(product, bias, c.n_head)
                mask = visible(None, k.shape[1], context.kv_mask)
                self.sow("intermediates", "probabilities", attention_probabilities(q, k, mask))
            dropout = dropout_site(self, "attn_probs", c.attn_pdrop, context.rows, context.deterministic)
            a = self_attention(product, bias, c.n_head, kv_mask=context.kv_mask, dropout=dropout, kernel=c.attention)
        a = add_bias(*self.c_proj(a))
        resid = dropout_site(self, "resid", c.resid_pdrop, context.rows, context.deterministic)
        return (a if resid is None else resid(a)), layer_cache


class MLP(nn.Module):
    """Position-wise feed-forward branch of width 4 D, with its residual dropout."""

    config: GPT1Config

    def setup(self) -> None:
        """Two linear layers."""
        self.c_fc = linear(self.config, 4 * self.config.n_embd, ("embed", "mlp"))
        self.c_proj = linear(self.config, self.config.n_embd, ("mlp", "embed"))

    def __call__(self, x_BxLxD: Float[Array, "B L D"], context: Context) -> Float[Array, "B L D"]:
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
        self, x_BxLxD: Float[Array, "B L D"], context: Context, layer_cache: LayerCache | None = None
    ) -> tuple[Float[Array, "B L D"], LayerCache | None]:
        """Returns the block's output [B, L, D] and the layer's updated cache."""
        a, layer_cache = self.attn(x_BxLxD, context, layer_cache)
        n = self.ln_1(x_BxLxD + a)
        h = self.ln_2(n + self.mlp(n, context))
        return constrain(h, "batch", None, None), layer_cache


def make_block(config: GPT1Config, **kwargs: Any) -> nn.Module:
    """A `Block`, whose backward pass recomputes what `config.remat` says."""
    if config.remat == "none":
        return Block(config, **kwargs)
    return nn.remat(Block, policy=REMAT_POLICIES[config.remat], prevent_cse=True)(config, **kwargs)
