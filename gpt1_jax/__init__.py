"""GPT-1 in JAX/Flax: pre-train a causal Transformer on raw text, fine-tune all of it on any task.

    from gpt1_jax import GPT1, GPT1Config, load_pretrained, save_pretrained, generate, predict
    from gpt1_jax import pretrain, finetune, evaluate, export, tokenizers

Importing this package parses no flag and starts no device; each name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpt1_jax.version import __version__

if TYPE_CHECKING:  # what a type checker or an editor sees; at run time, the table below
    from gpt1_jax import evaluate, export, finetune, pretrain, tokenizers
    from gpt1_jax.errors import InputError
    from gpt1_jax.evaluate import predict
    from gpt1_jax.model import GPT1, GPT1Config, ReadOut
    from gpt1_jax.pretrained import load_pretrained, save_pretrained
    from gpt1_jax.sampling import generate

_NAMES = {
    "GPT1": "gpt1_jax.model",
    "GPT1Config": "gpt1_jax.model",
    "ReadOut": "gpt1_jax.model",
    "InputError": "gpt1_jax.errors",
    "generate": "gpt1_jax.sampling",
    "load_pretrained": "gpt1_jax.pretrained",
    "predict": "gpt1_jax.evaluate",
    "save_pretrained": "gpt1_jax.pretrained",
}
_MODULES = ("evaluate", "export", "finetune", "pretrain", "tokenizers")

__all__ = [
    "GPT1",
    "GPT1Config",
    "InputError",
    "ReadOut",
    "__version__",
    "evaluate",
    "export",
    "finetune",
    "generate",
    "load_pretrained",
    "predict",
    "pretrain",
    "save_pretrained",
    "tokenizers",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"gpt1_jax.{name}")
    raise AttributeError(f"module 'gpt1_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
