"""Files in Google Cloud Storage, `gs://bucket/folder`, by gcsfs (extra [gcs]); what goes wrong there is named.

Credentials are what Google's libraries find: `gcloud auth application-default login`, $GOOGLE_APPLICATION_CREDENTIALS,
or the service account of a machine of Google's. An object appears when it is written to its end, so that there are no
halves of files; a write takes the place of what was there.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from gpt1_jax.errors import InputError

_URL = re.compile(r"gs:(/{1,2}|$)")  # with one slash it has been a `pathlib.Path`


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is in a bucket."""
    return _URL.match(os.fspath(path)) is not None


def url_of(path: str | os.PathLike[str]) -> str:
    """The address of a path for which `is_url` holds, without a slash at its end.

    Raises:
      InputError: the bucket has a name that no bucket can have, or there is no folder in it.
    """
    url = _URL.sub("gs://", os.fspath(path), count=1).rstrip("/")
    if not re.fullmatch(r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9](/[^/]+)+", url):
        raise InputError(f"{os.fspath(path)}: give gs://bucket/folder, with the bucket's name in small letters")
    return url


def prepare(url: str) -> None:
    """To be called before a path in a bucket is given to any library.

    Raises:
      InputError: gcsfs is not installed.
    """
    os.environ.setdefault("EPATH_USE_TF", "false")  # else etils takes TensorFlow where it is installed
    try:
        import fsspec
        import gcsfs  # noqa: F401
        import google.cloud.storage  # noqa: F401  # what Orbax asks for buckets with a hierarchy
    except ImportError as error:
        raise InputError(f"{url} needs {error.name}: pip install 'gpt1-jax[gcs]'") from error
    gcsfs_log = logging.getLogger("gcsfs")
    if gcsfs_log.level == logging.NOTSET:  # it logs stack traces of what it raises, and `named` tells
        gcsfs_log.setLevel(logging.CRITICAL)
    # Its own lists of files would hide what TensorStore and other machines write.
    fsspec.config.conf.setdefault("gs", {}).setdefault("use_listings_cache", False)


@contextlib.contextmanager
def named(url: str) -> Iterator[Any]:
    """Gives the storage, as fsspec has it; an error of it becomes an InputError that says what to do."""
    prepare(url)
    import aiohttp
    import fsspec
    from gcsfs.retry import HttpError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield fsspec.filesystem("gs")
    except InputError:
        raise
    except FileNotFoundError as error:
        bucket = url.split("/")[2]
        raise InputError(
            f"{url}: there is no bucket {bucket!r}, or no such file in it ({_reason(error)}). Make the bucket "
            f"(gcloud storage buckets create gs://{bucket}) or correct the address."
        ) from error
    except (OSError, ValueError, HttpError, GoogleAuthError, aiohttp.ClientError) as error:
        code = getattr(error, "code", None)
        if isinstance(error, GoogleAuthError) or code in (401, 403) or str(error).startswith("Forbidden"):
            raise InputError(
                f"{url} is not open to this machine's credentials ({_reason(error)}). Log in (gcloud auth "
                "application-default login), or give the machine's service account the roles Storage Object User and "
                "Storage Legacy Bucket Reader on the bucket."
            ) from error
        raise InputError(
            f"{url} cannot be reached ({_reason(error)}). See that this machine reaches storage.googleapis.com, and "
            "start the same command again."
        ) from error


def list_files(url: str, *, skip: Container[str] = ()) -> dict[str, str]:
    """Name below the folder -> MD5 (hex) of every file in it; {} if there is no such folder.

    `skip` has names of folders that are not looked into. An object that was put together from others has no MD5: it
    gets another mark, which changes when it does.
    """
    files, folders = {}, [""]
    with named(url) as storage:
        while folders:
            folder = folders.pop()
            try:
                entries = storage.ls(f"{url}/{folder}", detail=True)
            except FileNotFoundError:
                continue
            own = f"{url}/{folder}".removeprefix("gs://").rstrip("/")
            for entry in entries:
                path = entry["name"].rstrip("/")
                if path == own:  # the mark of a folder that somebody made by hand
                    continue
                base = path.rpartition("/")[2]
                if entry["type"] == "directory":
                    if base not in skip:
                        folders.append(f"{folder}{base}/")
                else:
                    md5 = entry.get("md5Hash")
                    files[folder + base] = base64.b64decode(md5).hex() if md5 else f"crc32c {entry.get('crc32c')}"
    return files


def get(url: str, path: Path) -> None:
    """Copies a file to this machine, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with named(url) as storage:
            storage.get_file(url, str(temporary))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def put(path: Path, url: str) -> None:
    """Copies a file of this machine into the bucket."""
    with named(url) as storage:
        storage.put_file(str(path), url)


def remove(url: str) -> None:
    """Removes a file; one that is not there is no error."""
    with named(url) as storage, contextlib.suppress(FileNotFoundError):
        storage.rm_file(url)


def check_writable(url: str) -> None:
    """Writes a small file into the folder and removes it.

    Raises:
      InputError: that is not possible: no such bucket, no permission, no network, gcsfs is missing.
    """
    probe = f"{url}/.probe.{os.getpid()}"
    with named(url) as storage:
        storage.pipe_file(probe, b"probe")
        storage.rm_file(probe)


def md5_of(path: Path) -> str:
    """The hex MD5 of a local file, which is what buckets tell of theirs; "" if there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except FileNotFoundError:
        return ""


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
