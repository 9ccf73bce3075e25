import os

import pytest

from gpt1_jax.data import shards
from gpt1_jax.data.corpus import learn_tokenizer, make_tokenizer, open_corpus, still_to_do, verify
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.shards import TokenShards
from gpt1_jax.data.split import Split
from gpt1_jax.errors import InputError

SPLIT = Split(heldout_fraction=0.2)


def prepare(texts, tokenizer, directory, **settings):
    tokenizer.save(directory / "tokenizer")
    prepare_shards(texts, tokenizer, directory, **{"split": SPLIT, "shard_bytes": 4000, "parts": 2} | settings)
    return directory


@pytest.fixture
def directory(texts, tokenizer, tmp_path):
    return prepare(texts, tokenizer, tmp_path / "corpus")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def test_the_tokenizer_is_learnt_once_and_the_same_everywhere(texts, tmp_path):
    first = make_tokenizer(tmp_path / "a", texts, SPLIT, vocab_size=390)
    made = (tmp_path / "a" / "tokenizer" / "sentencepiece.model").stat().st_mtime_ns
    assert make_tokenizer(tmp_path / "a", texts, SPLIT, vocab_size=390).fingerprint == first.fingerprint
    assert (tmp_path / "a" / "tokenizer" / "sentencepiece.model").stat().st_mtime_ns == made
    assert make_tokenizer(tmp_path / "b", texts, SPLIT, vocab_size=390).fingerprint == first.fingerprint
    copied = make_tokenizer(tmp_path / "c", [], SPLIT, path=str(tmp_path / "a"))
    assert copied.fingerprint == first.fingerprint
    for other in ({"vocab_size": 391}, {"vocab_size": 390, "lowercase": False}):
        with pytest.raises(InputError, match=r"its tokenizer \(of 390 ids\) is not the one of .*choose another folder"):
            make_tokenizer(tmp_path / "a", texts, SPLIT, **other)
    cased = make_tokenizer(tmp_path / "d", texts, SPLIT, vocab_size=390, lowercase=False)
    assert make_tokenizer(tmp_path / "d", texts, SPLIT, vocab_size=390, lowercase=False) == cased
    with pytest.raises(InputError, match="is not the one of tokenizer="):
        make_tokenizer(tmp_path / "a", texts, SPLIT, path=str(tmp_path / "d"))


def test_of_a_large_source_a_sample_is_learnt_from_and_the_log_says_so(texts, tmp_path, caplog):
    """A sample in which nothing happens to be held out is no reason to refuse the corpus."""
    splits = (Split(0.004, seed) for seed in range(100))
    split = next(split for split in splits if [split.side(text) for text in texts].count("heldout") == 1)
    with caplog.at_level("INFO"):
        one = learn_tokenizer(texts, split, tmp_path / "a", vocab_size=320, lowercase=True, max_training_bytes=9000)
    assert "a sample of 0.009 of" in caplog.text
    again = learn_tokenizer(texts, split, tmp_path / "b", vocab_size=320, lowercase=True, max_training_bytes=9000)
    assert one.fingerprint == again.fingerprint
    whole = learn_tokenizer(texts, split, tmp_path / "c", vocab_size=320, lowercase=True)
    assert whole.fingerprint != one.fingerprint


def test_verification_counts_everything(directory, texts, tokenizer):
    table = verify(directory).splitlines()
    assert [line.split()[:2] for line in table[1:7]] == [
        [part, side] for part in ("part-00000-of-00002", "part-00001-of-00002", "all") for side in ("train", "heldout")
    ]
    train = TokenShards.open(directory)
    size = sum(len(text.encode()) for text in texts if SPLIT.side(text) == "train")
    assert table[5].split() == ["all", "train", str(train.n_documents), f"{train.n_tokens:,}", f"{size / 1e6:.1f}"]
    assert table[7] == "left out: 0 empty and 0 excluded documents of 300"


def test_a_damaged_file_is_found_and_made_again(directory, texts, tokenizer):
    path = directory / "part-00001-of-00002" / "heldout-00001.tokens.npy"
    good = path.read_bytes()
    flip(path)
    open_corpus(directory)  # looks at sizes only
    with pytest.raises(InputError, match=rf"{path.name}: has other content.*; delete it and prepare this part again"):
        verify(directory)
    path.unlink()
    with pytest.raises(InputError, match=r"is missing; .*prepare this part again"):
        open_corpus(directory)
    prepare(texts, tokenizer, directory)
    assert path.read_bytes() == good
    verify(directory)


def test_what_is_still_to_do(texts, tokenizer, tmp_path):
    assert still_to_do(tmp_path) == ([], 0)
    prepare(texts, tokenizer, tmp_path, parts=3, part=1)
    assert still_to_do(tmp_path) == ([0, 2], 3)
    with pytest.raises(InputError, match=r"part 0, 2 of 3 \(counted from 0\) is missing or not finished"):
        verify(tmp_path)
    prepare(texts, tokenizer, tmp_path, parts=3)
    assert still_to_do(tmp_path) == ([], 3)


def test_a_part_from_another_preparation_is_refused(directory, texts, tokenizer, tmp_path):
    other = prepare(texts, tokenizer, tmp_path / "other", split=Split(0.3))
    (directory / "part-00001-of-00002").rename(tmp_path / "old")
    (other / "part-00001-of-00002").rename(directory / "part-00001-of-00002")
    with pytest.raises(InputError, match="part-00001-of-00002: was prepared with other settings"):
        verify(directory)
    with pytest.raises(InputError, match=r"heldout_fraction was 0\.3, is now 0\.2"):
        prepare(texts, tokenizer, directory)


def test_nothing_held_out_in_any_part_is_found_at_the_end(texts, tokenizer, tmp_path):
    few = [text for text in texts if Split(0.1).side(text) == "train"][:5]
    prepare(few, tokenizer, tmp_path, split=Split(0.1))
    with pytest.raises(InputError, match=r"none of the 5 documents .* raise it to 0\.\d+ .* Delete the folder first"):
        verify(tmp_path)


def test_the_tokenizer_has_to_be_that_of_the_tokens(directory, texts, tmp_path):
    (directory / "tokenizer").rename(tmp_path / "away")
    with pytest.raises(InputError, match="has no tokenizer/; copy it from"):
        open_corpus(directory)
    make_tokenizer(directory, texts, SPLIT, vocab_size=390)
    with pytest.raises(InputError, match="is not the tokenizer that made part-00000-of-00002"):
        open_corpus(directory)


def test_identity_is_what_a_run_is_trained_on(directory, texts, tokenizer, tmp_path):
    identity = open_corpus(directory).identity
    assert open_corpus(prepare(texts, tokenizer, tmp_path / "1", parts=5, shard_bytes=900)).identity == identity
    assert open_corpus(prepare(texts, tokenizer, tmp_path / "2", split=Split(0.2, 1))).identity != identity
    nothing = open_corpus(prepare(texts, tokenizer, tmp_path / "3", split=Split(0.0)))
    assert nothing.heldout is None
    assert nothing.identity != identity


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to count open files")
def test_many_shards_do_not_keep_many_files_open(texts, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_MAPPED", 3)
    stream = TokenShards.open(prepare(texts, tokenizer, tmp_path, shard_bytes=1000))
    assert len(stream.shards) > 30
    before = len(os.listdir("/proc/self/fd"))
    whole = stream.read(0, stream.n_tokens)
    assert len(whole) == stream.n_tokens
    assert len(os.listdir("/proc/self/fd")) <= before + 4
