import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.errors import InputError
from gpt1_jax.tokenizers.bpe import BytePairs, parse

IDS = {"<unk>": 0, "a": 1, "b": 2, "a</w>": 3, "b</w>": 4, "ab": 5, "ab</w>": 6, "abab</w>": 7, "\n</w>": 8}
MERGES = "#version: 0.2\na b</w>\na b\nab ab</w>\n"


def read(ids=IDS, merges=MERGES) -> BytePairs:
    ids = ids if isinstance(ids, bytes) else json.dumps(ids).encode()
    merges = merges if isinstance(merges, bytes) else merges.encode()
    return parse(ids, "encoder.json", merges, "vocab.bpe")


def joined_one_pair_at_a_time(pairs: BytePairs, word: str) -> list[str]:
    symbols = [*word[:-1], word[-1] + "</w>"]
    while best := next((pair for pair in pairs.merges if pair in [*itertools.pairwise(symbols)]), None):
        rest, symbols = symbols, []
        while rest:
            n = 2 if tuple(rest[:2]) == best else 1
            symbols.append("".join(rest[:n]))
            rest = rest[n:]
    return symbols


def test_pairs_are_joined_by_rank_and_from_left_to_right():
    pairs = read()
    assert pairs.split("abab") == ["abab</w>"]
    assert pairs.split("aabb") == ["a", "ab", "b</w>"]
    assert pairs.split("a") == ["a</w>"]
    assert pairs.encode("abcab") == (5, 0, 6)
    runs = BytePairs({"a": 0}, (("a", "a"), ("aa", "aa")))
    assert runs.split("a" * 8) == ["aaaa", "aa", "a", "a</w>"]


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 30), st.text("abc", min_size=1, max_size=30))
def test_any_list_of_merges_is_followed(seed, word):
    """Also lists that no training gives: a later merge may make what an earlier one joins."""
    rng = random.Random(seed)
    symbols, merges = ["a", "b", "c", "a</w>", "b</w>", "c</w>"], []
    for _ in range(12):
        pair = (rng.choice([s for s in symbols if not s.endswith("</w>")]), rng.choice(symbols))
        merges.append(pair)
        symbols.append("".join(pair))
    rng.shuffle(merges)
    pairs = BytePairs({}, tuple(dict.fromkeys(merges)))
    assert pairs.split(word) == joined_one_pair_at_a_time(pairs, word)


def test_a_long_word_is_split_in_reasonable_time():
    """The time of a quadratic algorithm in Python would be minutes."""
    word = "".join(random.Random(0).choices("ab", k=50_000))
    assert "".join(read().split(word)) == word + "</w>"


def test_layout_does_not_matter_but_content_does():
    digest = read().digest
    assert read(dict(reversed(IDS.items()))).digest == digest
    assert read(json.dumps(IDS, indent=2).encode(), MERGES.replace("\n", "\r\n")).digest == digest
    assert read({**IDS, "ab": 6, "ab</w>": 5}).digest != digest
    assert read(merges="#version: 0.2\na b\na b</w>\nab ab</w>\n").digest != digest


def test_unknown_may_share_id_0_and_single_characters_may_be_missing():
    """As in the small checkpoint of allennlp's tests."""
    pairs = read({"ab</w>": 0, "ab": 1, "<unk>": 0}, "#version 0.0\na b</w>\na b\n\n")
    assert pairs.subwords == ("<unk>", "ab")
    assert pairs.encode("abxab") == (1, 0, 0)


@pytest.mark.parametrize(
    ("ids", "merges", "message"),
    [
        (b"{", MERGES, r"^encoder\.json, line 1: is not JSON"),
        (b'{"a": 0,\n"b": }', MERGES, r"^encoder\.json, line 2: is not JSON"),
        (b'{"a\xff": 0}', MERGES, r"^encoder\.json, line 1: is not UTF-8 \(byte 0xff\)"),
        (b"[1]", MERGES, r"^encoder\.json: should be a JSON object .* not list"),
        (b"{}", MERGES, r"^encoder\.json: should be a JSON object"),
        ({**IDS, "c": "9"}, MERGES, r"^encoder\.json: the id of 'c' is '9'"),
        ({**IDS, "c": True}, MERGES, r"^encoder\.json: the id of 'c' is True"),
        ({**IDS, "c": 2}, MERGES, r"^encoder\.json: 'b' and 'c' both have id 2"),
        ({**IDS, "c": 10}, MERGES, r"^encoder\.json: 10 ids, but no subword has id 9 while 'c' has 10; .* 0 to 9"),
        ({**IDS, "c": -1}, MERGES, r"^encoder\.json: 10 ids, but no subword has id 9 while 'c' has -1"),
        (IDS, "a b\n", r"^vocab\.bpe, line 1: is 'a b' where"),
        (IDS, "", r"^vocab\.bpe, line 1: is '' where"),
        (IDS, MERGES.rstrip(), r"^vocab\.bpe, line 4: the last line has no line end"),
        (IDS, MERGES + "a\n", r"^vocab\.bpe, line 5: 'a' is no merge"),
        (IDS, MERGES.replace("a b\n", "\n"), r"^vocab\.bpe, line 3: '' is no merge"),
        (IDS, MERGES + "ab b\n", r"^vocab\.bpe, line 5: 'abb' of the merge 'ab' \+ 'b' is not in encoder\.json"),
        (IDS, MERGES.encode() + b"a \xe4\n", r"^vocab\.bpe, line 5: is not UTF-8 \(byte 0xe4\)"),
        ({"a": 0, "b": 1, "ab": 2}, "#version: 0.2\na b\n", r"^encoder\.json: no subword ends in '</w>'.*GPT-2"),
    ],
)
def test_bad_files_are_named_with_the_line(ids, merges, message):
    with pytest.raises(InputError, match=message):
        read(ids, merges)
