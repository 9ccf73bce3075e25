"""FLOPs of a token, and those of the device in a second: the floor that every speed is held against."""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp

from gpt1_jax.model import GPT1Config

PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}
"""Dense bfloat16 FLOP/s of one device, from the makers' data sheets, by the beginning of `device_kind`."""


def train_flops_per_token(
    config: GPT1Config, length: int, *, with_lm: bool = True, frozen_trunk: bool = False
) -> float:
    """FLOPs of the forward and backward pass for one token of a sequence of `length` tokens.

    Matrix products only, multiply and add counted as two, backward as twice the forward; attention counts the whole
    [length, length] square, as a kernel without causal skipping computes it. Without the language-model loss there is
    no product with the vocabulary, and the weights of a frozen trunk have no gradients of their own. An LSTM has two
    kernels for each of its four gates, and the projection.
    """
    d, u = config.n_embd, config.lstm_units
    if config.trunk == "lstm":
        weights, attention = 2 * (4 * u * (d + u) + u * d), 0
    else:
        weights, attention = 2 * 12 * d * d * config.n_layer, 2 * 2 * length * d * config.n_layer
    head = 2 * d * config.n_rows if with_lm else 0
    return (2.0 if frozen_trunk else 3.0) * weights + 3.0 * attention + 3.0 * head


@functools.cache
def device_peak_flops() -> tuple[float, str]:
    """FLOP/s of one device and where the figure comes from: "data sheet" or "measured".

    A device that is not in the table is measured with a float32 matrix product (a fraction of a second). The CPU's
    devices, simulated ones too, share its cores.
    """
    device = jax.local_devices()[0]
    kinds = [kind for kind in PEAK_FLOPS if device.device_kind.startswith(kind)]
    if kinds:
        return PEAK_FLOPS[max(kinds, key=len)], "data sheet"
    return measured_matmul_flops() / (jax.local_device_count() if device.platform == "cpu" else 1), "measured"


def measured_matmul_flops(n: int = 1024, repeats: int = 5) -> float:
    """FLOP/s of the best of a few n x n float32 matrix products on the first device."""
    x = jnp.ones((n, n), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(x).block_until_ready()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best
