"""The tokenizer of GPT-1: words in lower case, split by byte-pair encoding into 40,478 subwords.

    tokenizer = tokenizers.load("finetune-transformer-lm/model")
    tokenizer.decode(tokenizer.encode("Hello, world!"))  # "hello , world !"

The ids are those of the original program (`text_utils.py` of openai/finetune-transformer-lm) with the ftfy and spaCy in
use: repaired and standardised text (`words`), spaCy's English tokens in lower case, their subwords (`bpe`), 0 for what
the vocabulary lacks. One newline token stands between lines that are not blank; blank lines have none.

Releases of ftfy and spaCy differ in details. Known differences between those of 2018 (ftfy 5.3, spaCy 2.0) and today's
(ftfy 6.3, spaCy 3.8): two apostrophes in front of a word were two tokens and are one; two backticks were one token and
are two; "Prof." was two tokens and is one; the wrongly decoded "voilÃ " was left and is now repaired to "voilà".

Text comes back in lower case, with spaces around punctuation and between the parts of "do n't": what transformers makes
of the same ids. Encoding it again gives them again, but for unknown characters, which come back as `<unk>`, and for the
words that spaCy does not leave whole when they stand alone in small letters: "'m", "'ve", "y'", "mr.", "u.s.".
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt1_jax.errors import InputError, quoted
from gpt1_jax.tokenizers import openai_files
from gpt1_jax.tokenizers.approximate import ApproximateWords
from gpt1_jax.tokenizers.bpe import END_OF_WORD, NEWLINE, UNKNOWN_ID, BytePairs
from gpt1_jax.tokenizers.openai_files import VocabularyFiles
from gpt1_jax.tokenizers.protocol import MARKER, check_ids, write_marker
from gpt1_jax.tokenizers.words import SpacyWords, Words, lines_of_chunks, pieces

EXACT, APPROXIMATE = "exact", "approximate"
_WORDS: dict[str, type[Words]] = {EXACT: SpacyWords, APPROXIMATE: ApproximateWords}
# Change whenever the code gives other ids for the same vocabulary.
_PRE_TOKENIZERS = {EXACT: b"gpt1-jax ftfy spacy-en 1\n", APPROXIMATE: b"gpt1-jax approximate 1\n"}
_MAX_CACHED = 500_000  # chunks, about 100 MB
_MAX_CACHED_CHUNK = 100  # characters


class _DependsOnOthers(Exception):
    """The words of a chunk depend on the chunks beside it."""


class _Memory(dict[str, tuple[int, ...]]):
    """The results of a function of short strings."""

    def __init__(self, compute: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: str) -> tuple[int, ...]:
        value = self._compute(key)
        if len(key) <= _MAX_CACHED_CHUNK:
            self[key] = value
        return value


class _Encoder:
    """Encodes texts. Remembers the ids of chunks and words, up to a bound: text repeats itself."""

    def __init__(self, pairs: BytePairs, make_words: Callable[[], Words]) -> None:
        self._pairs, self._make_words = pairs, make_words
        self._newline = pairs.ids.get(NEWLINE, UNKNOWN_ID)
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._words = self._make_words()  # spaCy never forgets a word
        self._of_word = _Memory(self._pairs.encode)
        self._of_chunk = _Memory(self._encode_chunk)

    def encode(self, text: str) -> list[int]:
        if len(self._of_chunk) > _MAX_CACHED:
            self._start_afresh()
        ids: list[int] = []
        for chunks in lines_of_chunks(self._words.fix_text(text)):
            if ids:
                ids.append(self._newline)
            ids += self._encode_line(chunks)
        return ids

    def _encode_line(self, chunks: list[str]) -> list[int]:
        try:
            return self._encode_apart(chunks)
        except _DependsOnOthers:
            ids: list[int] = []
            parts = itertools.chain.from_iterable(map(pieces, chunks))
            for separate, group in itertools.groupby(parts, self._words.separates):
                stretch = list(group)
                ids += self._encode_apart(stretch) if separate else self._encode_words(self._words.of_chunks(stretch))
            return ids

    def _encode_apart(self, chunks: Iterable[str]) -> list[int]:
        return list(itertools.chain.from_iterable(map(self._of_chunk.__getitem__, chunks)))

    def _encode_words(self, words: Iterable[str]) -> list[int]:
        return list(itertools.chain.from_iterable(self._of_word[word.lower()] for word in words))

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        parts = pieces(chunk)
        if len(parts) > 1:
            return tuple(self._encode_apart(parts))
        words = self._words.of_chunk(parts[0])
        if words is None:
            raise _DependsOnOthers
        return self._of_word[words[0].lower()] if len(words) == 1 else tuple(self._encode_words(words))


@dataclass(frozen=True)
class OpenAITokenizer:
    """The original vocabulary as a `Tokenizer`.

    Attributes:
      files: the vocabulary's two files, byte for byte.
      variant: "exact" (needs the extra `[openai]` for encoding), or "approximate": regular expressions in place of ftfy
        and spaCy, which give other ids for some words (0.11 % of them in film reviews, 0.01 % in a novel).
    """

    files: VocabularyFiles
    variant: str = EXACT

    @functools.cached_property
    def pairs(self) -> BytePairs:
        """The vocabulary and its merges."""
        return self.files.parse()

    @functools.cached_property
    def _encoder(self) -> _Encoder:
        return _Encoder(self.pairs, _WORDS[self.variant])

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenAITokenizer, (self.files, self.variant)

    @property
    def vocab_size(self) -> int:
        """Number of subwords; 40,478 for the released vocabulary."""
        return len(self.pairs.subwords)

    @property
    def document_separator(self) -> tuple[int, ...]:
        """The newline token, which no text begins or ends with: the released weights know it as a break in the text.

        Empty if the vocabulary has none.
        """
        newline = self.pairs.ids.get(NEWLINE)
        return () if newline is None else (newline,)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the vocabulary, the variant and the version of this code, but not of ftfy's and spaCy's."""
        return hashlib.sha256(_PRE_TOKENIZERS[self.variant] + self.pairs.digest).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of one text.

        Raises:
          InputError: ftfy or spaCy is not installed.
        """
        return self._encoder.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. Runs on one core."""
        return [self._encoder.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a sequence of ids: a space after each word, white space at both ends left out.

        Raises:
          InputError: an id is not in the vocabulary.
        """
        subwords = self.pairs.subwords
        return "".join(subwords[i] for i in check_ids(ids, len(subwords))).replace(END_OF_WORD, " ").strip()

    def save(self, directory: str | Path) -> None:
        """Writes the two files, byte for byte, and the marker file."""
        directory = Path(directory)
        self.save_openai(directory)
        write_marker(
            directory,
            "openai",
            variant=self.variant,
            encoder=self.files.encoder_name,
            merges=self.files.merges_name,
            vocab_size=self.vocab_size,
            fingerprint=self.fingerprint,
        )

    def save_openai(self, directory: str | Path) -> None:
        """Writes the two files as OpenAI's folder `model/` has them, byte for byte."""
        openai_files.write_openai(Path(directory), self.files)

    def save_huggingface(self, directory: str | Path, special_tokens: Sequence[str] = ()) -> None:
        """Writes a tokenizer that transformers' `OpenAIGPTTokenizer` and `AutoTokenizer` load.

        transformers splits words in a way of its own, so that its ids differ for some texts.

        Args:
          directory: made if missing.
          special_tokens: names of the rows after the vocabulary, as the export of a fine-tuned model has them:
            `openai_files.SPECIAL_TOKENS` are the original's start, delimiter and extract.

        Raises:
          InputError: transformers cannot read this vocabulary.
        """
        openai_files.write_huggingface(Path(directory), self.files, self.pairs, tuple(special_tokens))


def load_openai(directory: Path, marker: dict[str, Any]) -> OpenAITokenizer:
    """Reads what `save` wrote; `marker` is the content of its marker file.

    Raises:
      InputError: a file is missing, or not the one that was saved.
    """
    variant, *names = (str(marker.get(name, "")) for name in ("variant", "encoder", "merges"))
    if variant not in _WORDS or any(name != Path(name).name or not name for name in names):
        raise InputError(f"{directory / MARKER}: is damaged ({marker}); save the tokenizer again")
    tokenizer = OpenAITokenizer(openai_files.read_openai(directory / names[0], directory / names[1]), variant)
    if tokenizer.fingerprint != marker.get("fingerprint"):
        raise InputError(
            f"{directory}: {names[0]} and {names[1]} are not the files that {MARKER} describes (fingerprint "
            f"{tokenizer.fingerprint[:12]} instead of {str(marker.get('fingerprint'))[:12]}); they are damaged or from "
            "another tokenizer"
        )
    return tokenizer


def with_variant(tokenizer: object, variant: str) -> OpenAITokenizer:
    """The same vocabulary with another way of splitting texts into words.

    Raises:
      InputError: no such variant, or another kind of tokenizer.
    """
    if variant not in _WORDS:
        raise InputError(f"variant={variant!r}: known are {quoted(_WORDS)}")
    if not isinstance(tokenizer, OpenAITokenizer):
        raise InputError(
            f"variant={variant!r}: only the original byte-pair tokenizer has variants, this is a "
            f"{type(tokenizer).__name__}; leave variant out"
        )
    return dataclasses.replace(tokenizer, variant=variant)
