"""How matrix products, and sums with them, round."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

MATRICES = ("kernel", "embedding")
"""Names of the parameters that products take, in the dtype of the computation; all others are used in float32."""


def are_matrices(params: Any) -> Any:
    """Which leaves are among `MATRICES`: a tree of True and False."""
    return leaves_named(params, MATRICES)


def cast_matrices(params: Any, dtype: str) -> Any:
    """The parameters as the products take them; what is added or scaled by stays float32."""
    return jax.tree.map(lambda x, matrix: x.astype(dtype) if matrix else x, params, are_matrices(params))


def leaves_named(params: Any, names: Collection[str]) -> Any:
    """Which leaves have one of the names, or are in a box that has: a tree of True and False."""

    def is_named(path: tuple[Any, ...], _: Any) -> bool:
        return any(getattr(key, "key", None) in names for key in path)

    return jax.tree_util.tree_map_with_path(is_named, params)


def matmul_precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """float32 means float32, also on TPU and on GPUs that would otherwise multiply in bfloat16 or TF32."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def add_bias(product: Array, bias: Array) -> Array:
    """The sum in float32, rounded as the product; its gradient by the bias, a sum over all tokens, is in float32, too.

    In bfloat16 that sum would be coarse, and slow on TPUs.
    """
    return (product.astype(jnp.float32) + bias).astype(product.dtype)
