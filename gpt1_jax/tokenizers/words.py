"""From text to words as in GPT-1: ftfy, a standardisation of punctuation and white space, spaCy's English rules.

The words are those of `spacy.blank("en")` on `standardize(ftfy.fix_text(text))`, computed faster. Three facts help:

- ftfy works line by line, and most lines hold nothing that it changes (`fix_text`).
- Standardisation works on each stretch between white space ("chunk") by itself. Of white space it keeps only whether
  there is a line end in it, so a text is lines of chunks (`lines_of_chunks`).
- spaCy splits each chunk by itself, with one exception: in a last step it looks for its special cases (such as "a.m.")
  among the tokens, where a match across chunks has no effect but may stand in the way of one that has. So the tokens of
  a chunk are the same in every text if no special case is left in it before that step (`SpacyWords.of_chunk`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpt1_jax.errors import InputError

if TYPE_CHECKING:
    import spacy.tokens

_DASHES = dict.fromkeys(map(ord, "\N{EN DASH}\N{EM DASH}\N{HORIZONTAL BAR}"), "-")
_REPLACED = {**_DASHES, ord("\N{HORIZONTAL ELLIPSIS}"): "...", ord("\N{ACUTE ACCENT}"): "'"}
_MARKS = re.escape('-~!";?+,()/*[]{}|_')
_RUN = rf"([{_MARKS}])\1*"
_PUNCTUATION, _PIECES = re.compile(_RUN), re.compile(rf"[^{_MARKS}]+|{_RUN}")
_LINE_ENDS = re.compile(r"\s*\n\s*")
_SPACES = re.compile(r"[^\S\n]+")

_CURLY_QUOTES = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'}
# ftfy makes curly quotes straight and line ends plain. Of what else is here (ASCII without control characters, usual
# dashes, the ellipsis) it changes nothing but HTML entities, and nothing of it looks wrongly decoded to it.
_PLAIN = r"\t\n\r -~\u2013\u2014\u2018\u2019\u201c\u201d\u2026"
_NOT_PLAIN = re.compile(rf"[^{_PLAIN}]|&#?\w")
# Latin-1's letters and signs may be traces of a wrong decoding; if they are not, it leaves them.
_NOT_LATIN_1 = re.compile(rf"[^{_PLAIN}\xa0-\xff]|&#?\w")
_FTFY_SEGMENT = 1_000_000  # characters; ftfy cuts longer lines

_PATTERNS = ("prefix_search", "suffix_search", "infix_finditer", "token_match", "url_match")  # spaCy's, without rules


def fix_text(text: str) -> str:
    """What `ftfy.fix_text` returns: decodings, HTML entities, quotes, line ends and control characters repaired."""
    if not _NOT_PLAIN.search(text):
        return _fix_plain(text)
    import ftfy
    from ftfy.badness import is_bad

    fixed = []
    unescape_html: str | bool = "auto"  # ftfy unescapes until it meets a "<"
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        plain = not _NOT_PLAIN.search(line)
        if not plain and len(line) <= _FTFY_SEGMENT and not _NOT_LATIN_1.search(line):
            plain = not is_bad(line)
        fixed.append(_fix_plain(line) if plain else ftfy.fix_text(line, unescape_html=unescape_html))
        if "<" in line:
            unescape_html = False
    return "".join(fixed)


def _fix_plain(text: str) -> str:
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        for quote, straight in _CURLY_QUOTES.items():
            text = text.replace(quote, straight)
    return text


def standardize(text: str) -> str:
    """Hyphens for dashes, spaces around runs of punctuation and line ends, one space for other white space."""
    text = _PUNCTUATION.sub(r" \g<0> ", text.translate(_REPLACED))
    return _SPACES.sub(" ", _LINE_ENDS.sub(" \n ", text)).strip()


def lines_of_chunks(text: str) -> Iterator[list[str]]:
    """The lines of a text that are not blank, each as the chunks that it has before standardisation."""
    for line in text.split("\n"):
        if chunks := line.split():
            yield chunks


def pieces(chunk: str) -> list[str]:
    """The chunks that standardisation makes of one."""
    if chunk.isalnum():
        return [chunk]
    if not chunk.isascii():
        chunk = chunk.translate(_REPLACED)
    return [match[0] for match in _PIECES.finditer(chunk)]


class Words(Protocol):
    """Repairs texts, and splits what was standardised into words."""

    def fix_text(self, text: str) -> str:
        """The text without what should not be in it."""

    def of_chunk(self, chunk: str) -> list[str] | None:
        """The words of a standardised chunk, wherever it stands; None if they depend on the chunks beside it."""

    def of_chunks(self, chunks: Sequence[str]) -> list[str]:
        """The words of standardised chunks that stand beside each other."""

    def separates(self, chunk: str) -> bool:
        """Whether a chunk is one word, and what is before and after it does not depend on each other."""


class SpacyWords:
    """The original's words: ftfy and spaCy's English tokenizer."""

    def __init__(self) -> None:
        """Builds the tokenizer, in a fifth of a second.

        Raises:
          InputError: ftfy or spaCy is not installed.
        """
        try:
            import ftfy  # noqa: F401
            import spacy
            from spacy.vocab import Vocab
        except ImportError as error:
            raise InputError(
                f"the original tokenizer needs {error.name}, which is not installed: pip install 'gpt1-jax[openai]'. "
                "Without it there is only the variant 'approximate', which gives other ids for some words: "
                "tokenizers.load(path, 'approximate')"
            ) from None
        english: Any = spacy.blank("en").tokenizer
        make: Any = type(english)
        patterns = {name: getattr(english, name) for name in _PATTERNS}
        # Vocabularies of their own: they keep no attributes of words, which take longer to find than the tokens.
        self._patterns, self._rules = patterns, english.rules
        self._tokenizer = make(Vocab(), rules=self._rules, **patterns)
        self._without_last_step = _without_last_step(functools.partial(make, Vocab(), rules=self._rules), patterns)
        without_rules = make(Vocab(), rules={}, **patterns)
        self._sought: set[str] = set()  # the tokens that the last step looks at
        self._replaced: dict[str, set[tuple[str, ...]]] = {}  # those that it replaces, by the first one
        for case in self._rules:
            tokens = _texts(without_rules(case))
            self._sought.update(tokens)
            if tokens != _texts(self._without_last_step(case)):
                self._replaced.setdefault(tokens[0], set()).add(tuple(tokens))

    def fix_text(self, text: str) -> str:
        """`fix_text` of this module."""
        return fix_text(text)

    def of_chunk(self, chunk: str) -> list[str] | None:
        """The tokens of a chunk; None if spaCy's last step would change them in some places."""
        if chunk.isascii() and chunk not in self._rules:
            # The two usual cases, without spaCy's work: letters alone have no prefix, suffix or infix; and a full stop
            # after a small letter is a suffix.
            stem = chunk.removesuffix(".")
            if stem.isalpha():
                if stem == chunk:
                    return [chunk]
                if stem[-1].islower() and stem not in self._rules:
                    return [stem, "."]
        tokens = _texts(self._without_last_step(chunk))
        for i, token in enumerate(tokens):
            for case in self._replaced.get(token, ()):
                if case == tuple(tokens[i : i + len(case)]):
                    return None
        return tokens

    def of_chunks(self, chunks: Sequence[str]) -> list[str]:
        """All tokens of chunks."""
        return _texts(self._tokenizer(" ".join(chunks)))

    def separates(self, chunk: str) -> bool:
        """Whether a chunk is one token, and none that spaCy's last step looks at."""
        return chunk not in self._sought and self._is_a_word(chunk)

    def _is_a_word(self, chunk: str) -> bool:
        """Whether spaCy finds nothing to split."""
        return not (
            chunk in self._rules
            or self._patterns["prefix_search"](chunk)
            or self._patterns["suffix_search"](chunk)
            or any(self._patterns["infix_finditer"](chunk))
        )


def _texts(document: spacy.tokens.Doc) -> list[str]:
    return [token.text for token in document]


def _without_last_step(make: Callable[..., Any], patterns: dict[str, Any]) -> Callable[[str], spacy.tokens.Doc]:
    """The tokenizer that `make` builds with these patterns, without spaCy's last step.

    That step looks for the special cases that have a prefix, suffix or infix when the tokenizer is built: here it is
    built with patterns that find nothing until then.
    """
    built = False

    def once_built(search: Callable[[str], Any], nothing: Any) -> Callable[[str], Any]:
        return lambda string: search(string) if built else nothing

    affixes = {"prefix_search": None, "suffix_search": None, "infix_finditer": ()}
    gated = {name: once_built(patterns[name], nothing) for name, nothing in affixes.items()}
    tokenizer = make(**{**patterns, **gated})
    built = True
    return tokenizer
