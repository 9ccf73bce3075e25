"""Descriptions of NVIDIA cards for XLA's GPU compiler (`GpuTargetConfigProto` as text).

The figures are those of the makers' data sheets and of the CUDA programming guide's table of compute capabilities.
"""

from __future__ import annotations

import dataclasses

from gpt1_jax.aot.chips import Chip


@dataclasses.dataclass(frozen=True)
class _Card:
    capability: tuple[int, int]
    multiprocessors: int
    boost_ghz: float
    l2_bytes: int
    shared_bytes: int  # of a multiprocessor; a block may ask for 1 KiB less


_CARDS = {
    "a100": _Card((8, 0), 108, 1.41, 40 << 20, 164 << 10),
    "h100": _Card((9, 0), 132, 1.98, 50 << 20, 228 << 10),
    "h200": _Card((9, 0), 132, 1.98, 50 << 20, 228 << 10),
}


def target_description(chip: Chip) -> str:
    """What the compiler has to know of a card."""
    card = _CARDS[chip.name]
    major, minor = card.capability
    fields = {
        "name": f'"{chip.device_kind}"',
        "model_str": f'"{chip.device_kind}"',
        "device_vendor": '"NVIDIA Corporation"',
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_block_optin": card.shared_bytes - 1024,
        "shared_memory_per_core": card.shared_bytes,
        "registers_per_core_limit": 1 << 16,
        "registers_per_block_limit": 1 << 16,
        "core_count": card.multiprocessors,
        "fpus_per_core": 128 if major >= 9 else 64,
        "block_dim_limit_x": (1 << 31) - 1,
        "block_dim_limit_y": (1 << 16) - 1,
        "block_dim_limit_z": (1 << 16) - 1,
        "memory_bandwidth": int(chip.hbm_bandwidth),
        "l2_cache_size": card.l2_bytes,
        "clock_rate_ghz": card.boost_ghz,
        "device_memory_size": int(chip.hbm_bytes),
    }
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} }}")
    kind = f'device_description_str: "{chip.device_kind}"'  # what JAX calls it; kernels are written for it
    return "\n".join(["gpu_device_info {", *lines, "}", 'platform_name: "CUDA"', kind, ""])
