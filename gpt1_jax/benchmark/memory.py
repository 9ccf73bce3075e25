"""How much memory something takes: by the devices' own count, or on a CPU by the process's."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import jax


class Peak:
    """What `watch` fills in.

    Attributes:
      bytes: most that a device held since the program began, or that the process grew to hold on a CPU; None where
        nothing counts it.
      of: "device" or "process".
    """

    bytes: int | None = None
    of: str = "process"


@contextlib.contextmanager
def watch() -> Iterator[Peak]:
    """The peak of what happens inside.

    A device counts from the program's beginning. Under Linux the process's count is begun anew, after what was freed
    before is given back to the system: else it would be used again, and not counted.
    """
    peak = Peak()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    before = _resident("VmRSS")
    _begin_anew()
    yield peak
    statistics = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in statistics:
        peak.bytes, peak.of = int(statistics["peak_bytes_in_use"]), "device"
    elif before is not None and (most := _resident("VmHWM")) is not None:
        peak.bytes = max(0, most - before)


def _begin_anew() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # see proc(5): resets the peak, VmHWM


def _resident(name: str) -> int | None:
    """A line of /proc/self/status in bytes, or None where there is no such file."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    return None
