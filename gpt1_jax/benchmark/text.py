"""Text to tokenize, the tokenizer and the token shards of it: the user's, or made up where no text is given."""

from __future__ import annotations

import functools
import itertools
import json
import random
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from gpt1_jax import tokenizers
from gpt1_jax.data.corpus import learn_tokenizer
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.shards import TokenShards
from gpt1_jax.data.sources import open_source, read_documents
from gpt1_jax.data.split import Split
from gpt1_jax.tokenizers import Tokenizer

MAX_BYTES = 8 << 20  # of text: some seconds of work
_ALL = Split(0.0, 0)
_ONSETS = "b br c ch d f g gr h j l m n p pl r s st t tr w"
_VOWELS, _ENDS = ("a", "e", "i", "o", "u", "ea", "ou"), ("", "", "n", "r", "s", "t", "l", "ck", "ng")
_N_WORDS = 50_000


class Text:
    """A folder of the time that this object lives, with everything made from the text on the first call.

    Args:
      source: as in the configs; at most `max_bytes` of it are used. "" makes text up.
      tokenizer: a folder with one; None learns one from the text.
      vocab_size: pieces of a tokenizer that is learnt.
      max_bytes: of text.
    """

    def __init__(self, source: str, tokenizer: str | None, vocab_size: int, max_bytes: int = MAX_BYTES) -> None:
        self._given, self._tokenizer, self._vocab_size, self._max_bytes = source, tokenizer, vocab_size, max_bytes

    def check(self) -> None:
        """Finds what was given.

        Raises:
          InputError: there are no such files, or no such tokenizer.
        """
        if self._given:
            open_source(self._given)
        if self._tokenizer is not None:
            _ = self.tokenizer

    @functools.cached_property
    def _temporary(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="gpt1-benchmark-")

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return Path(self._temporary.name)

    @functools.cached_property
    def documents(self) -> list[str]:
        """The text."""
        return list(_first(read_documents(self._given) if self._given else made_up(), self._max_bytes))

    @functools.cached_property
    def source(self) -> str:
        """The same text as a source."""
        path = self.folder / "text.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in self.documents)
        return f"jsonl:{path}#text"

    @functools.cached_property
    def megabytes(self) -> float:
        """UTF-8 bytes of the text, in millions."""
        return sum(len(document.encode("utf-8")) for document in self.documents) / 1e6

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The given one, or one that is learnt from the text."""
        if self._tokenizer is not None:
            return tokenizers.load(self._tokenizer)
        return learn_tokenizer(
            self.source, _ALL, self.folder / "tokenizer", vocab_size=self._vocab_size, lowercase=True
        )

    @functools.cached_property
    def shards(self) -> TokenShards:
        """The tokens of the text on the disk."""
        self.prepare(self.folder / "shards")
        return TokenShards.open(self.folder / "shards")

    def prepare(self, folder: Path) -> None:
        """Token shards in a new folder, by one process."""
        prepare_shards(self.source, self.tokenizer, folder, split=_ALL, workers=1, progress=False)

    @property
    def described(self) -> str:
        """What it is, in words."""
        kind = type(self.tokenizer).__name__
        return (
            f"{self.megabytes:.1f} MB of {self._given or 'made-up text'}, {kind} of {self.tokenizer.vocab_size} ids, "
            "one process"
        )


def made_up(seed: int = 0) -> Iterator[str]:
    """Endless documents of words of no language, as often as words are: the n-th commonest one time in n."""
    rng, n_words = np.random.default_rng(seed), 3000
    words = _words(_N_WORDS, seed)
    shares = 1.0 / np.arange(1, len(words) + 1)
    shares /= shares.sum()
    while True:
        drawn = [words[i] for i in rng.choice(len(words), size=n_words, p=shares).tolist()]
        ends = np.unique(np.cumsum(rng.integers(4, 30, size=n_words // 4)).clip(max=n_words)).tolist()
        sentences = [" ".join(drawn[a:b]).capitalize() + "." for a, b in itertools.pairwise([0, *ends])]
        yield "\n".join(" ".join(sentences[i : i + 5]) for i in range(0, len(sentences), 5))


def _words(n: int, seed: int) -> list[str]:
    """About `n` words, short ones first."""
    rng, onsets = random.Random(seed), _ONSETS.split()

    def word() -> str:
        n_syllables = 1 + min(int(rng.expovariate(0.7)), 4)
        return "".join(rng.choice(onsets) + rng.choice(_VOWELS) for _ in range(n_syllables)) + rng.choice(_ENDS)

    return sorted({word() for _ in range(n)}, key=lambda word: (len(word), word))


def _first(documents: Iterable[str], max_bytes: int) -> Iterator[str]:
    n_bytes = 0
    for document in documents:
        yield document
        n_bytes += len(document.encode("utf-8"))
        if n_bytes >= max_bytes:
            return
