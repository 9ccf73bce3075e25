"""The recorded texts, the toy and the original vocabulary, and the original's steps one after another."""

import functools
import importlib.metadata
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt1_jax import tokenizers
from gpt1_jax.tokenizers import OpenAITokenizer
from gpt1_jax.tokenizers.words import standardize


@pytest.fixture(scope="session")
def recorded(goldens: Path) -> dict[str, Any]:
    """The content of tokenizer.json."""
    return json.loads((goldens / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def cases(recorded: dict[str, Any]) -> list[dict[str, Any]]:
    """Texts with every step's result, as the installed ftfy and spaCy should give it.

    A text on which releases differ is there if the installed ones are those that gave its "modern" results.
    """
    modern = recorded["versions"]["modern"]
    installed = all(importlib.metadata.version(name) == modern[name] for name in ("ftfy", "spacy"))
    usable = (case for case in recorded["cases"] if case["stable"] or ("modern" in case and installed))
    return [{**case, **case.get("modern", {})} for case in usable]


@pytest.fixture(scope="session")
def toy(goldens: Path) -> OpenAITokenizer:
    """The goldens' own small vocabulary."""
    return tokenizers.load(goldens)


@pytest.fixture(scope="session")
def original() -> OpenAITokenizer:
    """The original vocabulary, which the tests do not come with."""
    folder = os.environ.get("GPT1_OPENAI_DIR")
    if not folder:
        pytest.skip("needs GPT1_OPENAI_DIR, a folder with encoder_bpe_40000.json and vocab_40000.bpe")
    return tokenizers.load(folder)


@pytest.fixture(scope="session")
def plain_words() -> Callable[[str], list[str]]:
    """ftfy, standardisation and spaCy on the text as a whole."""
    import ftfy
    import spacy

    english = spacy.blank("en")
    english.max_length = 1 << 30
    return lambda text: [token.text for token in english(standardize(ftfy.fix_text(text)))]


@pytest.fixture(scope="session")
def plain_encode(plain_words: Callable[[str], list[str]]) -> Callable[[OpenAITokenizer, str], list[int]]:
    """The original's ids, the slow way: the first pair of all in the word is joined everywhere, again and again."""

    @functools.cache
    def ranks_of(tokenizer: OpenAITokenizer) -> dict[tuple[str, ...], int]:
        return {pair: rank for rank, pair in enumerate(tokenizer.pairs.merges)}

    @functools.cache
    def subwords(tokenizer: OpenAITokenizer, word: str) -> list[str]:
        ranks = ranks_of(tokenizer)
        symbols = [*word[:-1], word[-1] + "</w>"]
        while len(symbols) > 1:
            best = min(itertools.pairwise(symbols), key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            joined: list[str] = []
            while symbols:
                take = 2 if tuple(symbols[:2]) == best else 1
                joined.append("".join(symbols[:take]))
                symbols = symbols[take:]
            symbols = joined
        return symbols

    def encode(tokenizer: OpenAITokenizer, text: str) -> list[int]:
        words = ["\n" if word == "\n " else word.lower() for word in plain_words(text)]
        return [tokenizer.pairs.ids.get(subword, 0) for word in words for subword in subwords(tokenizer, word)]

    return encode
