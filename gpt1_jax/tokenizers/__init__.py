"""Tokenizers: SentencePiece, trained here or loaded, behind one protocol.

    tokenizer = train_sentencepiece(texts, "run/tokenizer", vocab_size=40_000)
    tokenizer = load("run")
    tokenizer.decode(tokenizer.encode("Once upon a time"))

A further kind is one module with a class that fulfils `Tokenizer`, and one line in `_LOADERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt1_jax.errors import InputError
from gpt1_jax.tokenizers.missing import MissingTokenizer, load_missing
from gpt1_jax.tokenizers.protocol import MARKER, Tokenizer, find_marker
from gpt1_jax.tokenizers.sentencepiece import SentencePieceTokenizer, load_sentencepiece, train_sentencepiece

__all__ = ["MARKER", "MissingTokenizer", "SentencePieceTokenizer", "Tokenizer", "load", "train_sentencepiece"]

_LOADERS: dict[str, Callable[[Path, dict[str, Any]], Tokenizer]] = {
    "missing": load_missing,
    "sentencepiece": load_sentencepiece,
}


def load(path: str | Path) -> Tokenizer:
    """Loads the tokenizer of a tokenizer's folder, or of a workdir with one in `tokenizer/`.

    Raises:
      InputError: there is none, it is damaged, or of a kind that this version does not know.
    """
    directory, marker = find_marker(path)
    kind = marker.get("type")
    if kind not in _LOADERS:
        raise InputError(f"{directory / MARKER}: type={kind!r}, known are {', '.join(sorted(_LOADERS))}")
    return _LOADERS[kind](directory, marker)
