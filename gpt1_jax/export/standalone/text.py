"""Text to ids and back as the exported model was trained with, and the streams of an example. predict.py loads it.

SentencePiece needs the package `sentencepiece`. The original byte-pair encoding needs `ftfy` and `spacy`; its
approximate variant needs nothing, with the rules of approximate.py beside this file.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Ids = Sequence[int]
Tokenizer = tuple[Callable[[str], list[int]], Callable[[list[int]], str]]

END_OF_WORD = "</w>"
UNKNOWN_ID = 0

_REPLACED = {**dict.fromkeys(map(ord, "–—―"), "-"), ord("…"): "...", ord("´"): "'"}
_PUNCTUATION = re.compile(r"""([-~!";?+,()/*\[\]{}|_])\1*""")


def load(folder: Path = Path(__file__).parent) -> Tokenizer:
    """(encode, decode) of the tokenizer in this folder.

    Raises:
      ValueError: there is none, or a package that it needs is not installed; the message says what to do.
    """
    marker = json.loads((folder / "gpt1_tokenizer.json").read_text(encoding="utf-8"))
    kinds = {"sentencepiece": _sentencepiece, "openai": _openai}
    if marker["type"] not in kinds:
        raise ValueError(f"{folder}: the model was exported without a tokenizer; give ids in place of texts")
    try:
        return kinds[marker["type"]](folder, marker)
    except ImportError as error:
        raise ValueError(
            f"{folder}: this tokenizer needs the package {error.name}: pip install {error.name}, or give ids in place "
            "of texts"
        ) from None


def to_streams(
    kind: str, ids: Mapping[str, Any], special: Mapping[str, int], n_ctx: int, where: str = "example"
) -> list[list[int]]:
    """Section 3.3 of the paper. What does not fit into `n_ctx` is cut from the end of what does not decide."""
    start, delimiter, extract = special["start"], special["delimiter"], special["extract"]

    def pair(first: Ids, second: Ids) -> list[int]:
        return [start, *first, delimiter, *second, extract]

    def cut(first: Ids, room: int) -> Ids:
        if room < min(1, len(first)):
            raise ValueError(f"{where}: what is never cut fills the {n_ctx} tokens of the model; shorten it")
        return first[:room]

    if kind == "classification":
        return [[start, *cut(ids["text"], n_ctx - 2), extract]]
    if kind == "entailment":
        return [pair(cut(ids["premise"], n_ctx - 3 - len(ids["hypothesis"])), ids["hypothesis"])]
    if kind == "similarity":
        a, b, room = ids["text_a"], ids["text_b"], n_ctx - 3
        if len(a) + len(b) > room:  # at least half of the room each; what a shorter one leaves is the longer one's
            a, b = a[: max(room // 2, room - len(b))], b[: max(room // 2, room - len(a))]
        return [pair(a, b), pair(b, a)]
    question, answers = ids["question"], ids["answers"]
    context = cut(ids["context"], n_ctx - 3 - len(question) - max(map(len, answers)))
    return [pair([*context, *question], answer) for answer in answers]


def _sentencepiece(folder: Path, marker: dict[str, Any]) -> Tokenizer:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=(folder / "sentencepiece.model").read_bytes())

    def encode(text: str) -> list[int]:
        try:
            return processor.Encode(text.replace("\r\n", "\n").encode("utf-8"))
        except UnicodeEncodeError:
            raise ValueError(f"{text!r:.80} holds half of a surrogate pair: the text is damaged, or no UTF-8") from None

    return encode, processor.Decode


def _openai(folder: Path, marker: dict[str, Any]) -> Tokenizer:
    fix_text, words = _exact_words() if marker["variant"] == "exact" else _approximate_words(folder)
    ids = json.loads((folder / marker["encoder"]).read_text(encoding="utf-8-sig"))
    lines = (folder / marker["merges"]).read_text(encoding="utf-8-sig").replace("\r\n", "\n").split("\n")[1:]
    ranks = {tuple(line.split()): rank for rank, line in enumerate(lines) if line.strip()}
    subwords = {index: subword for subword, index in ids.items()}
    if ids.get("<unk>") == UNKNOWN_ID:
        subwords[UNKNOWN_ID] = "<unk>"
    newline = ids.get("\n" + END_OF_WORD, UNKNOWN_ID)

    @functools.lru_cache(maxsize=100_000)
    def ids_of(word: str) -> tuple[int, ...]:
        return tuple(ids.get(subword, UNKNOWN_ID) for subword in _split(word, ranks))

    def encode(text: str) -> list[int]:
        encoded: list[int] = []
        for line in fix_text(text).split("\n"):
            if line := _standardize(line):
                encoded += [newline] if encoded else []
                encoded += [i for word in words(line) for i in ids_of(word.lower())]
        return encoded

    def decode(sequence: list[int]) -> str:
        return "".join(subwords[i] for i in sequence).replace(END_OF_WORD, " ").strip()

    return encode, decode


def _split(word: str, ranks: dict[tuple[str, ...], int]) -> list[str]:
    """Byte-pair encoding: the pair of lowest rank is joined wherever it stands, until no pair has one."""
    symbols = [*word[:-1], word[-1] + END_OF_WORD]
    while len(symbols) > 1:
        pair = min(itertools.pairwise(symbols), key=lambda pair: ranks.get(pair, len(ranks)))
        if pair not in ranks:
            break
        joined: list[str | None] = []
        for symbol in symbols:
            # `None` keeps what was joined from being joined again in the same pass.
            if joined and joined[-1] is not None and (joined[-1], symbol) == pair:
                joined[-1:] = ["".join(pair), None]
            else:
                joined.append(symbol)
        symbols = [symbol for symbol in joined if symbol is not None]
    return symbols


def _standardize(line: str) -> str:
    """Hyphens for dashes, spaces around runs of punctuation, one space for other white space."""
    return " ".join(_PUNCTUATION.sub(r" \g<0> ", line.translate(_REPLACED)).split())


def _exact_words() -> tuple[Callable[[str], str], Callable[[str], list[str]]]:
    import ftfy
    import spacy

    english = spacy.blank("en").tokenizer
    return ftfy.fix_text, lambda line: [token.text for token in english(line)]


def _approximate_words(folder: Path) -> tuple[Callable[[str], str], Callable[[str], list[str]]]:
    words = _module(folder / "approximate.py").ApproximateWords()
    return words.fix_text, lambda line: words.of_chunks(line.split())


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
