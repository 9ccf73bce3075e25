"""The input transformations of section 3.3, against streams written out by hand, and what truncation keeps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.transforms import (
    SpecialTokens,
    classification,
    cut_texts,
    entailment,
    multiple_choice,
    similarity,
    to_streams,
)

S, D, E = 100, 101, 102
AT = {"special": SpecialTokens.after(100), "n_ctx": 12}
segment = st.lists(st.integers(0, 99), max_size=20)


def test_special_ids_follow_the_vocabulary():
    assert SpecialTokens.after(40478) == SpecialTokens(start=40478, delimiter=40479, extract=40480)


def test_the_four_kinds():
    assert classification([1, 2], **AT) == (([S, 1, 2, E],), 0)
    assert entailment([1, 2], [3], **AT) == (([S, 1, 2, D, 3, E],), 0)
    assert similarity([1, 2], [3], **AT) == (([S, 1, 2, D, 3, E], [S, 3, D, 1, 2, E]), 0)
    choices = ([S, 1, 2, 3, D, 4, E], [S, 1, 2, 3, D, 5, 6, E])
    assert multiple_choice([1, 2], [3], [[4], [5, 6]], **AT) == (choices, 0)
    assert multiple_choice([1, 2, 3], [], [[4], [5, 6]], **AT) == (choices, 0)
    assert to_streams("entailment", {"premise": [1], "hypothesis": [2]}, **AT) == (([S, 1, D, 2, E],), 0)


def test_truncation_cuts_the_end_of_what_does_not_decide():
    long = list(range(20))
    assert classification(long, **AT) == (([S, *range(10), E],), 10)
    assert entailment(long, [7, 8], **AT) == (([S, *range(7), D, 7, 8, E],), 13)
    # All answers see the same context, as much as the longest answer leaves.
    assert multiple_choice(long, [30], [[40], [41, 42, 43]], **AT) == (
        ([S, 0, 1, 2, 3, 4, 30, D, 40, E], [S, 0, 1, 2, 3, 4, 30, D, 41, 42, 43, E]),
        15,
    )
    # Of two texts the longer is cut; when both are long, each keeps half of the room.
    assert similarity(long, [7, 8], **AT).streams[0] == [S, *range(7), D, 7, 8, E]
    assert similarity(long, long[::-1], **AT).streams[0] == [S, 0, 1, 2, 3, D, 19, 18, 17, 16, E]


def test_what_fits_exactly_is_not_cut():
    assert classification([1] * 10, **AT).n_cut == 0
    assert entailment([1] * 5, [2] * 4, **AT).n_cut == 0
    assert similarity([1] * 5, [2] * 4, **AT).n_cut == 0
    assert multiple_choice([1] * 4, [2], [[3] * 4, [4]], **AT).n_cut == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classification([1], special=AT["special"], n_ctx=2), "text: nothing is left for its 1 tokens"),
        (lambda: entailment([1], [2] * 9, **AT), r"premise: .*hypothesis \(9 tokens\).*n_ctx=12"),
        (lambda: entailment([], [2] * 10, **AT), r"premise: .*hypothesis \(10 tokens\)"),
        (
            lambda: multiple_choice([1], [2] * 4, [[3], [4] * 5], **AT),
            r"question \(4 tokens\), the longest answer \(5 tokens\)",
        ),
        (lambda: multiple_choice([1], [2], [[3]], **AT), "answers: 1 given; a choice needs at least two"),
        (lambda: similarity([1], [2], special=AT["special"], n_ctx=4), "n_ctx=4: .* at least 5"),
    ],
)
def test_what_cannot_be_cut_is_an_error(call, message):
    with pytest.raises(InputError, match=message):
        call()


@settings(deadline=None)
@given(a=segment, b=segment, n_ctx=st.integers(5, 30))
def test_similarity_does_not_see_the_order_of_the_texts(a, b, n_ctx):
    one = similarity(a, b, special=AT["special"], n_ctx=n_ctx)
    other = similarity(b, a, special=AT["special"], n_ctx=n_ctx)
    assert one.streams == other.streams[::-1]
    assert one.n_cut == other.n_cut


@settings(deadline=None)
@given(
    fields=st.one_of(
        st.tuples(st.just("classification"), st.fixed_dictionaries({"text": segment})),
        st.tuples(st.just("entailment"), st.fixed_dictionaries({"premise": segment, "hypothesis": segment})),
        st.tuples(st.just("similarity"), st.fixed_dictionaries({"text_a": segment, "text_b": segment})),
        st.tuples(
            st.just("multiple_choice"),
            st.fixed_dictionaries(
                {"context": segment, "question": segment, "answers": st.lists(segment, min_size=2, max_size=4)}
            ),
        ),
    ),
    n_ctx=st.integers(2, 60),
)
def test_every_stream_fits_and_only_what_may_be_cut_is_cut(fields, n_ctx):
    kind, fields = fields
    try:
        streams, n_cut = to_streams(kind, fields, special=AT["special"], n_ctx=n_ctx)
    except InputError:
        return
    assert all(len(stream) <= n_ctx and stream[0] == S and stream[-1] == E for stream in streams)
    assert all(stream.count(S) == stream.count(E) == 1 for stream in streams)
    if kind == "entailment":
        assert streams[0][-2 - len(fields["hypothesis"]) : -1] == [D, *fields["hypothesis"]]
        assert n_cut == len(fields["premise"]) + len(fields["hypothesis"]) + 3 - len(streams[0])
    if kind == "multiple_choice":
        assert len(streams) == len(fields["answers"])
        kept = fields["context"][: len(fields["context"]) - n_cut]
        for stream, answer in zip(streams, fields["answers"], strict=True):
            assert stream == [S, *kept, *fields["question"], D, *answer, E]


def test_texts_cut_beforehand_each_to_the_same_length():
    fields = {"context": [1, 2, 3, 4], "question": [], "answers": [[5], [6, 7, 8, 9, 10]]}
    assert cut_texts(fields, 3) == ({"context": [1, 2, 3], "question": [], "answers": [[5], [6, 7, 8]]}, 3)
    assert cut_texts(fields, 5) == (fields, 0)
