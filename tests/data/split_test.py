import pytest

from gpt1_jax.data.split import Split, document_key
from gpt1_jax.errors import InputError


def test_copies_are_on_the_same_side_whatever_their_case_and_white_space():
    split = Split(heldout_fraction=0.5)
    sides = set()
    for number in range(50):
        text = f"Document {number}\nof the Corpus."
        side = split.side(text)
        assert split.side(f"  document {number} of  the corpus.\n") == side
        sides.add(side)
    assert sides == {"train", "heldout"}


def test_fraction_and_seed():
    texts = [str(number) for number in range(2000)]
    sides = [[Split(0.1, seed).side(text) for text in texts] for seed in (0, 1, -1)]
    assert len(set(map(tuple, sides))) == 3
    for side in sides:
        assert 150 < side.count("heldout") < 250
    assert {Split(0).side(text) for text in texts} == {"train"}
    larger = {text for text in texts if Split(0.2).side(text) == "heldout"}
    assert larger > {text for text, side in zip(texts, sides[0], strict=True) if side == "heldout"}


def test_excluded_texts_and_their_copies():
    split = Split(0.5, excluded=frozenset(map(document_key, ["A test sentence .", "b"])))
    assert [split.side(text) for text in ("a  TEST sentence .", "b\n")] == ["excluded"] * 2
    assert [split.side(text) for text in ("B ", "a test sentence .", "c")] == ["excluded", "excluded", "heldout"]
    assert list(split.training_documents(["b", "c", "a test sentence .", " ", "d"])) == [" ", "d"]
    assert (
        split.excluded_digest
        == Split(excluded=frozenset(map(document_key, ["b", "a test sentence ."]))).excluded_digest
    )
    assert split.excluded_digest != Split().excluded_digest


def test_training_documents_end_with_a_refusal_where_nothing_is_held_out():
    """With a fraction that does hold one out."""
    texts = ["one", "two", "three"]
    documents = Split(1e-9).training_documents(texts)
    assert [next(documents) for _ in texts] == texts
    with pytest.raises(InputError, match="none of the 3 documents") as caught:
        next(documents)
    enough = float(str(caught.value).partition("raise it to ")[2].split()[0])
    assert len(list(Split(enough).training_documents(texts))) == 2
    assert list(Split(0.0).training_documents(texts)) == texts
    with pytest.raises(InputError, match="of the 1 documents of the source is held out; cut"):
        list(Split(1e-9).training_documents(["one", " "]))


def test_rank_decides():
    for number in range(20):
        rank = Split().place(str(number))[1]
        assert Split(rank).side(str(number)) == "train"
        assert Split(min(rank + 1e-9, 0.999999)).side(str(number)) == "heldout"


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan")])
def test_fractions_out_of_range_are_refused(fraction):
    with pytest.raises(InputError, match="heldout_fraction="):
        Split(heldout_fraction=fraction)
