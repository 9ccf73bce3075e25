"""Rows from CSV, TSV and JSONL files, each with the file and the line it came from.

The rule: every byte of a file ends up in a row, or in an `InputError` that names the file and the line. What is read:

- UTF-8, with or without a byte-order mark. Invalid UTF-8, UTF-16 and NUL are errors.
- Lines end in LF or CRLF. Line ends *inside* a quoted field are kept as they are. A lone CR outside quotes is an
  error.
- `.csv`: comma, fields optionally in double quotes, a quote inside a quoted field is doubled. `.tsv`: the same with a
  tab, but a quoted field may not span lines: most such files are unquoted text in which a stray quote would swallow
  the lines up to the next one. `quoting="csv"` allows it. With `quoting="none"` quotes (and a lone CR) are ordinary
  characters, and a row is a line.
- The first row names the columns, unless `header` does. Every row has as many fields as there are columns; where some
  have not, `repair` leaves out these rows, or their surplus fields, and the log counts them.
- `.jsonl`: one JSON object per line, keys unique.
- Blank lines carry no data: skipped and counted in the log.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from absl import logging

from gpt1_jax.errors import InputError, MissingColumn, did_you_mean
from gpt1_jax.files import nearest

Format = Literal["csv", "tsv", "jsonl"]
Quoting = Literal["csv", "none"]
Repair = Literal["drop_rows", "drop_fields"]
SUFFIXES = (".csv", ".tsv", ".jsonl")

_BOM = b"\xef\xbb\xbf"
_NO_TEXT = {  # how files begin that are not UTF-8, and what to do about them
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
    b"\x1f\x8b": "compressed by gzip; unpack it first (gunzip)",
    b"BZh": "compressed by bzip2; unpack it first (bunzip2)",
    b"\xfd7zXZ\0": "compressed by xz; unpack it first (unxz)",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first (unzstd)",
    b"PK\x03\x04": "a zip archive, such as spreadsheets are; unpack it, or export it as CSV in UTF-8",
    b"PAR1": "Parquet; convert it first (pandas: read_parquet, to_json with orient='records' and lines=True)",
}
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")  # NUL, or half of a surrogate pair


class Row(NamedTuple):
    """One row: `values` maps column names to a string (CSV, TSV) or to any JSON value (JSONL)."""

    path: str
    line: int  # 1-based; the first line of a row that spans several
    values: dict[str, Any]
    part: str = ""  # which one, where several rows come from a line

    @property
    def where(self) -> str:
        """`file:line`, for messages."""
        return f"{self.path}:{self.line}{self.part and f' ({self.part})'}"


def read_rows(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Iterable[str] = (),
    header: Sequence[str] | None = None,
    quoting: Quoting | None = None,
    format: Format | None = None,
    repair: Repair | None = None,
) -> Iterator[Row]:
    """Reads the rows of one file or of several, in order; the format follows each file's suffix.

    Args:
      paths: `.csv`, `.tsv` or `.jsonl` files.
      columns: columns that have to be there (others may be).
      header: the column names of CSV/TSV files that do not have them in their first row.
      quoting: for CSV/TSV: "csv" or "none", see the module; None is "csv", with the caution said there for `.tsv`.
      format: "csv", "tsv" or "jsonl" for files whose suffix says something else.
      repair: for CSV/TSV rows of a wrong number of fields: "drop_rows" leaves them out, "drop_fields" the fields
        beyond the last column; both count and log. None refuses them.

    Raises:
      InputError: at once for a missing file, a wrong suffix or a file listed twice; while iterating for an empty
        file, a damaged row or a missing column.
    """
    if isinstance(paths, str | os.PathLike):
        paths = (paths,)
    if format not in (None, "csv", "tsv", "jsonl"):
        raise InputError(f"format={format!r}: allowed are 'csv', 'tsv', 'jsonl' and None")
    files = [check_file(path, any_suffix=format is not None) for path in paths]
    if not files:
        raise InputError(f"paths: no file given; give one or more {', '.join(SUFFIXES)} files")
    for i, file in enumerate(files):
        if file.resolve() in {other.resolve() for other in files[:i]}:
            raise InputError(f"{file}: listed twice, which would count its rows twice; list it once")
    if quoting not in (None, "csv", "none"):
        raise InputError(f"quoting={quoting!r}: allowed are 'csv', 'none' and None")
    if repair not in (None, "drop_rows", "drop_fields"):
        raise InputError(f"repair={repair!r}: allowed are 'drop_rows', 'drop_fields' and None")
    formats = [format or file.suffix.lower()[1:] for file in files]
    return _read_files(files, formats, tuple(columns), None if header is None else list(header), quoting, repair)


def check_file(path: str | os.PathLike[str], *, any_suffix: bool = False) -> Path:
    """Returns `path` if it is a readable file with a known suffix, or with any.

    Raises:
      InputError: otherwise; a missing file comes with the nearest name that exists.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the {', '.join(SUFFIXES)} files in it")
    if not path.exists():
        raise InputError(f"{path}: no such file{nearest(path)}")
    if path.suffix.lower() not in SUFFIXES and not any_suffix:
        raise InputError(f"{path}: suffix {path.suffix!r} is not one of {', '.join(SUFFIXES)}; convert or rename it")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: no permission to read it")
    return path


def _read_files(
    files: Sequence[Path],
    formats: Sequence[str],
    columns: tuple[str, ...],
    header: list[str] | None,
    quoting: Quoting | None,
    repair: Repair | None,
) -> Iterator[Row]:
    for file, format_ in zip(files, formats, strict=True):
        if format_ == "jsonl":
            yield from _read_jsonl(file, columns)
        else:
            yield from _read_delimited(file, format_ == "tsv", columns, header, quoting, repair)


class Line(NamedTuple):
    """A line with its line end, and the bytes of the file that it is."""

    offset: int
    size: int
    text: str


def read_lines(path: Path) -> Iterator[str]:
    """The decoded lines of a file with their line ends, split at LF only.

    Raises:
      InputError: that names the line, for what is not UTF-8 text.
    """
    return (line.text for line in read_lines_from(path))


def read_lines_from(path: Path, start: int = 0, stop: int | None = None) -> Iterator[Line]:
    """The lines of a file that start at the bytes `start` to `stop - 1`; no other is read.

    Raises:
      InputError: as `read_lines`.
    """
    with open(path, "rb") as file:
        if start > 0:
            file.seek(start - 1)
            start += len(file.readline()) - 1  # to the end of the line that is there
        for raw in file:
            if stop is not None and start >= stop:
                return
            data = raw
            if start == 0:
                check_is_text(path, raw)
                data = raw.removeprefix(_BOM)
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}:{line_number(path, start)}: byte 0x{data[error.start]:02x} at position {error.start + 1} "
                    "of the line is not UTF-8; save the file as UTF-8 (for Latin-1: iconv -f latin1 -t utf-8)"
                ) from None
            if "\0" in text:
                raise InputError(f"{path}:{line_number(path, start)}: a NUL character; the file is damaged or not text")
            yield Line(start, len(raw), text)
            start += len(raw)


def check_is_text(path: Path, beginning: bytes) -> None:
    """Refuses a file that begins as one of another encoding or format does.

    Raises:
      InputError: with what to do about it.
    """
    for mark, what in _NO_TEXT.items():
        if beginning.startswith(mark):
            raise InputError(f"{path}:1: the file is {what}")


def line_number(path: Path, offset: int) -> int:
    """The number, from 1 on, of the line with a byte of a file; what is before it is read."""
    number = 1
    with open(path, "rb") as file:
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            number += block.count(b"\n")
            offset -= len(block)
    return number


def _read_delimited(
    path: Path,
    is_tsv: bool,
    columns: tuple[str, ...],
    header: list[str] | None,
    quoting: Quoting | None,
    repair: Repair | None,
) -> Iterator[Row]:
    hint = "" if quoting == "none" else '; if quotes are ordinary characters in this file, use quoting="none"'
    names = header
    if names is not None:
        _check_header(path, 0, names, columns)
    blank = rows = 0
    repaired: list[int] = []
    records = _split_lines(path, is_tsv) if quoting == "none" else _read_quoted(path, is_tsv, quoting, hint)
    for line, cells in records:
        if not cells:
            blank += 1
            continue
        if names is None:
            names = cells
            _check_header(path, line, names, columns)
            continue
        if len(cells) != len(names):
            surplus = len(cells) > len(names)
            if repair is None or (repair == "drop_fields" and not surplus):
                raise InputError(
                    f"{path}:{line}: too {'many' if surplus else 'few'} columns: {len(cells)} where the header has "
                    f"{len(names)} ({_listed(names)}); quote fields that contain the delimiter{hint}"
                )
            repaired.append(line)
            if repair == "drop_rows":
                continue
        rows += 1
        yield Row(str(path), line, dict(zip(names, cells, strict=False)))
    if names is not None and repaired and not rows:
        raise InputError(
            f"{path}:{repaired[0]}: none of the {len(repaired)} rows has {len(names)} fields ({_listed(names)})"
        )
    if names is not None and repaired:
        what = "rows left out" if repair == "drop_rows" else "rows lost their surplus fields"
        first = ", ".join(map(str, repaired[:10])) + (", ..." if len(repaired) > 10 else "")
        logging.warning("%s: %d %s for not having %d fields: line %s", path, len(repaired), what, len(names), first)
    _finish(path, rows, blank, has_header=names is not None and header is None)


def _split_lines(path: Path, is_tsv: bool) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each line of a file without quotes; no fields for an empty line."""
    for number, line in enumerate(read_lines(path), 1):
        line = line.removesuffix("\n").removesuffix("\r")
        yield number, line.split("\t" if is_tsv else ",") if line else []


def _read_quoted(path: Path, is_tsv: bool, quoting: Quoting | None, hint: str) -> Iterator[tuple[int, list[str]]]:
    """First line and fields of each record of a file whose fields may be in quotes; no fields for an empty line."""
    # The limit is one number per process, far below a long document; it is only ever raised here.
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))
    reader = csv.reader(read_lines(path), delimiter="\t" if is_tsv else ",", strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{path}:{line}: {_explain(str(error))}{hint}") from None
        if is_tsv and quoting is None and reader.line_num > line:
            raise InputError(
                f"{path}:{line}: a quoted field runs on to line {reader.line_num}; in a .tsv file say which is meant: "
                'quoting="csv" (fields may span lines) or quoting="none" (quotes are ordinary characters)'
            )
        yield line, cells


def _explain(error: str) -> str:
    """The csv module's errors in terms of the file."""
    if "unexpected end of data" in error:
        return "a quoted field is opened here or in a later line and never closed"
    if "expected after" in error:
        return "text after a closing quote; a quote inside a quoted field is written twice"
    if "new-line character" in error:
        return "a carriage return in the middle of a line; end lines with LF or CRLF, or quote the field"
    return error


def _check_header(path: Path, line: int, names: list[str], columns: tuple[str, ...]) -> None:
    where = f"{path}:{line}" if line else f"{path}: header"
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise InputError(f"{where}: duplicate column names {_listed(duplicates)}; rename them")
    check_columns(where, names, columns, "the header has")


def check_columns(where: str, names: Iterable[str], columns: tuple[str, ...], has: str) -> None:
    """Refuses names among which one of `columns` is missing; `where` and `has` are the beginning of its two halves.

    Raises:
      InputError: with the nearest name.
    """
    names = list(names)
    for column in columns:
        if column not in names:
            known = f"{has} {_listed(names)}{did_you_mean(column, names)}{_other_separator(names)}"
            raise MissingColumn(f"{where}: no column {column!r}; {known}", column)


def _other_separator(names: Sequence[str]) -> str:
    """A hint where a header looks like one that another character divides."""
    if len(names) == 1 and ";" in names[0]:
        return "; the file has semicolons between its fields: save it with commas"
    if len(names) == 1 and "\t" in names[0]:
        return "; the file has tabs between its fields: call it .tsv, or say format='tsv'"
    return ""


def _listed(names: Sequence[str], limit: int = 20) -> str:
    shown = ", ".join(repr(name if len(name) <= 60 else name[:57] + "...") for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _read_jsonl(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    blank = rows = 0
    for line, text in enumerate(read_lines(path), 1):
        if not text.strip(" \t\r\n"):
            blank += 1
            continue
        where = f"{path}:{line}"
        values = parse_object(where, text)
        check_columns(where, values, columns, "the object has")
        rows += 1
        yield Row(str(path), line, values)
    _finish(path, rows, blank, has_header=False)


def parse_object(where: str, text: str) -> dict[str, Any]:
    """Parses one JSON object with unique keys and real numbers.

    Raises:
      InputError: that starts with `where`, for anything else.
    """
    try:
        values = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        if _SUSPECT_ESCAPE.search(text):
            _check_characters(values)
    except RecursionError:
        raise InputError(f"{where}: nested too deeply to be a row") from None
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise InputError(f"{where}: not JSON: {what} at column {error.pos + 1}; one object per line") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f'{where}: a JSON {type(values).__name__}, not an object such as {{"text": "..."}}')
    return values


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate keys {_listed(sorted({key for key in keys if keys.count(key) > 1}))}; keep one")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON; write null or a number")


def _check_characters(value: Any) -> None:
    """Refuses strings that are no text: NUL, and surrogates that do not pair up (neither can be written as UTF-8)."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a NUL character (\\u0000); remove it")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("half of a surrogate pair (\\ud800-\\udfff) on its own; the text is damaged")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_characters(key)
            _check_characters(item)
    elif isinstance(value, list):
        for item in value:
            _check_characters(item)


def _finish(path: Path, rows: int, blank: int, *, has_header: bool) -> None:
    if rows == 0:
        what = "has a header and no rows" if has_header else "is empty"
        raise InputError(f"{path}: the file {what}; at least one row is needed")
    if blank:
        logging.info("%s: %d rows, %d blank lines skipped", path, rows, blank)
