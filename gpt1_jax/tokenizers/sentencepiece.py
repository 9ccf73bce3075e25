"""SentencePiece: byte-pair encoding trained on the corpus, with a fallback to bytes.

No text is lost: what the vocabulary lacks is spelled in UTF-8 bytes, line ends are tokens of their own and runs of
spaces stay. `decode(encode(text))` is `text` after this normalisation, and nothing else:

- Unicode NFKC (ligatures, full-width forms), and case folding if the tokenizer was trained with `lowercase`;
- tab, other white space and zero-width characters become a space; control characters may be dropped;
- CRLF becomes LF; U+2581 (SentencePiece's own mark for a space) becomes a space.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import io
import itertools
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from absl import logging

from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory, write_atomically
from gpt1_jax.tokenizers.protocol import MARKER, check_ids, write_marker

MODEL_FILE = "sentencepiece.model"
MAX_TRAINING_BYTES = 256 << 20

# Changes whenever the code around the SentencePiece model gives other ids for the same model.
_VERSION = b"gpt1-jax sentencepiece 1\n"
_UNKNOWN_ID, _SEPARATOR_ID = 0, 1
# No piece spans a space (pieces have it in front), so that a cut there, between plain characters that no normalisation
# joins, changes no id: the space becomes the one SentencePiece puts in front of each input. What lies between such
# cuts, mostly a word, is encoded once and kept. SentencePiece alone takes longer, and ever longer in long texts.
_SPACE, _FIRST_PLAIN, _N_PLAIN = 0x20, 0x21, 0x7F - 0x21  # plain characters are those of ASCII that can be seen
_END_OF_WORD, _END_OF_TEXT = b"\xff", b"\xfe"  # bytes that are in no UTF-8
_WHITE_SPACE = re.compile(r"\s")
_KEPT_BYTES = 256 << 20  # of memory, for words and their ids
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UNIT = 2000  # characters; what is sampled, and given to the trainer, as one "sentence"
_TOO_LARGE = re.compile(r"Vocabulary size too high .*value <= (\d+)")
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


class _Words:
    """The ids of the words that were met, in about `_KEPT_BYTES` of memory at most; threads may share it.

    They are kept as bytes, since those are put together many times faster than lists are, and the collector of cycles
    does not look into them.
    """

    def __init__(self) -> None:
        self._ids: dict[bytes, bytes] = {}
        self._n_bytes = 0

    def ids_of(
        self, texts: Sequence[Sequence[bytes]], encode: Callable[[list[bytes]], list[list[int]]]
    ) -> list[np.ndarray]:
        """The ids, uint32, of each text, given as its words; `encode` is asked for the words that are new."""
        if self._n_bytes > _KEPT_BYTES:  # another thread may still read the former
            self._ids, self._n_bytes = {}, 0
        ids = self._ids
        new = list(set(itertools.chain.from_iterable(texts)).difference(ids))
        encoded = _as_bytes(encode(new))
        ids.update(zip(new, encoded, strict=True))
        self._n_bytes += sum(map(_memory_of, new, encoded))
        return [np.frombuffer(b"".join(map(ids.__getitem__, words)), np.uint32) for words in texts]


def _words_of(texts: Sequence[str]) -> list[list[bytes]]:
    """The words of each text in UTF-8.

    Raises:
      UnicodeEncodeError: there is no UTF-8 for a text.
    """
    encoded = _END_OF_TEXT.join([text.replace("\r\n", "\n").encode("utf-8") for text in texts])
    chars = np.frombuffer(encoded, np.uint8)
    plain = (chars - np.uint8(_FIRST_PLAIN)) < _N_PLAIN  # what is below wraps around
    ends = np.flatnonzero((chars[1:-1] == _SPACE) & plain[:-2] & plain[2:]) + 1
    cut = chars.copy()
    cut[ends] = ord(_END_OF_WORD)
    return [text.split(_END_OF_WORD) for text in cut.tobytes().split(_END_OF_TEXT)] if texts else []


def _as_bytes(encoded: list[list[int]]) -> list[bytes]:
    """Each list of ids as uint32."""
    packed = np.fromiter(itertools.chain.from_iterable(encoded), np.uint32).tobytes()
    ends = [4 * end for end in itertools.accumulate(map(len, encoded), initial=0)]
    return [packed[start:end] for start, end in itertools.pairwise(ends)]


def _memory_of(word: bytes, ids: bytes) -> int:
    """Bytes of an entry: both objects, and its place in a dictionary that doubles as it grows."""
    return sys.getsizeof(word) + sys.getsizeof(ids) + 100


@dataclass(frozen=True)
class SentencePieceTokenizer:
    """A SentencePiece model as a `Tokenizer`.

    `document_separator` is the end-of-sentence piece; it decodes to nothing. A leading space of the first piece is
    not part of the text, so decode a sequence as a whole rather than piece by piece.
    """

    model: bytes = field(repr=False)

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def __reduce__(self) -> tuple[Any, ...]:
        return SentencePieceTokenizer, (self.model,)

    @functools.cached_property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return self._processor.GetPieceSize()

    @functools.cached_property
    def document_separator(self) -> tuple[int, ...]:
        """The end-of-sentence piece, which no text encodes to."""
        return (self._processor.eos_id(),)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model and of the version of the code around it."""
        return hashlib.sha256(_VERSION + self.model).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of one text."""
        return self.encode_batch([text])[0]

    @functools.cached_property
    def _words(self) -> _Words:
        return _Words()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. Runs on one core.

        Raises:
          InputError: a text cannot be written as UTF-8.
        """
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode_batch` with arrays, uint32, in place of lists, which take longer."""
        try:
            words = _words_of(texts)
        except UnicodeEncodeError:
            list(_without_surrogates(texts))  # says which
            raise
        return self._words.ids_of(words, lambda new: self._processor.Encode(new, num_threads=1))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a sequence of ids; invalid UTF-8 becomes U+FFFD.

        Raises:
          InputError: an id is not in the vocabulary.
        """
        return self._processor.Decode(check_ids(ids, self.vocab_size))

    def save(self, directory: str | Path) -> None:
        """Writes the model and its marker file."""
        directory = Path(directory)
        make_directory(directory, "directory")
        write_atomically(directory / MODEL_FILE, self.model)
        write_marker(directory, "sentencepiece", vocab_size=self.vocab_size, fingerprint=self.fingerprint)


def load_sentencepiece(directory: Path, marker: dict[str, Any]) -> SentencePieceTokenizer:
    """Reads what `save` wrote; `marker` is the content of its marker file.

    Raises:
      InputError: the model file is missing or not the one that was saved.
    """
    path = directory / MODEL_FILE
    try:
        tokenizer = SentencePieceTokenizer(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); save the tokenizer again") from None
    if tokenizer.fingerprint != marker.get("fingerprint"):
        raise InputError(
            f"{path}: is not the model that {MARKER} describes (fingerprint {tokenizer.fingerprint[:12]} instead of "
            f"{str(marker.get('fingerprint'))[:12]}); one of them is damaged or from another tokenizer"
        )
    return tokenizer


def train_sentencepiece(
    texts: Iterable[str],
    directory: str | Path,
    *,
    vocab_size: int = 40_000,
    lowercase: bool = True,
    character_coverage: float = 0.9995,
    max_training_bytes: int = MAX_TRAINING_BYTES,
    seed: int = 0,
) -> SentencePieceTokenizer:
    """Learns a byte-pair vocabulary from texts and saves it. The same texts and settings give the same bytes.

    Args:
      texts: the corpus; read once, in constant memory apart from the sample.
      directory: where the tokenizer is saved.
      vocab_size: number of pieces, among them 256 bytes, the line end, the separator and one unused "unknown".
      lowercase: fold case, as the paper's own tokenizer does.
      character_coverage: share of the corpus' characters that get a piece; the rest is spelled in bytes.
      max_training_bytes: of a larger corpus, a uniform sample of paragraphs of about this many UTF-8 bytes is
        learnt from (and the log says so).
      seed: of the sample.

    Raises:
      InputError: no text, a vocabulary size that cannot be reached with this text, or a text that cannot be written as
        UTF-8.
    """
    units, n_bytes = _sample(
        (unit for text in _without_surrogates(texts) for unit in _units(text)), max_training_bytes, seed
    )
    used = sum(len(unit.encode("utf-8")) for unit in units)
    if not any(map(str.strip, units)):
        raise InputError("texts: there is no text to learn a vocabulary from; check the source")
    if used < n_bytes:
        logging.info(
            "SentencePiece: learning from a sample of %.3g of %.3g MB (max_training_bytes=%d)",
            used / 1e6,
            n_bytes / 1e6,
            max_training_bytes,
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(units),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            byte_fallback=True,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            user_defined_symbols=["\n"],
            unk_id=_UNKNOWN_ID,
            eos_id=_SEPARATOR_ID,
            bos_id=-1,
            pad_id=-1,
            max_sentence_length=1 << 20,  # bytes; longer ones would be skipped, units are far below
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(error, vocab_size, used) from None
    tokenizer = SentencePieceTokenizer(model.getvalue())
    tokenizer.save(directory)
    logging.info(
        "SentencePiece: %d pieces learnt from %.3g MB, saved in %s", tokenizer.vocab_size, used / 1e6, directory
    )
    return tokenizer


def _without_surrogates(texts: Iterable[str]) -> Iterator[str]:
    """The texts, up to one that cannot be written as UTF-8."""
    for i, text in enumerate(texts):
        if isinstance(text, str) and (found := _SURROGATE.search(text)):
            near = text[max(0, found.start() - 20) : found.end() + 20]
            raise InputError(
                f"texts[{i}]: {near!r} holds half of a surrogate pair (\\ud800-\\udfff), which is no character: the "
                "text is damaged, or was not UTF-8"
            )
        yield text


def _explain(error: RuntimeError, vocab_size: int, n_bytes: int) -> Exception:
    if match := _TOO_LARGE.search(str(error)):
        return InputError(
            f"vocab_size={vocab_size}: too large for this text ({n_bytes / 1e6:.3g} MB): at most {match[1]} pieces can "
            "be learnt from it; lower vocab_size or give more text"
        )
    if match := _TOO_SMALL.search(str(error)):
        return InputError(
            f"vocab_size={vocab_size}: too small for this text: {match[1]} are needed for the 256 bytes and the single "
            "characters; raise vocab_size"
        )
    return error


def _units(text: str) -> Iterator[str]:
    """A text in units of about `_UNIT` characters, cut at white space where there is some."""
    # U+2585 is reserved: the trainer would skip the whole unit. Encoding is not affected.
    text = text.replace("\r\n", "\n").replace("\u2585", " ")
    start = 0
    while len(text) - start > _UNIT:
        match = _WHITE_SPACE.search(text, start + _UNIT, start + 2 * _UNIT)
        end, following = match.span() if match else (start + _UNIT, start + _UNIT)
        yield text[start:end]
        start = following
    if start < len(text):
        yield text[start:]


def _sample(units: Iterable[str], max_bytes: int, seed: int) -> tuple[list[str], int]:
    """Draws units uniformly up to `max_bytes` UTF-8 bytes (all, if that is enough), in their order.

    Each unit gets a random rank, and those of the highest rank are given up when the bytes run over: one pass, and no
    more memory than the sample.

    Returns:
      The sample, and the number of bytes of all units.
    """
    rng = random.Random(seed)
    kept: list[tuple[float, int, str]] = []
    kept_bytes = total_bytes = 0
    for index, unit in enumerate(units):
        size = len(unit.encode("utf-8"))
        total_bytes += size
        kept_bytes += size
        heapq.heappush(kept, (-rng.random(), index, unit))
        while kept_bytes > max_bytes and len(kept) > 1:
            kept_bytes -= len(heapq.heappop(kept)[2].encode("utf-8"))
    return [unit for _, _, unit in sorted(kept, key=lambda entry: entry[1])], total_bytes
