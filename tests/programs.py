"""A program of launch/, in the process of the test or in one of its own: what several tests of them share."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import xla_flags
from absl import flags

from gpt1_jax import cli

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags.quick()}
"""Of a program in a process of its own."""


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
        arguments = cli.with_config(arguments, getattr(module, "DEFAULT_CONFIG", None))
        assert flags.FLAGS(arguments)[1:] == []
        yield module
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)


def launch(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Runs launch/<name>.py on the CPU, to its end."""
    command = [sys.executable, f"launch/{name}.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
