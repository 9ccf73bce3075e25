"""Memory of the process on a CPU: what an update has freed, the next one gets again.

XLA asks the C library for the temporaries of every call and gives them back after it, gigabytes at full size. glibc
returns blocks of that size to the system, which has to clear each page again at its next first use: a tenth of the time
of an update.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform

# The names and numbers of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_ACCELERATORS = ("libtpu", "jax_plugins")  # what brings JAX a TPU or a GPU is one of these packages


def keep_freed() -> bool:
    """Keeps what is freed from now on in the process, where that helps: with glibc, and JAX on a CPU.

    To be called before JAX makes its threads, that is before it is first asked for devices: a thread that has a heap of
    its own gives large blocks back whatever is set. Within its first updates the process then grows to about twice what
    its temporaries take, and stays so. With an accelerator the memory of the host is better left alone, and so it is
    for whoever has set one of glibc's own variables, such as `MALLOC_TRIM_THRESHOLD_=131072`.

    Returns:
      whether anything was done.
    """
    is_set = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if is_set or platform.libc_ver()[0] != "glibc" or not _only_cpu():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
    return all([mallopt(name, value) for name, value in settings.items()])


def _only_cpu() -> bool:
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms == "cpu"
    return not any(importlib.util.find_spec(name) for name in _ACCELERATORS)
