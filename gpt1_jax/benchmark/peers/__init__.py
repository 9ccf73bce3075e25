"""Others that do the same work: the same sizes and shapes, all dropout on, clipping and AdamW.

Each peer is a module with the functions `train`, `evaluate` and `decode`, as far as it can do that; they take a
`GPT1Config`, an `OptimizerConfig` and tokens, and give a `Contestant`. Weights and draws of dropout are their own.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import jax

from gpt1_jax.errors import InputError

PEERS = {"transformers": "transformers_gpt", "naive": "naive", "torch": "torch_gpt"}
"""Peer -> its module here."""

_NEEDS = {"transformers": ("torch", "transformers"), "torch": ("torch",)}


def load_peer(name: str) -> ModuleType:
    """The module of a peer.

    Raises:
      InputError: a package that it needs is not installed or does not know the device, or there are several devices.
    """
    if (n_devices := jax.device_count()) > 1:
        raise InputError(
            f"--peer={name} works on one device and there are {n_devices}; show JAX one of them, such as with "
            "CUDA_VISIBLE_DEVICES=0"
        )
    needed = _NEEDS.get(name, ())
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        raise InputError(
            f"--peer={name} needs {' and '.join(missing)}, into this same environment: pip install {' '.join(needed)}"
        )
    if needed and (backend := jax.default_backend()) != "cpu":
        import torch

        if backend != "gpu" or not torch.cuda.is_available():
            raise InputError(
                f"--peer={name}: JAX computes on {backend.upper()} and this PyTorch cannot; install one that does, "
                "compare on the CPU (JAX_PLATFORMS=cpu), or use --peer=naive"
            )
    return importlib.import_module(f"gpt1_jax.benchmark.peers.{PEERS[name]}")
