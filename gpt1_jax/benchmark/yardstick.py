"""The rate of a lone matrix product: what this machine gives at best, right now and in this dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gpt1_jax.benchmark.timing import Contestant, warm_up
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.precision import matmul_precision

NAME = "matrix product"
_TRIES = 3
_SQUARES = {"cpu": (1024, 2048), "other": (4096, 8192)}

Shape = tuple[int, int, int]


def shapes(model: GPT1Config, n_rows: int) -> tuple[Shape, ...]:
    """Rows, inner width and columns: those of the model's own products for `n_rows` tokens, and squares."""
    d, platform = model.n_embd, jax.default_backend()
    own = ((n_rows, d, 4 * d), (n_rows, 4 * d, d), (n_rows, d, model.padded_rows))
    return (*own, *((n, n, n) for n in _SQUARES.get(platform, _SQUARES["other"])))


@functools.cache
def best_product(model: GPT1Config, n_rows: int) -> Contestant:
    """The product with the highest rate of all `shapes`, in the model's dtype, at the same time on every device."""
    best: Contestant | None = None
    best_rate = 0.0
    for shape in shapes(model, n_rows):
        contestant = _product(shape, jnp.dtype(model.dtype))
        _, calls = warm_up(contestant)
        rate = contestant.flops / min(contestant.seconds(calls) for _ in range(_TRIES))
        if best is None or rate > best_rate:
            best, best_rate = contestant, rate
    assert best is not None
    return best


def _product(shape: Shape, dtype: jnp.dtype) -> Contestant:
    rows, inner, columns = shape
    devices = jax.local_devices()
    mesh = Mesh(np.asarray(devices), ("rows",), axis_types=(AxisType.Auto,))
    split, whole = (NamedSharding(mesh, PartitionSpec(axis)) for axis in ("rows", None))
    rng = np.random.default_rng(0)
    a = jax.device_put(rng.standard_normal((rows * len(devices), inner), np.float32).astype(dtype), split)
    b = jax.device_put(rng.standard_normal((inner, columns), np.float32).astype(dtype), whole)
    multiply: Callable[[Array, Array], Array] = jax.jit(
        functools.partial(jnp.matmul, precision=matmul_precision(dtype)), out_shardings=split
    )
    return Contestant(
        NAME,
        lambda: multiply(a, b),
        unit="FLOP",
        amount=2.0 * rows * inner * columns * len(devices),
        flops=2.0 * rows * inner * columns * len(devices),
        about=f"[{rows}, {inner}] x [{inner}, {columns}], {dtype.name}"
        + (f", on each of {len(devices)} devices" if len(devices) > 1 else ""),
    )
