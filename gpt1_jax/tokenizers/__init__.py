"""Tokenizers: SentencePiece, trained here or loaded, and the original byte-pair encoding, behind one protocol.

    tokenizer = train_sentencepiece(texts, "run/tokenizer", vocab_size=40_000)
    tokenizer = load("run")
    tokenizer.decode(tokenizer.encode("Once upon a time"))

A further kind is one module with a class that fulfils `Tokenizer`, and one line in `_LOADERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import logging

from gpt1_jax.errors import InputError
from gpt1_jax.files import is_address, nearest
from gpt1_jax.mirror import copy_of
from gpt1_jax.tokenizers.missing import MissingTokenizer, load_missing
from gpt1_jax.tokenizers.openai import APPROXIMATE, EXACT, OpenAITokenizer, load_openai, with_variant
from gpt1_jax.tokenizers.openai_files import SPECIAL_TOKENS, find_files
from gpt1_jax.tokenizers.protocol import MARKER, Tokenizer, find_marker
from gpt1_jax.tokenizers.sentencepiece import SentencePieceTokenizer, load_sentencepiece, train_sentencepiece

__all__ = [
    "MARKER",
    "SPECIAL_TOKENS",
    "MissingTokenizer",
    "OpenAITokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "find",
    "load",
    "train_sentencepiece",
]

_LOADERS: dict[str, Callable[[Path, dict[str, Any]], Tokenizer]] = {
    "missing": load_missing,
    "openai": load_openai,
    "sentencepiece": load_sentencepiece,
}


def load(path: str | Path, variant: str | None = None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
      path: a tokenizer's folder, a workdir with one in `tokenizer/`, a folder with OpenAI's encoder_bpe_40000.json and
        vocab_40000.bpe (or one whose folder `model/` has them), or a folder of Hugging Face's GPT-1.
      variant: of the original tokenizer, "exact" or "approximate", which needs neither ftfy nor spaCy and gives other
        ids for some words. By default the one that was saved, and the exact one for OpenAI's and Hugging Face's files.

    Raises:
      InputError: there is none, it is damaged, or of a kind or variant that this version does not know.
    """
    tokenizer = find(path, variant)
    if tokenizer is None:
        if not is_address(path) and not Path(path).exists() and (hint := nearest(path)):
            raise InputError(f"tokenizer={str(path)!r}: there is no such folder{hint}")
        raise InputError(
            f"tokenizer={str(path)!r}: {'has' if Path(path).is_dir() else 'is no folder, so there is'} no {MARKER} "
            f"(nor tokenizer/{MARKER}), no *encoder_bpe*.json with *vocab*.bpe (nor in model/), no vocab.json with "
            "merges.txt and no tokenizer.json; give a folder that `train_sentencepiece` or `Tokenizer.save` wrote, the "
            "workdir of a run, OpenAI's folder, or one of Hugging Face's GPT-1"
        )
    return tokenizer


def find(path: str | Path, variant: str | None = None) -> Tokenizer | None:
    """Loads a tokenizer as `load` does, but returns None for a folder without any.

    Raises:
      InputError: there is one, but damaged, or of a kind or variant that this version does not know.
    """
    tokenizer: Tokenizer
    path = copy_of(path)
    if marked := find_marker(path):
        directory, marker = marked
        kind = marker.get("type")
        if kind not in _LOADERS:
            raise InputError(f"{directory / MARKER}: type={kind!r}, known are {', '.join(sorted(_LOADERS))}")
        tokenizer = _LOADERS[kind](directory, marker)
    elif files := find_files(Path(path)):
        tokenizer = OpenAITokenizer(files)
        tokenizer.vocab_size  # noqa: B018  # malformed files are reported here, not at the first use
    else:
        return None
    if variant is not None:
        tokenizer = with_variant(tokenizer, variant)
    if isinstance(tokenizer, OpenAITokenizer) and tokenizer.variant == APPROXIMATE:
        logging.log_first_n(
            logging.WARNING,
            "The approximate tokenizer gives other ids than the original for some words (0.11 %% of them in film "
            "reviews): results are not comparable with the paper's. The exact one is variant=%r.",
            1,
            EXACT,
        )
    return tokenizer
