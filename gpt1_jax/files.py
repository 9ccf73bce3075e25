"""Files that are whole or not there: atomic writes, checksums, full disks, the name nearest to a missing one."""

from __future__ import annotations

import contextlib
import difflib
import errno
import glob
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gpt1_jax.errors import InputError


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Writes `data` so that after a crash at any moment `path` has its old content or all of the new one."""
    with atomic_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end, if no error ends it: see `write_atomically`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:  # a write that fails does not know of what
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    _remove_leftovers(path)
    _sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Writes `json_text(value)`, atomically."""
    write_atomically(path, json_text(value).encode("utf-8"))


def json_text(value: Any) -> str:
    """`value` as JSON; numbers that are not finite, which JSON does not have, are null."""
    return json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Reads a JSON object that this package wrote; `what` names it in the error.

    Raises:
      InputError: the file is not such an object.
    """
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise InputError(
            f"{path}: is not {what} ({error}); it is damaged, delete its folder and make it again"
        ) from None
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object that another program wrote.

    Raises:
      InputError: there is no such file, or it holds something else.
    """
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"{type(value).__name__} instead of an object")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); download the whole folder") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not a JSON object ({error}); it is damaged, download it again") from None
    return value


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an address such as gs://bucket/run, in any storage, or one that was a `Path` since."""
    return re.match(r"\w{2,}:/", os.fspath(path)) is not None


def check_path(path: str | os.PathLike[str], field: str) -> None:
    """Refuses what names no file or folder; `Path` would take "" for the current folder.

    Raises:
      InputError: it is empty or no text; `field` is the setting it came from.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{field}={path!r} must be a path, not {type(path).__name__}")
    if not os.fspath(path).strip():
        raise InputError(f"{field} is empty; name a folder, or . for the current one")


def make_directory(path: Path, field: str) -> None:
    """Creates a folder and its parents.

    Raises:
      InputError: it cannot be made, or is an address such as gs://...; `field` is the setting it came from.
    """
    if is_address(path):
        raise InputError(f"{field}={str(path)!r}: name a folder of this machine, and copy it from there")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{field}={str(path)!r}: cannot create this folder ({error.strerror}); choose another"
        ) from None


def make_new_directory(path: Path, field: str) -> None:
    """`make_directory` of a folder that nothing is in yet.

    Raises:
      InputError: as there, or something is in it.
    """
    make_directory(path, field)
    if any(path.iterdir()):
        raise InputError(f"{field}={str(path)!r} is not empty; choose a new folder")


def check_writable(path: Path, field: str) -> None:
    """Tries whether a file can be written, before the work whose result it gets; what is there stays.

    Raises:
      InputError: its folder is missing or read-only, or it is a folder; `field` is the setting it came from.
    """
    where = f"{field}={path}"
    if not path.absolute().parent.is_dir():
        raise InputError(f"{where}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise InputError(f"{where}: is a folder; name a file in it")
    probe = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{where}: cannot be written ({error.strerror}); choose another place") from None


MAKE_SPACE = "Make space there, or make it writable, and start the same command again."


def about_the_disk(error: OSError) -> str:
    """What to say and do about a disk that is full, or a place that may not be written; "" for other errors."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
        return ""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}. {MAKE_SPACE}"


def sha256_of_file(path: Path) -> str:
    """The hex SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_missing(path: Path) -> Path:
    """The first part of a missing path that is missing: its parent exists."""
    while not path.parent.exists():
        path = path.parent
    return path


def similar(path: Path, *, folder: bool, n: int = 1) -> list[Path]:
    """At most `n` paths beside a missing file or `folder` that are one too and whose names are close to its own, the
    closest first.
    """
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_dir() == folder)
    except OSError:
        return []
    return [path.parent / name for name in difflib.get_close_matches(path.name, names, n=n, cutoff=0.5)]


def nearest(path: str | os.PathLike[str]) -> str:
    """The end of a message about a path that is missing: the part of it that is, and the closest name beside that."""
    path = Path(path)
    missing = first_missing(path)
    where = "" if missing == path else f"; its folder {missing} does not exist"
    close = similar(missing, folder=missing != path) or similar(missing, folder=missing == path)
    return where + "".join(f"; did you mean {one}?" for one in close)


def _remove_leftovers(path: Path) -> None:
    """Removes what writers of the same file left that were killed in the midst."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        number = leftover.name.split(".")[-2]
        if number.isdecimal() and not _is_running(int(number)):
            leftover.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        pass
    return True


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _sync_directory(path: Path) -> None:
    """Makes a rename durable; a system that cannot do that is no error."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
