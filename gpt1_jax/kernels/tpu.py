"""Causal attention with dropout inside for TPUs: Pallas kernels that never write the scores [L, L] to memory.

Everything lies as the projections leave it: q, k and v are parts of one array [B, 3, L, H * head_dim], o is
[B, L, H * head_dim], and a grid step works on a *group* of heads that fills 128 lanes (two heads of 64) of one row of
the batch (tpu_passes.py):

    forward    S = K Q^T / sqrt(head_dim),  P = exp(S - lse),  O^T = V^T (P * keep) / (1 - rate)
    backward   dP = V dO^T * keep / (1 - rate),  dS = P * (dP - rowsum(dO * O))
               dV = (P * keep) dO / (1 - rate),  dK = dS Q,  dQ^T = K^T dS            (Q, K: with the scale)

The mask is the one of dropout.py: the words of every row are made outside, on global indices, and handed in.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Bool, Float, Float32, Int

from gpt1_jax.dropout import Dropout
from gpt1_jax.kernels.sharded import Words, divided, platform
from gpt1_jax.kernels.tpu_passes import LANES, Plan, backward_pass, forward_pass, round_up
from gpt1_jax.kernels.work import Work
from gpt1_jax.precision import add_bias

MAX_TOKENS = 1024
"""Of a row; of longer ones a group no longer fits the memory that the vector units work on, in float32."""
SMALL = ("TPU v2", "TPU v3", "TPU v4")
"""Chips whose vector units have 16 MiB of memory, too little for 512 tokens in float32."""
HIDDEN = -1e30
"""Added to the score of a padded key."""


def _specs(plan: Plan) -> tuple[list[Any], Any, Any, list[Any]]:
    """Blocks of q, k and v; of o; of a number for each query and head; of padding and words."""
    length = plan.length
    parts = [pl.BlockSpec((1, None, length, plan.width), functools.partial(_part, part)) for part in range(3)]
    o = pl.BlockSpec((1, length, plan.width), lambda b, g: (b, 0, g))
    number = pl.BlockSpec((1, 1, plan.group, length), lambda b, g: (b, g, 0, 0))
    optional = [pl.BlockSpec((1, 1, length), lambda b, g: (b, 0, 0))] * plan.masked + [number, number] * (plan.rate > 0)
    return parts, o, number, optional


def _part(part: int, b: Any, g: Any) -> tuple[Any, ...]:
    return b, part, 0, g


def _work(plan: Plan, batch: int, itemsize: int, *, backward: bool) -> Work:
    """Of the squares of blocks on and below the diagonal; the backward pass makes 5 products of each, the other 2."""
    n = plan.length // plan.block
    entries = batch * plan.n_heads * n * (n + 1) // 2 * plan.block**2
    # Maximum, difference, exponential (a product before it), sum and rounding of P; backward: difference, exponential,
    # rounding, dP - rowsum(dO * O), its product with P, rounding, and half an addition to dQ.
    vector = (7.5 if backward else 5) + plan.masked
    # Three XORs, two products, a shift and the comparison; and what is taken by it.
    vector += (9 if backward else 8) * (plan.rate > 0)
    head = round_up(plan.head_dim, LANES)
    wide, numbers = batch * plan.length * plan.n_groups * plan.width * itemsize, 4 * batch * plan.n_heads * plan.length
    moved = (8 if backward else 4) * wide + (1 + 2 * (plan.rate > 0)) * numbers + plan.masked * 4 * batch * plan.length
    passes = 1 if itemsize == 2 else 6  # float32 as six products in bfloat16
    return Work((5 if backward else 2) * 2 * head * entries * passes, int(vector * entries), entries, moved)


def _call(plan: Plan, qkv: Array, *, backward: bool, **options: Any) -> Any:
    batch, itemsize = qkv.shape[0], qkv.dtype.itemsize
    work = _work(plan, batch, itemsize, backward=backward)
    return pl.pallas_call(
        functools.partial(backward_pass if backward else forward_pass, plan=plan),
        grid=(batch, plan.n_groups),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=plan.vmem_bytes(itemsize)
        ),
        name="attention_backward" if backward else "attention_forward",
        interpret=plan.interpret,
        cost_estimate=work.cost,
        metadata=work.metadata,
        **options,
    )


def _forward(plan: Plan, qkv: Array, extra: tuple[Array, ...]) -> tuple[Array, Array]:
    batch, _, length, _ = qkv.shape
    parts, o, number, optional = _specs(plan)
    return _call(
        plan,
        qkv,
        backward=False,
        in_specs=[*parts, *optional],
        out_specs=[o, number],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, plan.n_groups * plan.width), qkv.dtype),
            jax.ShapeDtypeStruct((batch, plan.n_groups, plan.group, length), jnp.float32),
        ],
    )(qkv, qkv, qkv, *extra)


def _backward(plan: Plan, residuals: tuple[Any, ...], do: Array) -> tuple[Array, Array, None]:
    qkv, extra, o, lse = residuals
    batch, _, length, width = qkv.shape
    parts, part, number, optional = _specs(plan)
    dqkv, sums = _call(
        plan,
        qkv,
        backward=True,
        in_specs=[*parts, part, part, number, *optional],
        out_specs=[
            pl.BlockSpec((1, 3, length, width), lambda b, g: (b, 0, 0, 0)),
            pl.BlockSpec((1, 3, width), lambda b, g: (b, 0, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
            jax.ShapeDtypeStruct((batch, 3, width), jnp.float32),
        ],
        scratch_shapes=[pltpu.VMEM((plan.width, length), jnp.float32)],
    )(qkv, qkv, qkv, do, o, lse, *extra)
    return dqkv, sums.sum(0)[:, None], None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(plan: Plan, product: Array, bias: Array, extra: tuple[Array, ...]) -> Array:
    return _attention_forward(plan, product, bias, extra)[0]


def _attention_forward(
    plan: Plan, product: Array, bias: Array, extra: tuple[Array, ...]
) -> tuple[Array, tuple[Any, ...]]:
    qkv = add_bias(product, bias)
    o, lse = _forward(plan, qkv, extra)
    return o, (qkv, extra, o, lse)


_attention.defvjp(_attention_forward, _backward)


def _local(
    product: Array, bias: Array, kv_mask: Array | None, words: Words | None, *, head_dim: int, rate: float
) -> Array:
    """On one device; see `divided`."""
    batch, _, n_tokens, width = product.shape
    plan = Plan(width // head_dim, head_dim, n_tokens, rate, kv_mask is not None, interpret=platform() == "cpu")
    lanes, more = plan.group * head_dim, plan.length - n_tokens

    def padded(x: Array, more: int) -> Array:
        """More tokens, and whole lanes for every group."""
        x = x.reshape(*x.shape[:-1], plan.n_groups, lanes)
        x = jnp.pad(x, (*[(0, 0)] * (x.ndim - 3), (0, more), (0, 0), (0, plan.width - lanes)))
        return x.reshape(*x.shape[:-2], plan.n_groups * plan.width)

    extra = []
    if kv_mask is not None:
        extra.append(jnp.pad(jnp.where(kv_mask, 0.0, HIDDEN), ((0, 0), (0, more)))[:, None])
    for word in words or ():
        extra.append(jnp.pad(word, ((0, 0), (0, 0), (0, more))).reshape(batch, plan.n_groups, plan.group, plan.length))
    o = _attention(plan, padded(product, more), padded(bias, 0), tuple(extra))
    o = o.reshape(batch, plan.length, plan.n_groups, plan.width)
    return o[:, :n_tokens, :, :lanes].reshape(batch, n_tokens, width)


def tpu_self_attention(
    product: Float[Array, "B 3 L D"],
    bias: Float32[Array, "3 1 D"],
    n_heads: int,
    kv_mask: Bool[Array, "B L"] | None,
    dropout: Dropout | None,
) -> Float[Array, "B L D"]:
    """See `gpt1_jax.attention.self_attention`; without given masks, up to `MAX_TOKENS`.

    A query that sees nothing gets a mean of some values, finite, and so are the gradients. On a CPU it is interpreted.
    """
    batch, _, length, width = product.shape
    local = functools.partial(_local, head_dim=width // n_heads, rate=dropout.rate if dropout else 0.0)
    axes = (("batch", None, None, "heads"), (None, None, "heads"))
    shape = (batch, n_heads, length)
    return divided(local, (product, bias), axes, ("batch", None, "heads"), kv_mask, dropout, shape)


def tpu_attention(
    q: Float[Array, "B L H head_dim"],
    k: Float[Array, "B L H head_dim"],
    v: Float[Array, "B L H head_dim"],
    q_slots: Int[Array, "#B L"] | None,
    kv_mask: Bool[Array, "B L"] | None,
    dropout: Dropout | None,
) -> Float[Array, "B L H head_dim"]:
    """See `gpt1_jax.attention.causal_attention`; otherwise like `tpu_self_attention`."""
    assert q_slots is None, "a cache is for plain JAX"
    product = jnp.stack([q, k, v], 1).reshape(q.shape[0], 3, q.shape[1], -1)
    bias = jnp.zeros((3, 1, product.shape[-1]), jnp.float32)
    return tpu_self_attention(product, bias, q.shape[2], kv_mask, dropout).reshape(q.shape)
