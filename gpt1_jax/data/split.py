"""Which side of the held-out split a document is on: a pure function of its text.

Documents are compared by their words (case and white space do not count), so all copies of a document fall on the same
side, whatever their order, the number of processes or the rest of the corpus.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gpt1_jax.errors import InputError

Side = Literal["train", "heldout", "excluded"]
SIDES: tuple[Side, ...] = ("train", "heldout")


def document_key(text: str) -> bytes:
    """16 bytes that are equal for texts of the same words."""
    return hashlib.blake2b(" ".join(text.split()).casefold().encode("utf-8"), digest_size=16).digest()


@dataclass(frozen=True)
class Split:
    """A held-out split.

    Attributes:
      heldout_fraction: expected share of documents that are held out, in [0, 1).
      seed: another seed holds out other documents.
      excluded: `document_key`s of documents that are in neither side: of texts to be tested on later, for example.
    """

    heldout_fraction: float = 0.01
    seed: int = 0
    excluded: frozenset[bytes] = frozenset()

    def __post_init__(self) -> None:
        if not 0 <= self.heldout_fraction < 1:
            raise InputError(f"heldout_fraction={self.heldout_fraction} must be at least 0 and below 1")

    def place(self, text: str) -> tuple[Side, float]:
        """The side of a document, and its rank in [0, 1): it is held out if that is below `heldout_fraction`."""
        key = document_key(text)
        digest = hashlib.blake2b(key, digest_size=8, salt=self.seed.to_bytes(16, "little", signed=True)).digest()
        rank = (int.from_bytes(digest, "little") >> 11) / (1 << 53)
        if key in self.excluded:
            return "excluded", rank
        return ("heldout" if rank < self.heldout_fraction else "train"), rank

    def side(self, text: str) -> Side:
        """The side of a document."""
        return self.place(text)[0]

    @functools.cached_property
    def excluded_digest(self) -> str:
        """Hex SHA-256 of the excluded documents' keys; "" if there are none."""
        return hashlib.sha256(b"".join(sorted(self.excluded))).hexdigest() if self.excluded else ""

    def training_documents(self, texts: Iterable[str]) -> Iterator[str]:
        """The documents of the side "train": those that a tokenizer may learn from.

        Raises:
          InputError: when all have been read, and none is held out; see `refuse_nothing_held_out`.
        """
        n_documents, lowest_rank = 0, 1.0
        for text in texts:
            side, rank = self.place(text)
            if side != "excluded" and text.strip():
                n_documents, lowest_rank = n_documents + 1, min(lowest_rank, rank)
            if side == "train":
                yield text
        refuse_nothing_held_out(self.heldout_fraction, n_documents, lowest_rank)


def refuse_nothing_held_out(fraction: float, n_documents: int, lowest_rank: float, again: str = "") -> None:
    """Refuses a corpus of which nothing is held out against the will of its user, who would notice hours later.

    Args:
      fraction: what is to be held out.
      n_documents: in the corpus, on both sides.
      lowest_rank: of these, see `Split.place`.
      again: what has to be done first.

    Raises:
      InputError: with a fraction that holds out one document.
    """
    if fraction == 0 or lowest_rank < fraction or n_documents == 0:
        return
    way = (
        f"raise it to {math.ceil(lowest_rank * 1000 + 1) / 1000:g} (holds out one of them), " if n_documents > 1 else ""
    )
    raise InputError(
        f"heldout_fraction={fraction}: none of the {n_documents} documents of the source is held out; {way}cut long "
        f"text files into several, or set it to 0 and evaluate on another source.{again}"
    )
