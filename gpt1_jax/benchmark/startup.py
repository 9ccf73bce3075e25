"""A quick-start run that was stopped and is started again: from the start of the process to its first update."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpt1_jax.benchmark.text import Text
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.benchmark.training import OURS
from gpt1_jax.errors import InputError
from gpt1_jax.metrics import read_metrics

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT = 600.0  # seconds until a run must have done an update


def starting(text: Text) -> Contestant:
    """Starts again what the first start has begun; its compilations are kept in a folder, as JAX can do.

    Raises:
      InputError: the launch programs are not there.
    """
    program = _ROOT / "launch" / "pretrain.py"
    if not program.exists():
        raise InputError(f"--parts=start needs {program}, which is in the repository and not in the installed package")
    workdir = text.folder / "run"
    command = [
        *(sys.executable, str(program), f"--config={_ROOT}/configs/pretrain.py:quickstart", f"--workdir={workdir}"),
        *(f"--config.source={text.source}", "--config.loop.log_every=1", "--distributed=off"),
        "--config.heldout_fraction=0",  # the text may be one document
    ]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(text.folder / "compiled"), "JAX_ENABLE_COMPILATION_CACHE": "true"}
    start = functools.partial(_start_and_stop, command, os.environ | cache, workdir)
    start()
    return Contestant(
        OURS,
        start,
        lambda seconds: seconds,
        unit="runs",
        about="configs/pretrain.py:quickstart, what was compiled is kept (JAX_COMPILATION_CACHE_DIR)",
        is_warm=True,
        times_itself=True,
    )


def _start_and_stop(command: list[str], environment: dict[str, str], workdir: Path) -> float:
    """Seconds until a start has done an update more than there were; then it is stopped, and saves."""
    before = _last_step(workdir)
    begin = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            while _last_step(workdir) <= before:
                if process.poll() is not None or time.perf_counter() - begin > _LIMIT:
                    process.kill()
                    tail = process.stderr.read().decode("utf-8", "replace").strip()[-500:] if process.stderr else ""
                    raise RuntimeError(f"the quick-start run did no update: {tail}")
                time.sleep(0.005)
            seconds = time.perf_counter() - begin
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=_LIMIT)
        except BaseException:
            process.kill()
            raise
    return seconds


def _last_step(workdir: Path) -> int:
    with contextlib.suppress(InputError):
        return max((record["step"] for record in read_metrics(workdir)), default=0)
    return 0
