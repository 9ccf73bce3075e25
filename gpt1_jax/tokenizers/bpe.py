"""Byte-pair encoding of words, as in GPT-1: a vocabulary of subwords and a ranked list of merges.

A word is the sequence of its characters, the last one with `</w>` at its end. The adjacent pair that is first in the
list of merges is joined wherever it stands, from left to right; then the next, until no adjacent pair is in the list
(Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", algorithm 1).

Two UTF-8 files describe it: a JSON object {subword: id}, and lines of two subwords below a `#version` line. Hugging
Face's vocab.json and merges.txt have the same form.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from dataclasses import dataclass, field

from gpt1_jax.errors import InputError

END_OF_WORD = "</w>"
NEWLINE = "\n" + END_OF_WORD
UNKNOWN = "<unk>"
UNKNOWN_ID = 0


@dataclass(frozen=True)
class BytePairs:
    """Subwords and merges.

    Attributes:
      ids: the id of each subword.
      merges: pairs of subwords, the first to be joined first.
    """

    ids: dict[str, int] = field(repr=False)
    merges: tuple[tuple[str, str], ...] = field(repr=False)

    @functools.cached_property
    def subwords(self) -> tuple[str, ...]:
        """The subword of each id. One that shares id 0 with `<unk>` is not told apart from it."""
        subwords = {index: subword for subword, index in self.ids.items()}
        if self.ids.get(UNKNOWN) == UNKNOWN_ID:
            subwords[UNKNOWN_ID] = UNKNOWN
        return tuple(subwords[index] for index in range(len(subwords)))

    @functools.cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        return {pair: rank for rank, pair in enumerate(self.merges)}

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the content, whatever the files' layout."""
        content = [sorted(self.ids.items(), key=lambda item: (item[1], item[0])), self.merges]
        return hashlib.sha256(json.dumps(content).encode("ascii")).digest()

    def encode(self, word: str) -> tuple[int, ...]:
        """The ids of a word of at least one character; `UNKNOWN_ID` for what the vocabulary lacks."""
        id_of = self.ids.get
        return tuple([id_of(subword, UNKNOWN_ID) for subword in self.split(word)])

    def split(self, word: str) -> list[str]:
        """The subwords of a word of at least one character."""
        symbols = [*word[:-1], word[-1] + END_OF_WORD]
        rank_of, none = self._ranks.get, len(self.merges)
        # The last rank is of no pair: the rank in turn is put there, so that looking for it ends there.
        ranks = [*(rank_of(pair, none) for pair in itertools.pairwise(symbols)), none]
        while (rank := min(ranks)) < none:
            ranks[-1] = rank
            joined = "".join(self.merges[rank])
            place = ranks.index(rank)
            while place < len(ranks) - 1:
                symbols[place : place + 2] = (joined,)
                del ranks[place]
                if place > 0:
                    ranks[place - 1] = rank_of((symbols[place - 1], joined), none)
                if place < len(ranks) - 1:
                    ranks[place] = rank_of((joined, symbols[place + 1]), none)
                place = ranks.index(rank, place)
            ranks[-1] = none
        return symbols


def parse(encoder: bytes, encoder_name: str, merges: bytes, merges_name: str) -> BytePairs:
    """Reads the content of the two files; their names are for the errors.

    Raises:
      InputError: one is malformed, or they do not belong together.
    """
    ids = _parse_encoder(encoder, encoder_name)
    pairs = _parse_merges(merges, merges_name)
    for number, (left, right) in enumerate(pairs, 2):
        # Single characters may be missing (they are unknown, then); longer subwords are made by merges.
        for subword in (left, right, left + right):
            if subword not in ids and len(subword.removesuffix(END_OF_WORD)) > 1:
                raise InputError(
                    f"{merges_name}, line {number}: {subword!r} of the merge {left!r} + {right!r} is not in "
                    f"{encoder_name}; the two files are of different vocabularies, or damaged"
                )
    if not any(subword.endswith(END_OF_WORD) for subword in ids):
        raise InputError(
            f"{encoder_name}: no subword ends in {END_OF_WORD!r}, so this is not a GPT-1 vocabulary (GPT-2's files "
            "have the same names); give the files of openai-gpt"
        )
    return BytePairs(ids, pairs)


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{name}, line {line}: is not UTF-8 (byte {data[error.start]:#04x}); get the original file again"
        ) from None


def _parse_encoder(data: bytes, name: str) -> dict[str, int]:
    try:
        ids = json.loads(_decode(data, name))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}, line {error.lineno}: is not JSON ({error.msg}); get the original file again"
        ) from None
    if not isinstance(ids, dict) or not ids:
        raise InputError(f"{name}: should be a JSON object from subwords to ids, not {type(ids).__name__}")
    seen: dict[int, str] = {}
    for subword, index in ids.items():
        if type(index) is not int:
            raise InputError(f"{name}: the id of {subword!r} is {index!r}; ids are integers from 0")
        # Whatever has id 0 is read as unknown, so `<unk>` may share it.
        if index in seen and not (index == UNKNOWN_ID and UNKNOWN in (subword, seen[index])):
            raise InputError(f"{name}: {seen[index]!r} and {subword!r} both have id {index}; ids must be unique")
        seen[index] = subword
    for index in range(len(seen)):
        if index not in seen:
            wrong = next(i for i in seen if not 0 <= i < len(seen))
            raise InputError(
                f"{name}: {len(seen)} ids, but no subword has id {index} while {seen[wrong]!r} has {wrong}; they must "
                f"be 0 to {len(seen) - 1}"
            )
    return ids


def _parse_merges(data: bytes, name: str) -> tuple[tuple[str, str], ...]:
    first, *lines = _decode(data, name).replace("\r\n", "\n").split("\n")
    if not first.startswith("#version"):
        raise InputError(f"{name}, line 1: is {first[:40]!r} where a list of merges has '#version: 0.2'")
    if not lines or lines[-1]:
        raise InputError(
            f"{name}, line {len(lines) + 1}: the last line has no line end, so the file may be cut short; get the "
            "original file again, or end the line if it is whole"
        )
    while lines and not lines[-1].strip():
        lines.pop()
    merges = []
    for number, line in enumerate(lines, 2):
        try:
            left, right = line.split()
        except ValueError:
            raise InputError(f"{name}, line {number}: {line[:80]!r} is no merge; it should be two subwords") from None
        merges.append((left, right))
    return tuple(merges)
