"""The tokenizer of weights that came without one: it knows its size and says what to do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory
from gpt1_jax.tokenizers.protocol import MARKER, write_marker


@dataclass(frozen=True)
class MissingTokenizer:
    """Stands where a tokenizer would: weights load and are used on token ids, while text is refused.

    Attributes:
      vocab_size: number of ids of the model.
      where: the folder that has no tokenizer, named in the errors.
    """

    vocab_size: int
    where: str

    @property
    def document_separator(self) -> tuple[int, ...]:
        """None is known."""
        return ()

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the size; no tokenizer that encodes text has it."""
        return hashlib.sha256(b"gpt1-jax missing %d\n" % self.vocab_size).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Refused with an `InputError`."""
        self._refuse()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Refused with an `InputError`."""
        self._refuse()

    def decode(self, ids: Sequence[int]) -> str:
        """Refused with an `InputError`."""
        self._refuse()

    def save(self, directory: str | Path) -> None:
        """Writes a marker file that says that the tokenizer is missing."""
        directory = Path(directory)
        make_directory(directory, "directory")
        write_marker(directory, "missing", vocab_size=self.vocab_size)

    def _refuse(self) -> NoReturn:
        raise InputError(
            f"{self.where}: there are weights but no tokenizer, so text cannot be turned into tokens or back; put the "
            f"tokenizer's files beside the weights (OpenAI: encoder_bpe_40000.json and vocab_40000.bpe; Hugging Face: "
            f"vocab.json and merges.txt, or tokenizer.json), or give another tokenizer of {self.vocab_size} ids"
        )


def load_missing(directory: Path, marker: dict[str, Any]) -> MissingTokenizer:
    """Reads what `save` wrote; `marker` is the content of its marker file.

    Raises:
      InputError: the marker names no size.
    """
    vocab_size = marker.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise InputError(f"{directory / MARKER}: vocab_size={vocab_size!r} is no size; it is damaged, save it again")
    return MissingTokenizer(vocab_size, str(directory))
