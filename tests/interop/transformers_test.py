"""Our folders in transformers, and its files in ours: installs it, and runs transformers_cases.py with it."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import pip_install

CASES = Path(__file__).with_name("transformers_cases.py")
WANTED = ("torch==2.13.0", "transformers")


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[str]:
    """A folder with PyTorch and transformers; "" where they are installed already."""
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        yield ""
        return
    target = tmp_path / "packages"
    pip_install(target, *WANTED)
    yield str(target)
    shutil.rmtree(target)  # more than a gigabyte


@pytest.mark.slow
def test_with_transformers(packages):
    path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "-o", "addopts=--import-mode=importlib -q", str(CASES)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    print(result.stdout[-20000:], result.stderr[-2000:])
    assert result.returncode == 0
