"""How matrix products round."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def matmul_precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """float32 means float32, also on TPU and on GPUs that would otherwise multiply in bfloat16 or TF32."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
