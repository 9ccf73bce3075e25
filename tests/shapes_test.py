"""The shapes in the package's annotations hold for what a run calls, and wrong ones are refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.slow  # a minute or two; CI runs it
def test_in_a_process_that_checks_them():
    """Its own, since what is checked is decided when the package is imported."""
    command = [sys.executable, "-m", "pytest", "-p", "shapes", "-p", "no:cacheprovider", str(TESTS / "shapes_cases.py")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout[-3000:]
