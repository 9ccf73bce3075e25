"""Raw text: the documents of a source, one after the other, in constant memory.

| source | documents |
|---|---|
| `text:GLOB` | UTF-8 files, one document each, in the order of their paths |
| `jsonl:GLOB#FIELD` | one string per line of `.jsonl` files; `#FIELD` is "text" if not given |
| `tfds:NAME[/CONFIG][/SPLIT][#FIELD]` | the examples of a TensorFlow Datasets split, read without TensorFlow |
| a list of strings | themselves |

`**` in a glob matches any depth; a folder means its `**/*.txt` or `**/*.jsonl`. A `text:` file longer than
`max_document_bytes` is read as consecutive documents, cut at a blank line where possible: memory stays bounded, and
one huge file can still be split into training and held-out text. A byte-order mark is dropped.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from absl import logging

from gpt1_jax.data.tables import read_rows
from gpt1_jax.errors import InputError
from gpt1_jax.files import similar

Source = str | Sequence[str]

MAX_DOCUMENT_BYTES = 4 << 20
_MIN_DOCUMENT_BYTES = 16
KINDS = ("text", "jsonl", "tfds")

_BOM = b"\xef\xbb\xbf"
_SUFFIXES = {"text": "txt", "jsonl": "jsonl"}


@dataclass(frozen=True)
class SourceSpec:
    """A parsed source: `kind:target#field`."""

    kind: str
    target: str
    field: str | None

    @classmethod
    def parse(cls, source: str) -> SourceSpec:
        """Parses `kind:target[#field]`.

        Raises:
          InputError: another form.
        """
        kind, colon, target = source.partition(":")
        if not colon or kind not in KINDS or not target.strip():
            raise InputError(
                f"source={source!r} must be text:GLOB, jsonl:GLOB#FIELD or tfds:NAME[/CONFIG][/SPLIT][#FIELD]"
            )
        if kind == "text":
            return cls(kind, target, None)
        target, _, name = target.partition("#") if kind == "tfds" else _split_at_last_hash(target)
        return cls(kind, target, name or ("text" if kind == "jsonl" else None))


def read_documents(
    source: Source, *, part: int = 0, parts: int = 1, max_document_bytes: int = MAX_DOCUMENT_BYTES
) -> Iterator[str]:
    """The documents of a source, or every `parts`-th of them from number `part` on.

    Raises:
      InputError: while iterating: no file, an empty file, invalid UTF-8, bad JSON, a missing field, a data set that
        is not there. The message says where and what to do.
    """
    if not 0 <= part < parts:
        raise InputError(f"part={part} must be from 0 to parts - 1 = {parts - 1}")
    if max_document_bytes < _MIN_DOCUMENT_BYTES:
        raise InputError(f"max_document_bytes={max_document_bytes} must be at least {_MIN_DOCUMENT_BYTES}")
    if not isinstance(source, str):
        yield from source[part::parts]
        return
    spec = SourceSpec.parse(source)
    if spec.kind == "text":
        yield from _read_text(_find_files(spec), part, parts, max_document_bytes)
    elif spec.kind == "jsonl":
        yield from _read_jsonl(_find_files(spec), spec, part, parts)
    else:
        from gpt1_jax.data.tfds_source import open_tfds

        yield from open_tfds(spec.target, spec.field).read(part, parts)


def describe_source(source: Source) -> dict[str, Any]:
    """What identifies the content of a source without reading it: two that differ are not the same corpus.

    Files count by name and size, not by folder or date, so a copied corpus is the same one. `bytes` is the size of the
    whole where it is known.
    """
    if not isinstance(source, str):
        digest = hashlib.sha256()
        for text in source:
            digest.update(hashlib.sha256(text.encode("utf-8")).digest())
        size = sum(len(text.encode("utf-8")) for text in source)
        return {"kind": "list", "documents": len(source), "bytes": size, "sha256": digest.hexdigest()}
    spec = SourceSpec.parse(source)
    if spec.kind == "tfds":
        from gpt1_jax.data.tfds_source import open_tfds

        return open_tfds(spec.target, spec.field).describe()
    files = _find_files(spec)
    root = os.path.commonpath([file.parent for file in files])
    sizes = [file.stat().st_size for file in files]
    listing = "".join(f"{size} {os.path.relpath(file, root)}\n" for file, size in zip(files, sizes, strict=True))
    description = {"kind": spec.kind, "files": len(files), "bytes": sum(sizes)}
    if spec.field is not None:
        description["field"] = spec.field
    return description | {"listing_sha256": hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()}


def _split_at_last_hash(target: str) -> tuple[str, str, str]:
    head, hash_, tail = target.rpartition("#")
    return (head, hash_, tail) if hash_ else (tail, "", "")


def _find_files(spec: SourceSpec) -> list[Path]:
    """The files of a glob, sorted."""
    pattern = os.path.expanduser(spec.target)
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), "**", f"*.{_SUFFIXES[spec.kind]}")
    files = sorted({path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)})
    if not files:
        raise InputError(f"source={f'{spec.kind}:{spec.target}'!r}: no file matches{_nearest(pattern)}")
    return [Path(path) for path in files]


def _nearest(pattern: str) -> str:
    """The first part of a glob that matches nothing, and what is there instead."""
    here, parts = Path(pattern).anchor, Path(pattern).relative_to(Path(pattern).anchor).parts
    for number, name in enumerate(parts):
        if name == "**":
            continue
        matched = glob.glob(os.path.join(here, *parts[: number + 1]), recursive=True)
        if number < len(parts) - 1:
            matched = [path for path in matched if os.path.isdir(path)]
        if not matched:
            folder = os.path.join(here, *(part for part in parts[:number] if part != "**")) or "."
            is_last = number == len(parts) - 1
            return f": {_instead(folder, name, is_folder=not (is_last and Path(name).suffix))}"
    return ""


def _instead(folder: str, name: str, is_folder: bool) -> str:
    if glob.has_magic(folder):
        return f"nothing is called {name!r} in the folders {folder!r}"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return f"{folder!r} is no folder that can be read"
    if close := similar(Path(folder, name), folder=is_folder):
        return f"{folder!r} has no {name!r}; did you mean {str(close[0])!r}?"
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{folder!r} has no {name!r}; it holds {listed or 'nothing'}"


def _read_jsonl(files: list[Path], spec: SourceSpec, part: int, parts: int) -> Iterator[str]:
    assert spec.field is not None
    for number, row in enumerate(read_rows(files, columns=(spec.field,))):
        text = row.values[spec.field]
        if not isinstance(text, str):
            raise InputError(f"{row.where}: field {spec.field!r} is of JSON type {type(text).__name__}, not a string")
        if number % parts == part:
            yield text


def _read_text(files: list[Path], part: int, parts: int, max_document_bytes: int) -> Iterator[str]:
    number = 0
    for file in files:
        size = file.stat().st_size
        if size == 0:
            raise InputError(f"{file}: the file is empty; remove it or leave it out of the glob")
        if size <= max_document_bytes:
            if number % parts == part:
                yield _decode(file, file.read_bytes(), 0)
            number += 1
            continue
        with open(file, "rb") as stream:
            pieces = 0
            for offset, data in _pieces(stream, max_document_bytes):
                if number % parts == part:
                    yield _decode(file, data, offset)
                number, pieces = number + 1, pieces + 1
        logging.info("%s: longer than %d bytes, read as %d documents", file, max_document_bytes, pieces)


def _pieces(stream: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Cuts a file into pieces of at most `max_bytes`, none inside a character; gives each with its offset."""
    offset, data = 0, b""
    for block in iter(functools.partial(stream.read, max_bytes), b""):
        data += block
        while len(data) > max_bytes:
            cut = _cut(data, max_bytes)
            yield offset, data[:cut]
            offset, data = offset + cut, data[cut:]
    yield offset, data


def _cut(data: bytes, limit: int) -> int:
    """The best place at or before `limit` to end a document: a blank line, a line, a word, a character."""
    for boundary in (b"\n\n", b"\r\n\r\n", b"\n", b" "):
        at = data.rfind(boundary, limit // 2, limit)
        if at >= 0:
            return at + len(boundary)
    at = limit
    while at > limit - 4 and data[at] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        at -= 1
    return at


def _decode(file: Path, data: bytes, offset: int) -> str:
    if offset == 0:
        data_start = len(_BOM) if data.startswith(_BOM) else 0
        data, offset = data[data_start:], data_start
        if not data:
            raise InputError(
                f"{file}: the file is empty but for a byte-order mark; remove it or leave it out of the glob"
            )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}: byte 0x{data[error.start]:02x} at offset {offset + error.start} is not UTF-8; save the file as "
            "UTF-8 (for Latin-1: iconv -f latin1 -t utf-8) or leave it out of the glob"
        ) from None
