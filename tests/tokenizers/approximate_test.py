import pytest

from gpt1_jax.tokenizers.approximate import ApproximateWords
from gpt1_jax.tokenizers.words import lines_of_chunks, pieces, standardize

SENTENCES = """
Mr. and Mrs. Smith don't know what you're talking about, it's John's.
"Hello," he said... I can't, won't and shouldn't have gone if they'd asked.
The U.S. costs $1,000.50 (50%) at 10:30 p.m. or 5km away; that's state-of-the-art!
We cannot, we're gonna wait --- what?! She'll say 'never' in the 1990s. END.
"""


@pytest.fixture(scope="module")
def words() -> ApproximateWords:
    return ApproximateWords()


@pytest.mark.parity
def test_most_words_are_the_recorded_ones(words, cases):
    """The recorded texts are the difficult ones; of film reviews, 99.9 % of the words are the same."""
    same = 0
    for case in cases:
        lines = [[w for chunk in line for w in words.of_chunks(pieces(chunk))] for line in split(words, case["text"])]
        same += [word for line in lines for word in ["\n ", *line]][1:] == case["words"]
    assert same > 0.6 * len(cases)


def split(words: ApproximateWords, text: str) -> list[list[str]]:
    return list(lines_of_chunks(words.fix_text(text)))


def test_ordinary_sentences_are_split_as_spacy_does(words, plain_words):
    for sentence in SENTENCES.strip().split("\n"):
        assert words.of_chunks(standardize(sentence).split(" ")) == plain_words(sentence)


def test_characters_are_repaired(words):
    assert words.fix_text("“a”\r\n‘b’\rcafe\u0301\u2028\x00\ufeffc") == "\"a\"\n'b'\ncafé\nc"


def test_chunks_are_independent(words):
    assert all(map(words.separates, ["foo:co.", "a.m.", ":)"]))
    assert words.of_chunks(["isn't", "co."]) == [*words.of_chunk("isn't"), *words.of_chunk("co.")]
