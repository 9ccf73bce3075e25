"""The written backward pass of plain attention, against what JAX derives from the three lines that it stands for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.dropout import Dropout
from gpt1_jax.kernels.xla import visible, xla_attention

B, L, H, D = 2, 13, 3, 8
DRAWN = Dropout(0.25, key_words=jnp.uint32([3, 4]), rows=jnp.int32([5, 9]))
GIVEN = Dropout(0.25, mask=jax.random.bernoulli(jax.random.key(8), 0.75, (B, H, L, L)))
ONE_FOR_ALL = Dropout(0.25, mask=jax.random.bernoulli(jax.random.key(8), 0.75, (1, 1, L, L)))


def inputs(dtype: str) -> list[jax.Array]:
    """q, k, v and the gradient of the output."""
    return [2 * jax.random.normal(key, (B, L, H, D), dtype) for key in jax.random.split(jax.random.key(1), 4)]


def plain(q, k, v, q_slots, kv_mask, dropout):
    """The definition, in float32; JAX derives its gradients."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    scores = jnp.einsum("bqhd,bshd->bhqs", q, k, precision="highest") / np.sqrt(D)
    mask = visible(q_slots, L, kv_mask)
    probabilities = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    if dropout is not None:
        keep = jnp.broadcast_to(dropout.keep((B, H, L, L)), (B, H, L, L))
        probabilities = jnp.where(keep, probabilities / (1 - dropout.rate), 0)
    return jnp.einsum("bhqs,bshd->bqhd", probabilities, v, precision="highest")


CASES = {
    "plain": (None, None, None),
    "drawn": (None, None, DRAWN),
    "given": (None, None, GIVEN),
    "one mask for all": (None, None, ONE_FOR_ALL),
    "padded": (None, jnp.arange(L)[None, :] < jnp.array([[L], [7]]), DRAWN),
    "slots": (jnp.arange(L)[None, :] // 2, None, DRAWN),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2e-2)])
def test_output_and_gradients_are_those_of_the_definition(case, dtype, tolerance):
    """bfloat16 has 2^-9 a rounding, of which the gradients have a handful."""
    *arguments, d_output = inputs(dtype)

    def both(attention):
        output, back = jax.vjp(lambda q, k, v: attention(q, k, v, *case), *arguments)
        return output, *back(d_output.astype(output.dtype))

    for found, wanted in zip(both(xla_attention), both(plain), strict=True):
        assert found.dtype == dtype
        error = jnp.abs(found.astype(jnp.float32) - wanted.astype(jnp.float32)).max() / jnp.abs(wanted).max()
        assert error <= tolerance


def test_gradients_of_a_query_that_sees_nothing_are_finite():
    *arguments, d_output = inputs("float32")
    nothing = jnp.zeros((B, L), bool)
    output, back = jax.vjp(lambda q, k, v: xla_attention(q, k, v, None, nothing, DRAWN), *arguments)
    assert all(bool(jnp.isfinite(x).all()) for x in (output, *back(d_output)))


def test_nothing_of_the_size_of_the_scores_is_kept():
    *arguments, _ = inputs("bfloat16")
    _, back = jax.vjp(lambda q, k, v: xla_attention(q, k, v, None, None, DRAWN), *arguments)
    assert max(x.size for x in jax.tree.leaves(back)) == max(B * L * H * D, L * L)  # the causal mask is one for all
