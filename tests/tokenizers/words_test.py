import itertools
import re
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.tokenizers.words import SpacyWords, fix_text, lines_of_chunks, pieces, standardize

ftfy = pytest.importorskip("ftfy")
spacy = pytest.importorskip("spacy")

ENGLISH = spacy.blank("en").tokenizer
CASES = sorted(case for case in ENGLISH.rules if case.strip())
WRONG = ["Ã©", "â€™", "Â£", "Ã ", "âœ”", "\x96", "\x85", "ï»¿", "Ã¢â‚¬â„¢", "ã\x83\x84", "schÃ¶n"]
SIGNS = ["&amp;", "&lt;", "&#39;", "&EACUTE;", "&", "<", "\r", "\r\n", "\n", "\x1b[31m", "\x00", "\x7f", "\x0b", "\x0c"]
OTHER = ["\u2028", "\u3000", "\xa0", "ﬁ", "Ｆ", "e\u0301", "\ufeff", "\ud800", "\U0001f600", "‚", "‛", "ʼ", "„", "‟"]
TYPOGRAPHY = [*"‘’“”–—…", *"éàÉ½£©«»´·ß×", "œ", "a", "The ", "s", " ", "2", ".", "-", "…"]
texts = st.lists(st.sampled_from(WRONG + SIGNS + OTHER + TYPOGRAPHY * 3) | st.text(max_size=3), max_size=12).map(
    "".join
)


@pytest.fixture(scope="module")
def words() -> SpacyWords:
    return SpacyWords()


@pytest.mark.parity
def test_every_step_gives_what_was_recorded(cases, plain_words):
    for case in cases:
        assert fix_text(case["text"]) == case["ftfy"]
        assert standardize(case["ftfy"]) == case["standardized"]
        assert plain_words(case["text"]) == case["words"]


@settings(deadline=None, max_examples=1000)
@given(texts)
@example("&amp; &lt;\n<b>&amp;</b>\n&amp;")
@example("é\nschÃ¶n\n’é “naïve” £5\r\n")
def test_texts_are_repaired_as_ftfy_repairs_them(text):
    assert fix_text(text) == ftfy.fix_text(text)


def test_ftfy_changes_nothing_in_what_it_is_not_asked_about():
    alphabet = "aZ0 .&;#\n\r\t~-‘’“”–—…"
    for n in (1, 2, 3):
        for text in map("".join, itertools.product(alphabet, repeat=n)):
            assert fix_text(text) == ftfy.fix_text(text), repr(text)
    ascii_characters = [chr(code) for code in range(128)]
    for text in map("".join, itertools.product([*ascii_characters, "é", "’"], ascii_characters)):
        assert fix_text(text) == ftfy.fix_text(text), repr(text)


@pytest.mark.parametrize("tail", ["Ã b é", "<b> &amp; é", "\r\n&amp;<", "é &lt;"])
def test_very_long_lines_are_repaired_as_ftfy_repairs_them(tail):
    """It cuts them after a million characters, and begins anew."""
    for n in (1_000_000 - 1, 1_000_000, 1_000_000 + 1):
        text = "&amp;" + (n - 5) * "a" + tail + "\n&amp; é"
        assert standardize(fix_text(text)) == standardize(ftfy.fix_text(text))


@settings(deadline=None, max_examples=500)
@given(st.text() | st.lists(st.sampled_from([*'-~!";?+,()/*[]{}|_a.\\\n \t\xa0\x85', "…", "–", "´"])).map("".join))
def test_a_text_is_lines_of_chunks(text):
    lines = (" ".join(piece for chunk in line for piece in pieces(chunk)) for line in lines_of_chunks(text))
    assert " \n ".join(lines) == standardize(text)


def test_white_space_is_the_same_everywhere():
    characters = [chr(code) for code in range(0x110000)]
    assert {c for c in characters if c.isspace()} == set(re.findall(r"\s", "".join(characters)))


def test_spacy_has_no_special_case_with_a_space_in_it():
    """The words of a chunk would depend on the next one."""
    assert not [case for case in CASES if case != "".join(case.split())]


def test_frequent_chunks_are_what_spacy_makes_of_them(words):
    letters = string.ascii_letters
    chunks = [*letters, *map("".join, itertools.product(letters, repeat=2))]
    chunks += [chunk + "." for chunk in chunks]
    chunks += [case + end for case in CASES for end in ("", ".", "x", "x.")]
    chunks += [letter * n + end for letter in letters for n in (3, 10, 40) for end in ("", ".")]
    for chunk in chunks:
        for piece in pieces(chunk):
            expected = [token.text for token in ENGLISH(piece)]
            assert words.of_chunk(piece) in (expected, None), piece


def test_a_chunk_that_depends_on_its_neighbours_is_told(words):
    assert words.of_chunk("co.") == ["co."]
    assert words.of_chunks(["foo:co."]) == ["foo", ":", "co."]
    assert words.of_chunks(["foo:co.", "_", "."]) == ["foo", ":", "co", ".", "_", "."]  # "._." stands in the way
    assert words.of_chunk("foo:co.") is None


SINGLE = [*".:'\"-()<>=@#$%&^` _é", "n't", "'s", "...", "10", "km", " ", " ", "http://a.bc", "XY."]
parts = st.sampled_from(CASES) | st.sampled_from(SINGLE) | st.text(string.ascii_letters, max_size=9)


@settings(deadline=None, max_examples=1500)
@given(st.lists(parts, min_size=1, max_size=8))
@example(["foo", ":", "co.", "_", "."])
@example(["a:", "co.", " ", "word", " ", "_", ".", "_", "."])
def test_words_of_chunks_are_the_words_of_the_line(words, line):
    chunks = standardize("".join(line)).split(" ") if "".join(line).strip() else []
    expected = [token.text for token in ENGLISH(" ".join(chunks))]
    assert words.of_chunks(chunks) == expected
    alone = [words.of_chunk(chunk) for chunk in chunks]
    if None not in alone:
        assert [word for found in alone for word in found] == expected
    apart = []
    for separate, group in itertools.groupby(chunks, words.separates):
        stretch = list(group)
        apart += stretch if separate else words.of_chunks(stretch)
    assert apart == expected
