"""The manifest of a checkpoint: what it consists of, so that damage is found before anything is loaded.

Orbax does not check the bytes of arrays: a flipped bit loads without a word. `gpt1_jax.checkpoint` writes one manifest
into each checkpoint's folder, and compares every file with it before a restore.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

import jax
import numpy as np
from etils import epath

from gpt1_jax.errors import InputError

NAME = "manifest.json"
_FORMAT = 1
# Orbax finishes these two after the manifest is written, and nothing is read from them here.
_UNLISTED = frozenset({NAME, f"{NAME}.tmp", "_CHECKPOINT_METADATA", "commit_success.txt"})
_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """An array's dtype and shape, written as `float32[40478, 768]`."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: Any) -> Self:
        """Takes anything that has a dtype and a shape."""
        return cls(str(np.dtype(array.dtype)), tuple(map(int, array.shape)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`."""
        dtype, bracket, shape = text.partition("[")
        return cls(dtype, tuple(json.loads(bracket + shape)))

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class FileDigest:
    """A file's size and content."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: epath.Path, *, durable: bool = False) -> Self:
        """Reads the whole file. `durable` has the system put it on the disk first (local paths only)."""
        size, sha = 0, hashlib.sha256()
        with path.open("rb") as file:
            if durable and "://" not in os.fspath(path):
                os.fsync(file.fileno())
            while chunk := file.read(_CHUNK_BYTES):
                size += len(chunk)
                sha.update(chunk)
        return cls(size, sha.hexdigest())


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint consists of: `manifest.json` in its folder, with a checksum of itself."""

    step: int
    arrays: Mapping[str, ArraySpec]
    metrics: Mapping[str, float]
    files: Mapping[str, FileDigest]

    @classmethod
    def read(cls, folder: epath.Path) -> Self:
        """Reads the manifest of a checkpoint.

        Raises:
          ValueError: it is missing, or is not what was written.
          InputError: another version of this package wrote it, in a form that this one does not know.
        """
        try:
            content = json.loads((folder / NAME).read_text(encoding="utf-8"))
            if content.pop("sha256") != _checksum(content):
                raise ValueError("its own checksum differs")
        except FileNotFoundError:
            raise ValueError(f"{NAME} is missing") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{NAME} is not what was written ({error})") from error
        if content["format"] != _FORMAT:
            raise InputError(
                f"{folder / NAME} has format {content['format']}, this version of gpt1_jax reads format {_FORMAT}: "
                "install the version that wrote the checkpoint"
            )
        return cls(
            step=content["step"],
            arrays={name: ArraySpec.parse(spec) for name, spec in content["arrays"].items()},
            metrics=content["metrics"],
            files={name: FileDigest(**digest) for name, digest in content["files"].items()},
        )

    def of_files_in(self, folder: epath.Path) -> Self:
        """The same manifest, listing the files that are in the folder now, which are on the disk thereafter."""
        files = {name: FileDigest.of(folder / name, durable=True) for name in _file_names(folder)}
        return dataclasses.replace(self, files=files)

    def write(self, folder: epath.Path) -> None:
        """Writes it in one rename (in a bucket: in one write), in place of the one that may be there."""
        content = {
            "format": _FORMAT,
            "step": self.step,
            "metrics": dict(self.metrics),
            "arrays": {name: str(spec) for name, spec in self.arrays.items()},
            "files": {name: dataclasses.asdict(digest) for name, digest in self.files.items()},
        }
        text = json.dumps(content | {"sha256": _checksum(content)}, indent=1)
        if "://" in os.fspath(folder):
            (folder / NAME).write_text(text, encoding="utf-8")
            return
        temporary = folder / f"{NAME}.tmp"
        temporary.write_text(text, encoding="utf-8")
        FileDigest.of(temporary, durable=True)
        temporary.replace(folder / NAME)

    def damage(self, folder: epath.Path) -> str:
        """Says what is wrong with the checkpoint, or "". Several processes check a part of the files each."""
        if folder.name != str(self.step):
            return f"its {NAME} is that of step {self.step}"
        for name in sorted(self.files)[jax.process_index() :: jax.process_count()]:
            written, path = self.files[name], folder / name
            if not path.exists():
                return f"{name} is missing"
            found = FileDigest.of(path)
            if found.bytes != written.bytes:
                return f"{name} has {found.bytes} bytes instead of {written.bytes}"
            if found != written:
                return f"{name} has other content than was written"
        return ""


def _file_names(folder: epath.Path, prefix: str = "") -> Iterator[str]:
    """All files below the folder that belong into its manifest, relative to it."""
    for path in sorted(folder.iterdir()):
        name = f"{prefix}{path.name}"
        if path.is_dir():
            yield from _file_names(path, f"{name}/")
        elif name not in _UNLISTED:
            yield name


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
