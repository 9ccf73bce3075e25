"""Two processes on this machine that find each other; see multiprocess_test.py."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xla_flags

ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def two(*command: Any, folder: Path, n_devices: int = 4, **environ: str) -> Iterator[list[subprocess.Popen]]:
    """Starts a command twice; PORT and PROCESS in it and in `environ` are filled in. It ends with the block."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    environ = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags.quick(n_devices), "PYTHONPATH": str(ROOT), **environ}
    started = []
    try:
        for process in range(2):

            def fill(text: str, process: int = process) -> str:
                return text.replace("PORT", str(port)).replace("PROCESS", str(process))

            with open(folder / f"log.{process}", "wb") as log:
                started.append(
                    subprocess.Popen(
                        [sys.executable, *(fill(str(part)) for part in command)],
                        env=os.environ | {name: fill(value) for name, value in environ.items()},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def logs(folder: Path) -> str:
    """What the two have said."""
    return "\n".join((folder / f"log.{process}").read_text(errors="replace")[-4000:] for process in range(2))
