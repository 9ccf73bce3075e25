"""A pytest plugin that holds the package to the shapes in its annotations: every call is checked while JAX traces it.

    PYTHONPATH=tests python -m pytest -p shapes tests/shapes_cases.py

Arrays of NumPy, which the package takes as well as those of JAX, are refused: it is for what runs inside `jax.jit`.
"""

from collections.abc import Callable
from typing import Any

from beartype import beartype
from jaxtyping import install_import_hook

MODULES = (
    "attention",
    "block",
    "cross_entropy",
    "decoding",
    "drawing",
    "dropout",
    "kernels",
    "losses",
    "lstm",
    "model",
    "optim",
    "scores",
)


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `beartype`, but not of constructors: JAX passes anything through those of a pytree."""
    return function if function.__name__ == "__init__" else beartype(function)


install_import_hook([f"gpt1_jax.{name}" for name in MODULES], "shapes.check")
