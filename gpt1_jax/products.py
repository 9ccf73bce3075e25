"""The product of a layer: every token with the layer's kernel."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from gpt1_jax.kernels.sharded import platform


def layer_product(x: Array, kernel: Array, dimension_numbers: Any = None, **options: Any) -> Array:
    """[..., D] and [D, ...] -> [..., ...], as `jax.lax.dot_general` with the same options.

    On a CPU by itself it is the product of two matrices. XLA:CPU takes these as they lie, in the backward pass, too;
    where there are more axes to sum over or to keep, it copies operands and transposes the gradient of the kernel.
    Where devices share the axes of a kernel, these stay apart.
    """
    dims = (((x.ndim - 1,), (0,)), ((), ()))
    assert dimension_numbers in (None, dims)
    if not alone_on_cpu():
        return jax.lax.dot_general(x, kernel, dims, **options)
    rows, columns = x.reshape(-1, x.shape[-1]), kernel.reshape(kernel.shape[0], -1)
    product = jax.lax.dot_general(rows, columns, (((1,), (0,)), ((), ())), **options)
    return product.reshape(*x.shape[:-1], *kernel.shape[1:])


def alone_on_cpu() -> bool:
    """Whether what is traced now runs on one device, which is a CPU."""
    return platform() == "cpu" and jax.sharding.get_abstract_mesh().size <= 1  # 0: there is no mesh
