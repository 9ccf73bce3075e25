"""How matrix products, and sums with them, round."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def matmul_precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """float32 means float32, also on TPU and on GPUs that would otherwise multiply in bfloat16 or TF32."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def add_bias(product: Array, bias: Array) -> Array:
    """The sum in float32, rounded as the product; its gradient by the bias, a sum over all tokens, is in float32, too.

    In bfloat16 that sum would be coarse, and slow on TPUs.
    """
    return (product.astype(jnp.float32) + bias).astype(product.dtype)
