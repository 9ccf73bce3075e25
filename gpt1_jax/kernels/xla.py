"""Causal attention as plain JAX: the scores [B, H, Lq, S] exist, and XLA makes the best of them.

It runs everywhere, knows cached slots and given dropout masks, and is what every other kernel is tested against.

The backward pass is written out. With E = exp(scores - maximum), R its row sums, D the dropout mask over its keep rate
and P = E / R (all [B, H, Lq, S], products entry by entry marked *):

    O = (P * D) V        dV = (P * D)^T dO        dS = P * (D * (dO V^T) - rowsum(dO * O))        dQ = dS K, dK = dS^T Q

The row sum is over head_dim, since rowsum(P * D * (dO V^T)) = rowsum(O * dO), and nothing of the size of the scores is
kept from the forward pass: in bfloat16, one product and one exponential cost an accelerator less than to write them and
to read them again.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from gpt1_jax.dropout import Dropout
from gpt1_jax.precision import matmul_precision


def visible(
    q_slots: Int[Array, "#B Lq"] | None, n_slots: int, kv_mask: Bool[Array, "B {n_slots}"] | None
) -> Bool[Array, "#B 1 Lq {n_slots}"]:
    """Which key slots a query may look at: its own and earlier ones, less the padding.

    Args:
      q_slots: int32 [B or 1, Lq], the slot of each query on the key axis; None: as many queries as slots, in order.
      n_slots: number of key slots S.
      kv_mask: bool [B, S], False where a slot is padding, or None.

    Returns:
      bool [B or 1, 1, Lq, S].
    """
    slots = jnp.arange(n_slots)
    q_slots = slots[None, :] if q_slots is None else q_slots
    mask = slots <= q_slots[:, None, :, None]
    return mask if kv_mask is None else mask & kv_mask[:, None, None, :]


def attention_probabilities(
    q: Float[Array, "B Lq H head_dim"], k: Float[Array, "B S H head_dim"], mask: Bool[Array, "#B 1 Lq S"]
) -> Float[Array, "B H Lq S"]:
    """softmax(q k^T / sqrt(head_dim)) over the visible slots: [B, H, Lq, S], in the dtype of q.

    A query that sees nothing (a padded one) gets equal weights instead of NaN.
    """
    exponentials, sums = _exponentials(q * _scale(q), k, mask)
    return (exponentials / sums).astype(q.dtype)


def xla_attention(
    q: Float[Array, "B Lq H head_dim"],
    k: Float[Array, "B S H head_dim"],
    v: Float[Array, "B S H head_dim"],
    q_slots: Int[Array, "#B Lq"] | None,
    kv_mask: Bool[Array, "B S"] | None,
    dropout: Dropout | None,
) -> Float[Array, "B Lq H head_dim"]:
    """See `gpt1_jax.attention.causal_attention`."""
    return _attention(q, k, v, visible(q_slots, k.shape[1], kv_mask), dropout)


def _scale(q: Array) -> Array:
    return jnp.asarray(q.shape[-1] ** -0.5, q.dtype)


def _product(subscripts: str, a: Array, b: Array) -> Array:
    return jnp.einsum(subscripts, a, b, precision=matmul_precision(a.dtype))


def _exponentials(scaled_q: Array, k: Array, mask: Array) -> tuple[Array, Array]:
    """E and R of the module's docstring, float32; scores may be stored in q's dtype."""
    scores = _product("bqhd,bshd->bhqs", scaled_q, k).astype(jnp.float32)
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    exponentials = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return exponentials, exponentials.sum(-1, keepdims=True)


def _gain(dropout: Dropout | None) -> float:
    return 1.0 if dropout is None else 1.0 / (1.0 - dropout.rate)


def _drop(x: Array, dropout: Dropout | None) -> Array:
    return x if dropout is None else jnp.where(dropout.keep(x.shape), x, jnp.zeros((), x.dtype))


@jax.custom_vjp
def _attention(q: Array, k: Array, v: Array, mask: Array, dropout: Dropout | None) -> Array:
    return _forward(q, k, v, mask, dropout)[0]


def _forward(
    q: Array, k: Array, v: Array, mask: Array, dropout: Dropout | None
) -> tuple[Array, tuple[Array, Array, Array, Array, Array, Dropout | None]]:
    exponentials, sums = _exponentials(q * _scale(q), k, mask)
    # Rounded, then dropped: so the mask is drawn inside the product, and P is not written down.
    probabilities = (exponentials * (_gain(dropout) / sums)).astype(q.dtype)
    output = _product("bhqs,bshd->bqhd", _drop(probabilities, dropout), v)
    return output, (q, k, v, output, mask, dropout)


def _backward(
    saved: tuple[Array, Array, Array, Array, Array, Dropout | None], d_output: Array
) -> tuple[Array, Array, Array, None, None]:
    q, k, v, output, mask, dropout = saved
    dtype, scale = q.dtype, _scale(q)
    if dtype != jnp.float32:
        scale = jax.lax.optimization_barrier(scale)  # or the compiler finds E in the forward pass and keeps it
    scaled_q = q * scale
    exponentials, sums = _exponentials(scaled_q, k, mask)
    # Two products read E: stored in bfloat16 it stays on the chip.
    p = exponentials.astype(dtype).astype(jnp.float32) / sums
    row_sums = jnp.sum(d_output.astype(jnp.float32) * output.astype(jnp.float32), -1)
    d_v = _product("bhqs,bqhd->bshd", _drop((p * _gain(dropout)).astype(dtype), dropout), d_output)
    d_p = _drop(_product("bqhd,bshd->bhqs", d_output, v).astype(jnp.float32) * _gain(dropout), dropout)
    d_scores = (p * (d_p - jnp.swapaxes(row_sums, 1, 2)[..., None])).astype(dtype)
    d_q = _product("bhqs,bshd->bqhd", d_scores, k) * scale
    d_k = _product("bhqs,bqhd->bshd", d_scores, scaled_q)
    return d_q, d_k, d_v, None, None


_attention.defvjp(_forward, _backward)
