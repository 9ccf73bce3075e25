"""Token shards: a tokenised corpus on disk, memory-mapped.

    DIRECTORY/part-00000-of-00001/manifest.json
                                  train-00000.tokens.npy      uint16 or uint32 [T], documents end to end
                                  train-00000.documents.npy   int64 [n + 1, 2], where each document starts: token, byte
                                  heldout-00000.tokens.npy
                                  ...

One process writes one part (`gpt1_jax.data.prepare`); all parts together are the corpus. The manifest says what they
were made from, and has the size and the SHA-256 of every file. Each document is followed by the tokenizer's separator,
if it has one. Reading needs no tokenizer.

Opening reads the manifests and asks for the sizes of the files; `verify` reads them. Windows are read from mapped
files: what is in memory of a corpus is what the system keeps of its pages.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from gpt1_jax.data.split import SIDES
from gpt1_jax.errors import InputError
from gpt1_jax.files import nearest, read_json, sha256_of_file, write_atomically, write_json

FORMAT = 2
MANIFEST = "manifest.json"
_PART_NAME = re.compile(r"part-(\d{5})-of-(\d{5})")
_AGAIN = "delete {} and prepare the corpus again"
_REPAIR = "delete it and prepare this part again, which makes what is missing"
_MAPPED = 256  # shards that are mapped at a time: each takes a file descriptor


@dataclass(frozen=True)
class StoredFile:
    """A file of a part: its name, size and SHA-256."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def write(cls, folder: Path, name: str, array: np.ndarray) -> Self:
        """Writes an array as `.npy`, atomically."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        data = buffer.getbuffer()
        write_atomically(folder / name, data)
        return cls(name, len(data), hashlib.sha256(data).hexdigest())

    def damage(self, folder: Path, *, content: bool) -> str:
        """What is wrong with the file, or ""; its content is only read if asked."""
        path = folder / self.name
        if not path.is_file():
            return f"{path}: is missing"
        if (size := path.stat().st_size) != self.bytes:
            return f"{path}: has {size} bytes instead of {self.bytes}"
        if content and sha256_of_file(path) != self.sha256:
            return f"{path}: has other content than was written (its SHA-256 differs)"
        return ""


@dataclass(frozen=True)
class SideOfShard:
    """The training or the held-out documents of one shard."""

    tokens: StoredFile
    documents: StoredFile
    n_tokens: int
    n_documents: int
    n_bytes: int


@dataclass(frozen=True)
class Shard:
    """A run of consecutive documents of the source.

    Attributes:
      n_read: documents read from the source.
      n_empty: of these, left out because they hold nothing but white space.
      n_excluded: of these, left out because the split excludes them.
      lowest_rank: of the others; it says which fraction would hold out one of them, see `Split.place`.
      text_sha256: of the text of all of them.
      sides: "train" and "heldout", as far as they have documents.
    """

    n_read: int
    n_empty: int
    n_excluded: int
    lowest_rank: float
    text_sha256: str
    sides: Mapping[str, SideOfShard]

    @property
    def n_documents(self) -> int:
        """On both sides."""
        return sum(side.n_documents for side in self.sides.values())

    def damage(self, folder: Path, *, content: bool) -> str:
        """What is wrong with the files, or ""."""
        files = [file for side in self.sides.values() for file in (side.tokens, side.documents)]
        return next(filter(None, (file.damage(folder, content=content) for file in files)), "")


@dataclass(frozen=True)
class Manifest:
    """What one part consists of.

    Attributes:
      settings: all that decides the content: prepared again with other settings, a folder is refused.
      vocab_size: ids are below it.
      complete: whether the part's source was read to the end.
      shards: those that are finished, in order.
    """

    settings: Mapping[str, Any]
    vocab_size: int
    complete: bool
    shards: tuple[Shard, ...]

    def write(self, folder: Path) -> None:
        """Writes `manifest.json`, atomically."""
        write_json(folder / MANIFEST, {"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Reads `manifest.json`; None if there is none.

        Raises:
          InputError: it is damaged, or another version wrote it.
        """
        path = folder / MANIFEST
        if not path.is_file():
            return None
        content = read_json(path, "the manifest of token shards")
        if content.pop("format", None) != FORMAT:
            raise InputError(f"{path}: is not of format {FORMAT}, the one this version reads; {_AGAIN.format(folder)}")
        try:
            shards = tuple(_shard_from_json(shard) for shard in content.pop("shards"))
            return cls(**content, shards=shards)
        except (TypeError, KeyError) as error:
            raise InputError(f"{path}: is damaged ({error}); {_AGAIN.format(folder)}") from None


def _shard_from_json(shard: dict[str, Any]) -> Shard:
    sides = {
        name: SideOfShard(**side | {key: StoredFile(**side[key]) for key in ("tokens", "documents")})
        for name, side in shard.pop("sides").items()
    }
    return Shard(**shard, sides=sides)


def part_folder(directory: Path, part: int, parts: int) -> Path:
    """Where part number `part` of `parts` is."""
    return directory / f"part-{part:05d}-of-{parts:05d}"


def find_parts(directory: Path) -> list[tuple[Path, int, int]]:
    """The folders of the parts that are there, complete or not, each with its number and the number of parts."""
    found = []
    for folder in sorted(directory.iterdir()) if directory.is_dir() else ():
        if match := _PART_NAME.fullmatch(folder.name):
            found.append((folder, int(match[1]), int(match[2])))
    return found


def unfinished_parts(folders: Sequence[tuple[Path, int, int]]) -> tuple[list[int], int]:
    """Of the folders that `find_parts` gives, at least one: which parts are missing or not complete, and of how many.

    Raises:
      InputError: they are of different numbers of parts.
    """
    counts = sorted({parts for _, _, parts in folders})
    if len(counts) > 1:
        found = " and one in ".join(map(str, counts))
        raise InputError(
            f"directory={str(folders[0][0].parent)!r}: holds a corpus in {found} parts; {_AGAIN.format('it')}"
        )
    [parts] = counts
    manifests = {part: Manifest.read(folder) for folder, part, _ in folders}
    return [part for part in range(parts) if (manifest := manifests.get(part)) is None or not manifest.complete], parts


def read_parts(directory: str | Path) -> list[tuple[Path, Manifest]]:
    """The folders and manifests of all parts, in order.

    Raises:
      InputError: there are none, or some are missing, unfinished or made with other settings.
    """
    directory = Path(directory)
    folders = find_parts(directory)
    if not folders:
        hint = "; prepare a corpus there first" if directory.exists() else nearest(directory)
        raise InputError(f"directory={str(directory)!r}: holds no token shards{hint}")
    unfinished, parts = unfinished_parts(folders)
    if unfinished:
        which = f"part {', '.join(map(str, unfinished))} of {parts} (counted from 0)"
        raise InputError(
            f"directory={str(directory)!r}: {which} is missing or not finished; prepare it with "
            "launch/prepare.py, which goes on where it stopped"
        )
    ordered = [(folder, manifest) for folder, _, _ in folders if (manifest := Manifest.read(folder)) is not None]
    for folder, manifest in ordered:
        if manifest.settings != ordered[0][1].settings:
            raise InputError(
                f"{folder}: was prepared with other settings than {ordered[0][0].name}; {_AGAIN.format('it')}"
            )
    return ordered


@dataclass(frozen=True, eq=False)
class TokenShards:
    """One side of a tokenised corpus: a stream of N tokens over all its shards.

    Attributes:
      directory: where it is.
      side: "train" or "heldout".
      vocab_size: ids are below it.
      fingerprint: of the tokenizer that made the ids.
      shards: with the folder of each; only those that have documents of this side.
    """

    directory: Path
    side: str
    vocab_size: int
    fingerprint: str
    shards: Sequence[tuple[Path, SideOfShard]]

    @classmethod
    def open(cls, directory: str | Path, side: str = "train") -> Self:
        """Opens a prepared corpus. Missing, cut and unreadable files are noticed here, other content by `verify`.

        Raises:
          InputError: it is not there, not finished or damaged, or no document is on this side.
        """
        directory = Path(directory)
        if side not in SIDES:
            raise InputError(f"side={side!r} must be one of {', '.join(SIDES)}")
        parts = read_parts(directory)
        shards = [(folder, shard.sides[side]) for folder, part in parts for shard in part.shards if side in shard.sides]
        manifest = parts[0][1]
        if not shards:
            kept = sum(side.n_documents for _, part in parts for shard in part.shards for side in shard.sides.values())
            raise InputError(
                f"directory={str(directory)!r}: none of its {kept} documents is on the side {side!r} (prepared with "
                f"heldout_fraction={manifest.settings['heldout_fraction']}); delete it and prepare it with another"
            )
        corpus = cls(directory, side, manifest.vocab_size, manifest.settings["tokenizer"], shards)
        corpus._check(content=False)
        return corpus

    @functools.cached_property
    def n_tokens(self) -> int:
        """Tokens, separators included."""
        return sum(shard.n_tokens for _, shard in self.shards)

    @functools.cached_property
    def n_documents(self) -> int:
        """Documents."""
        return sum(shard.n_documents for _, shard in self.shards)

    @functools.cached_property
    def n_bytes(self) -> int:
        """UTF-8 bytes of the raw text, before the tokenizer's normalisation."""
        return sum(shard.n_bytes for _, shard in self.shards)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop - 1` of the stream: uint16 or uint32 [stop - start].

        Raises:
          IndexError: the stream has no such tokens.
          InputError: what is stored there are no tokens of this vocabulary.
        """
        if not 0 <= start <= stop <= self.n_tokens:
            raise IndexError(f"tokens {start} to {stop} of a stream of {self.n_tokens}")
        pieces = []
        for index in range(int(np.searchsorted(self._starts, start, side="right")) - 1, len(self.shards)):
            first = int(self._starts[index])
            if first >= stop:
                break
            pieces.append(self._tokens(index)[max(start - first, 0) : stop - first])
            if pieces[-1].max(initial=0) >= self.vocab_size:  # a model would take it for another id
                folder, shard = self.shards[index]
                raise InputError(f"{folder / shard.tokens.name}: has ids of no token, so it was changed; {_REPAIR}")
        return np.concatenate(pieces) if pieces else np.empty(0, self._tokens(0).dtype)

    def bytes_before(self, positions: np.ndarray) -> np.ndarray:
        """How many bytes of raw text the tokens before each position stand for: float64, like `positions`.

        Exact where documents start and end; inside a document it is taken in proportion.
        """
        tokens, text = self._document_starts
        return np.interp(positions, tokens, text)

    def verify(self) -> None:
        """Reads every file and compares it with its checksum.

        Raises:
          InputError: one differs; the message names it.
        """
        self._check(content=True)

    def _check(self, *, content: bool) -> None:
        for folder, shard in self.shards:
            for file in (shard.tokens, shard.documents):
                if damage := file.damage(folder, content=content):
                    raise InputError(f"{damage}; {_REPAIR}")
            if not content:
                _load(folder, shard.tokens, (shard.n_tokens,))
                _load(folder, shard.documents, (shard.n_documents + 1, 2))

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """Int64 [shards + 1]: the position in the stream at which each shard starts."""
        return np.cumsum([0] + [shard.n_tokens for _, shard in self.shards])

    @functools.cached_property
    def _tokens(self) -> Callable[[int], np.ndarray]:
        """Number of a shard -> its tokens, mapped. The latest few stay so."""
        return functools.lru_cache(_MAPPED)(self._map)

    def _map(self, index: int) -> np.ndarray:
        folder, shard = self.shards[index]
        return _load(folder, shard.tokens, (shard.n_tokens,))

    @functools.cached_property
    def _document_starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Two int64 [documents + 1]: token and byte at which each document of the stream starts, and the ends.

        16 bytes a document stay in memory; nothing asks for them of the training side.
        """
        starts, origin = [], np.zeros(2, np.int64)
        for folder, shard in self.shards:
            table = _load(folder, shard.documents, (shard.n_documents + 1, 2)) + origin
            starts.append(table[:-1])
            origin = table[-1]
        return tuple(np.concatenate([*starts, origin[None]]).T)


def _load(folder: Path, file: StoredFile, shape: tuple[int, ...]) -> np.ndarray:
    """The array of a file, mapped: only its first bytes, which say of what shape it is, are read."""
    path = folder / file.name
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, SyntaxError, tokenize.TokenError):  # how NumPy reads a header that is none
        array = None
    if array is None or array.shape != shape or array.dtype.kind not in "iu":
        raise InputError(f"{path}: has another header than was written; {_REPAIR}")
    return array
