"""Splits as streams of tokens: what becomes of texts, labels and identifiers, and what is refused."""

import zlib

import pytest

from gpt1_jax.data.encode import encode_split
from gpt1_jax.errors import InputError
from gpt1_jax.tasks.examples import Example

VOCAB = 1000
START, DELIMITER, EXTRACT = VOCAB, VOCAB + 1, VOCAB + 2


class WordTokenizer:
    """Whitespace words to ids; a word that is a number is its own id."""

    vocab_size = VOCAB

    def encode_batch(self, texts):
        return [
            [int(word) if word.isdigit() else zlib.crc32(word.encode()) % VOCAB for word in text.split()]
            for text in texts
        ]


def encode(examples, kind="classification", labels=("neg", "pos"), n_ctx=32, **kwargs):
    return encode_split(examples, kind=kind, labels=labels, tokenizer=WordTokenizer(), n_ctx=n_ctx, **kwargs)


def example(label=None, where="a.csv:2", id_="0", **fields):
    return Example(id_, fields, label, where)


def test_classification_streams_labels_and_counts(caplog):
    examples = [
        example("pos", text="1 2 3", id_="a"),
        example("neg", text=" ".join(map(str, range(40))), id_="b"),
    ]
    with caplog.at_level("INFO", logger="absl"):
        split = encode(examples, n_ctx=10, name="dev")
    assert [stream.tolist() for stream in split.streams(0)] == [[START, 1, 2, 3, EXTRACT]]
    assert [stream.tolist() for stream in split.streams(1)] == [[START, *range(8), EXTRACT]]
    assert split.labels.tolist() == [1, 0]
    assert split.ids == ("a", "b")
    assert split.lengths.tolist() == [5, 10]
    assert (split.n_truncated, split.n_cut) == (1, 32)
    assert "1 example (50.00 %) cut to n_ctx=10, 32 tokens lost" in caplog.text


def test_texts_cut_beforehand_are_counted(caplog):
    examples = [
        example("A", context="1 2 3 4", question="", answers=("5", "6 7 8 9 10")),
        example("B", context="1", question="", answers=("2", "3"), id_="1"),
    ]
    with caplog.at_level("INFO", logger="absl"):
        split = encode(examples, "multiple_choice", ("A", "B"), max_text_tokens=3)
    assert [stream.tolist() for stream in split.streams(0)] == [
        [START, 1, 2, 3, DELIMITER, 5, EXTRACT],
        [START, 1, 2, 3, DELIMITER, 6, 7, 8, EXTRACT],
    ]
    assert (split.n_truncated, split.n_cut) == (1, 3)
    assert "1 example (50.00 %) cut to n_ctx=32 and 3 tokens a text, 3 tokens lost" in caplog.text


def test_ragged_multiple_choice():
    examples = [
        example("A", context="1", question="2", answers=("3", "4")),
        example("C", context="5 6", question="", answers=("7", "8", "9 9")),
    ]
    split = encode(examples, "multiple_choice", ("A", "B", "C"))
    assert [stream.tolist() for stream in split.streams(1)] == [
        [START, 5, 6, DELIMITER, 7, EXTRACT],
        [START, 5, 6, DELIMITER, 8, EXTRACT],
        [START, 5, 6, DELIMITER, 9, 9, EXTRACT],
    ]


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (example("great", text="1"), "classification", r"a\.csv:2: label 'great' is not one of 'neg', 'pos'"),
        (example("pos", text="   "), "classification", r"a\.csv:2: text '   ' has no tokens"),
        (
            example("pos", premise="1", hypothesis=" ".join("2" * 40)),
            "entailment",
            r"a\.csv:2: premise: .*hypothesis \(40 tokens\).*n_ctx=32",
        ),
        (
            example("pos", context="1", question="", answers=("1", "2", "3")),
            "multiple_choice",
            r"a\.csv:2: 3 answers, and labels for 2",
        ),
        (example("pos", text="2000"), "classification", "ids 2000..2000.* vocab_size is 1000"),
    ],
)
def test_bad_examples_are_named(bad, kind, message):
    with pytest.raises(InputError, match=message):
        encode([bad], kind)


def test_a_label_of_an_answer_that_is_not_there():
    bad = example("C", context="1", question="", answers=("1", "2"))
    with pytest.raises(InputError, match="label 'C' is not one of 'A', 'B';"):
        encode([bad], "multiple_choice", ("A", "B", "C"))


def test_texts_without_tokens_are_taken_when_asked_for():
    split = encode([example(None, text="")], allow_empty=True)
    assert split.streams(0)[0].tolist() == [START, EXTRACT]
    assert split.labels.tolist() == [-1]
    choice = [example("A", context="1", question="", answers=("", "2"))]
    split = encode(choice, "multiple_choice", ("A", "B"), allow_empty=True)
    assert [stream.tolist() for stream in split.streams(0)] == [
        [START, 1, DELIMITER, EXTRACT],
        [START, 1, DELIMITER, 2, EXTRACT],
    ]


def test_no_examples():
    with pytest.raises(InputError, match="split 'dev': no examples"):
        encode([], name="dev")
