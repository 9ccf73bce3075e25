"""A program of launch/ in the process of the test: what several tests of them share."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from absl import flags

from gpt1_jax import cli

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def program(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A program with its flags parsed; they are gone afterwards, for the next one defines the same."""
    before = set(flags.FLAGS)
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")  # what launch/benchmark.py sets is undone afterwards
    spec = importlib.util.spec_from_file_location(f"launch_{Path(arguments[0]).stem}", ROOT / arguments[0])
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        cli.register_parsers()
        assert flags.FLAGS(arguments)[1:] == []
        yield module
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
