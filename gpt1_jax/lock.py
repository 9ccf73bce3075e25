"""A folder that only one process may use at a time.

The lock is a POSIX lock on a file: it ends with the process, however that ends. It holds on a local disk, and over NFS
where the server has locks. A system without locks only gives a warning.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from absl import logging

from gpt1_jax.errors import InputError

LOCK = ".lock"

_held: set[tuple[int, int]] = set()  # lock files (device, inode) of this process, which its POSIX locks let in


def take_lock(folder: Path, field: str, *, wait: bool = False) -> int:
    """Locks a folder until the descriptor that is returned is given to `release_lock`, or the process ends.

    Args:
      folder: it gets the file `.lock`, which says who holds it.
      field: the setting that it comes from.
      wait: waits for another process to end, and says so, instead of refusing.

    Raises:
      InputError: the folder is in use, by this process or (without `wait`) by another.
    """
    import fcntl  # not on Windows, where the rest of the package works

    lock, what = folder / LOCK, f"{field}={folder}"
    if lock.exists() and _identity(lock.stat()) in _held:  # to open it, and close it again, would release the lock
        raise InputError(f"{what} is already open in this process: close it first, or choose another {field}")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # A POSIX lock, since one of flock's would live on in worker processes that were forked.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        owner = os.read(descriptor, 1000).decode(errors="replace").strip() or "another process"
        if not wait:
            os.close(descriptor)
            raise InputError(
                f"{what} is in use by {owner}. Wait for it to end, stop it, or choose another {field}."
            ) from None
        logging.info("%s: waiting for %s", what, owner)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        logging.warning("%s cannot be locked (%s): take care that only one process uses it", what, error)
    os.truncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}, since {since}\n".encode())
    _held.add(_identity(os.fstat(descriptor)))
    return descriptor


def release_lock(descriptor: int) -> None:
    """Lets another process in."""
    _held.discard(_identity(os.fstat(descriptor)))
    os.close(descriptor)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
