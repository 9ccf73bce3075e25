"""Memory that is freed stays in the process on a CPU, and there only."""

import platform
import subprocess
import sys

import pytest

from gpt1_jax import host_memory

# 64 MiB are touched and freed, twice, by a thread other than the first: the page faults of the second time.
_FAULTS = """
import ctypes, resource, sys, threading
from gpt1_jax import host_memory
sys.argv[1] == "keep" and host_memory.keep_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def use():
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
def twice():
    use()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=twice)
thread.start()
thread.join()
"""


def _faults(how: str, **variables: str) -> int:
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path), **variables}
    run = subprocess.run(
        [sys.executable, "-c", _FAULTS, how], env=environment, capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_block_that_was_freed_is_used_again_without_page_faults():
    assert _faults("leave") > 1000  # 16,384 pages of 4 KiB, fewer where the system has larger ones
    assert _faults("keep") < 100
    assert _faults("keep", MALLOC_TRIM_THRESHOLD_="131072") > 1000  # the user's settings hold


@pytest.mark.parametrize(
    ("platforms", "found", "expected"),
    [("cpu", True, True), ("tpu", False, False), ("", True, False), ("", False, True), ("cuda,cpu", True, False)],
)
def test_memory_is_left_alone_beside_an_accelerator(monkeypatch, platforms, found, expected):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(host_memory.importlib.util, "find_spec", lambda name: object() if found else None)
    assert host_memory._only_cpu() == expected


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(host_memory.platform, "libc_ver", lambda: ("musl", "1.2"))
    assert not host_memory.keep_freed()
