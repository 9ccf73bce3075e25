"""What every tokenizer offers, and the marker file that says which kind a folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gpt1_jax.errors import InputError
from gpt1_jax.files import read_json, write_json

MARKER = "gpt1_tokenizer.json"


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back. Implementations are immutable and can be pickled.

    Ids run from 0 to `vocab_size - 1`. The rows that fine-tuning appends (start, delimiter, extract) belong to the
    model: no tokenizer emits or decodes them.
    """

    @property
    def vocab_size(self) -> int:
        """Number of ids."""

    @property
    def document_separator(self) -> tuple[int, ...]:
        """Ids written after each document of a corpus; may be empty."""

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of all that decides the ids: equal fingerprints give equal ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without a separator."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`[encode(text) for text in texts]`, faster. Runs on one core."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a sequence of ids."""

    def save(self, directory: str | Path) -> None:
        """Writes a folder that `gpt1_jax.tokenizers.load` reads."""


def check_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """The ids of a sequence that is to be decoded.

    Raises:
      InputError: one is not in the vocabulary.
    """
    ids = [int(i) for i in ids]
    for i in ids:
        if not 0 <= i < vocab_size:
            raise InputError(f"ids: {i} is not in the vocabulary (0 to {vocab_size - 1}); leave special ids out")
    return ids


def check_tokenizer(tokenizer: Tokenizer, vocab_size: int, where: object) -> None:
    """Refuses a tokenizer that was not made for a model with this vocabulary.

    Raises:
      InputError: the sizes differ.
    """
    if tokenizer.vocab_size != vocab_size:
        raise InputError(
            f"{where}: the tokenizer has {tokenizer.vocab_size} tokens and the model vocab_size={vocab_size}; use the "
            f"tokenizer that the weights were trained with, or set model.vocab_size={tokenizer.vocab_size}"
        )


def write_marker(directory: Path, kind: str, **fields: Any) -> None:
    """Marks a folder as a tokenizer of this kind. Written last: a folder with a marker is complete."""
    write_json(directory / MARKER, {"type": kind, **fields})


def find_marker(path: str | Path) -> tuple[Path, dict[str, Any]] | None:
    """Finds the marker file in `path` (a tokenizer's folder, or a workdir with one in `tokenizer/`).

    Returns:
      The folder, and what its marker file says; None if there is none.

    Raises:
      InputError: its marker file cannot be read.
    """
    path = Path(path)
    for directory in (path, path / "tokenizer"):
        if (directory / MARKER).is_file():
            return directory, read_json(directory / MARKER, "the description of a tokenizer")
    return None
