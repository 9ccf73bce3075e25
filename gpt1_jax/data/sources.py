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

Part i of n is a run of consecutive documents: those that start in the i-th of n equal stretches of all the bytes (of
all the examples of TFDS). Only these bytes are read, also where they are in the middle of a file, and the parts one
after another are the whole.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from absl import logging

from gpt1_jax.data.tables import check_columns, check_file, check_is_text, line_number, parse_object, read_lines_from
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


class Document(NamedTuple):
    """A document, and how much of the source it takes up, in the unit of its `OpenSource`."""

    text: str
    size: int


@dataclass(frozen=True)
class OpenSource:
    """A source that is there.

    Attributes:
      size: of the whole: bytes of its files, with all that is around the text, or a number of documents.
      unit: which of the two.
      read: (part, parts) -> the documents of that part.
    """

    size: int
    unit: Literal["B", "documents"]
    read: Callable[[int, int], Iterator[Document]]


def open_source(source: Source, *, max_document_bytes: int = MAX_DOCUMENT_BYTES) -> OpenSource:
    """Finds the files of a source.

    Raises:
      InputError: no file, an empty one, or a data set that is not there. Reading raises it for invalid UTF-8, bad JSON
        and a missing field. The message says where and what to do.
    """
    if max_document_bytes < _MIN_DOCUMENT_BYTES:
        raise InputError(f"max_document_bytes={max_document_bytes} must be at least {_MIN_DOCUMENT_BYTES}")
    if not isinstance(source, str):
        sizes = [len(text.encode("utf-8")) for text in source]
        pairs = list(map(Document, source, sizes))
        return OpenSource(sum(sizes), "B", lambda part, parts: iter(pairs[_share(len(pairs), part, parts)]))
    spec = SourceSpec.parse(source)
    if spec.kind == "tfds":
        from gpt1_jax.data.tfds_source import open_tfds

        examples = open_tfds(spec.target, spec.field)
        size = len(examples)
        return OpenSource(
            size,
            "documents",
            lambda part, parts: (Document(text, 1) for text in examples.read(_share(size, part, parts))),
        )
    files = [(file, file.stat().st_size) for file in _find_files(spec)]
    for file, size in files:
        if size == 0:
            raise InputError(f"{file}: the file is empty; remove it or leave it out of the glob")

    def read(part: int, parts: int) -> Iterator[Document]:
        for file, size, stretch in _stretches(files, part, parts):
            if spec.kind == "text":
                yield from _read_text(file, size, stretch, max_document_bytes)
            else:
                yield from _read_jsonl(file, size, stretch, spec.field or "text")

    return OpenSource(sum(size for _, size in files), "B", read)


def read_documents(
    source: Source, *, part: int = 0, parts: int = 1, max_document_bytes: int = MAX_DOCUMENT_BYTES
) -> Iterator[str]:
    """The documents of a source, or of part number `part` of `parts`.

    Raises:
      InputError: while iterating, see `open_source`.
    """
    if not 0 <= part < parts:
        raise InputError(f"part={part} must be from 0 to parts - 1 = {parts - 1}")
    for document in open_source(source, max_document_bytes=max_document_bytes).read(part, parts):
        yield document.text


def sample_documents(source: Source, n_bytes: int, *, max_document_bytes: int = MAX_DOCUMENT_BYTES) -> Iterator[str]:
    """Documents from all over a source, for about `n_bytes`; all of a source that is not larger.

    The first documents of each of equal stretches: no more is read than is given, and the same ones every time. Of a
    source whose bytes are not known (TFDS), all.

    Raises:
      InputError: while iterating, see `open_source`.
    """
    opened = open_source(source, max_document_bytes=max_document_bytes)
    n_places = max(1, n_bytes // max_document_bytes)
    if opened.unit != "B" or opened.size <= n_bytes:
        yield from (document.text for document in opened.read(0, 1))
        return
    logging.info("a sample of %.3g of %.3g MB, from %d places", n_bytes / 1e6, opened.size / 1e6, n_places)
    for place in range(n_places):
        left = n_bytes // n_places
        for document in opened.read(place, n_places):
            yield document.text
            left -= document.size
            if left <= 0:
                break


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


def _share(n: int, part: int, parts: int) -> slice:
    """The part of n things."""
    return slice(n * part // parts, n * (part + 1) // parts)


class _Stretch(NamedTuple):
    """Bytes `start` to `stop - 1` of a file."""

    start: int
    stop: int


def _stretches(files: list[tuple[Path, int]], part: int, parts: int) -> Iterator[tuple[Path, int, _Stretch]]:
    """The files (with their sizes) that a part of all their bytes touches, and which stretch of each it has."""
    share = _share(sum(size for _, size in files), part, parts)
    origin = 0
    for file, size in files:
        start, stop = max(share.start - origin, 0), min(share.stop - origin, size)
        if start < stop:
            yield file, size, _Stretch(start, stop)
        origin += size


def _read_jsonl(file: Path, size: int, stretch: _Stretch, field: str) -> Iterator[Document]:
    """The lines that start in a stretch of a file."""
    check_file(file)
    rows = blank = 0
    for line in read_lines_from(file, *stretch):
        if not line.text.strip(" \t\r\n"):
            blank += 1
            continue
        try:
            text = _field(line.text, field)
        except InputError as error:  # the number of a line in the middle of a file has to be counted
            raise InputError(f"{file}:{line_number(file, line.offset)}{error}") from None
        rows += 1
        yield Document(text, line.size)
    if rows == 0 and stretch == (0, size):
        raise InputError(f"{file}: the file is empty; at least one row is needed")
    if blank:
        logging.info("%s: %d rows, %d blank lines skipped", file, rows, blank)


def _field(line: str, field: str) -> str:
    """The text of a line. Messages are without their beginning, which says where it is."""
    values = parse_object("", line)
    check_columns("", values, (field,), "the object has")
    text = values[field]
    if not isinstance(text, str):
        raise InputError(f": field {field!r} is of JSON type {type(text).__name__}, not a string")
    return text


def _read_text(file: Path, size: int, stretch: _Stretch, max_document_bytes: int) -> Iterator[Document]:
    """The documents that start in a stretch of a file: itself, or pieces of a long one."""
    if size <= max_document_bytes:
        if stretch.start == 0:
            yield Document(_decode(file, file.read_bytes(), 0), size)
        return
    if stretch.start == 0:
        logging.info("%s: longer than %d bytes, read as several documents", file, max_document_bytes)
    with open(file, "rb") as stream:
        for start, stop in _pieces(stream, size, stretch, max_document_bytes):
            stream.seek(start)
            yield Document(_decode(file, stream.read(stop - start), start), stop - start)


def _pieces(stream: BinaryIO, size: int, stretch: _Stretch, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Where the pieces that start in a stretch start and stop.

    The places at which a file is cut depend on the bytes around them alone, so that a part need not read what is
    before it: cut number k is the best place among the last `reach` before k * `step`.
    """
    step, reach = 3 * max_bytes // 5, 2 * max_bytes // 5  # no piece is longer than both
    number = stretch.start // step  # the first cut that can be in the stretch; it may be before it
    start = _cut(stream, number * step, reach)
    while start < stretch.stop:
        number += 1
        stop = _cut(stream, number * step, reach) if number * step < size else size
        if start >= stretch.start:
            yield start, stop
        if stop == size:
            return
        start = stop


def _cut(stream: BinaryIO, limit: int, reach: int) -> int:
    """The best place among the last `reach` at or before `limit` to end a document: a blank line, a line, a word, a
    character.
    """
    if limit == 0:
        return 0
    stream.seek(limit - reach)
    data = stream.read(reach + 1)
    for boundary in (b"\n\n", b"\r\n\r\n", b"\n", b" "):
        at = data.rfind(boundary, 0, reach)
        if at >= 0:
            return limit - reach + at + len(boundary)
    at = reach
    while at > reach - 4 and data[at] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        at -= 1
    return limit - reach + at


def _decode(file: Path, data: bytes, offset: int) -> str:
    if offset == 0:
        check_is_text(file, data)
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
