import json

import numpy as np
import pytest

from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.shards import TokenShards
from gpt1_jax.data.split import Split
from gpt1_jax.errors import InputError


@pytest.fixture
def directory(texts, tokenizer, tmp_path):
    prepare_shards(texts, tokenizer, tmp_path, split=Split(0.2), shard_bytes=8000, parts=2)
    return tmp_path


@pytest.fixture
def shards(directory):
    return TokenShards.open(directory)


def test_describes_itself(shards, tokenizer):
    assert shards.vocab_size == tokenizer.vocab_size
    assert shards.fingerprint == tokenizer.fingerprint
    assert shards.read(0, 1).dtype == np.uint16


def test_reads_any_stretch_of_the_concatenation(shards):
    whole = np.concatenate([np.load(folder / shard.tokens.name) for folder, shard in shards.shards])
    assert len(whole) == shards.n_tokens
    edges = np.cumsum([0] + [shard.n_tokens for _, shard in shards.shards])
    places = sorted({min(max(int(e) + d, 0), len(whole)) for e in edges for d in (-1, 0, 1)} | {len(whole) // 2})
    for start in places:
        for stop in places:
            if start <= stop:
                np.testing.assert_array_equal(shards.read(start, stop), whole[start:stop])


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 10**9)])
def test_no_such_tokens(shards, start, stop):
    with pytest.raises(IndexError):
        shards.read(start, stop)


def test_bytes_before_is_exact_at_documents(shards, texts, tokenizer):
    split = Split(0.2)
    kept = [text for text in texts if split.side(text) == "train"]
    tokens = np.cumsum([0] + [len(tokenizer.encode(text)) + 1 for text in kept])
    size = np.cumsum([0] + [len(text.encode("utf-8")) for text in kept])
    np.testing.assert_array_equal(shards.bytes_before(tokens), size)
    assert 0 < shards.bytes_before(np.array([1]))[0] < size[1]
    assert shards.bytes_before(np.array(shards.n_tokens)) == shards.n_bytes


def test_a_flipped_bit_is_found(directory, shards):
    shards.verify()
    for path in sorted(directory.rglob("train-*.npy")):
        good = path.read_bytes()
        path.write_bytes(good[:-3] + bytes([good[-3] ^ 4]) + good[-2:])
        with pytest.raises(InputError, match=rf"{path.name}: has other content than was written .* delete"):
            TokenShards.open(directory).verify()
        path.write_bytes(good)
    shards.verify()


def test_missing_and_cut_files_are_found_at_once(directory):
    path = directory / "part-00001-of-00002" / "train-00000.documents.npy"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(InputError, match=f"has {len(good) - 1} bytes instead of {len(good)}"):
        TokenShards.open(directory)
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        TokenShards.open(directory)


@pytest.mark.parametrize("name", ["train-00000.tokens.npy", "heldout-00000.documents.npy"])
@pytest.mark.parametrize(("place", "byte"), [(0, b"X"), (21, b"'"), (60, b"X"), (60, b"["), (61, b"0")])
def test_a_changed_header_is_found_at_once(directory, name, place, byte):
    path = directory / "part-00000-of-00002" / name
    good = path.read_bytes()
    path.write_bytes(good[:place] + byte + good[place + 1 :])
    with pytest.raises(InputError, match=rf"{name}: has another header than was written; delete it"):
        TokenShards.open(directory, name.split("-")[0])


def test_ids_of_no_token_are_never_read(directory, shards):
    path = directory / "part-00000-of-00002" / "train-00000.tokens.npy"
    with open(path, "r+b") as file:
        file.seek(-2, 2)
        file.write(b"\xff\xff")
    damaged = TokenShards.open(directory)
    n_first = damaged.shards[0][1].n_tokens
    np.testing.assert_array_equal(damaged.read(0, n_first - 1), shards.read(0, n_first - 1))
    with pytest.raises(InputError, match=rf"{path.name}: has ids of no token, so it was changed; delete it"):
        damaged.read(0, n_first)


def test_a_missing_part_is_named(directory):
    (directory / "part-00001-of-00002" / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"part 1 of 2 .* is missing or not finished"):
        TokenShards.open(directory)


def test_parts_of_different_corpora_are_refused(directory):
    path = directory / "part-00001-of-00002" / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["settings"]["tokenizer"] = "other"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match="prepared with other settings than part-00000-of-00002"):
        TokenShards.open(directory)
    (directory / "part-00000-of-00003").mkdir()
    with pytest.raises(InputError, match="a corpus in 2 and one in 3 parts"):
        TokenShards.open(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(format=99), "is not of format 2"),
        (lambda content: content.pop("shards"), "is damaged"),
        (lambda content: content["shards"][0].pop("n_read"), "is damaged"),
    ],
)
def test_manifests_of_another_form(directory, change, message):
    path = directory / "part-00000-of-00002" / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        TokenShards.open(directory)


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match="holds no token shards"):
        TokenShards.open(tmp_path / "absent")
    with pytest.raises(InputError, match="side='test' must be one of train, heldout"):
        TokenShards.open(tmp_path, "test")
