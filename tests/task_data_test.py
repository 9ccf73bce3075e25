"""Examples that are read and encoded once; lengths that the splits of a task share."""

import logging

import pytest
from helpers import split_of

from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, GPT1Config
from gpt1_jax.task_data import TaskData, shared_buckets


@pytest.fixture(scope="module")
def tokenizer(corpus, tmp_path_factory):
    text = (corpus / "train.csv").read_text(encoding="utf-8")
    return tokenizers.train_sentencepiece([text], tmp_path_factory.mktemp("tokenizer"), vocab_size=300)


def test_examples_are_read_and_encoded_once_for_models_that_read_the_same(corpus, custom, tokenizer, monkeypatch):
    data = TaskData(custom(train=corpus / "train.csv", test=corpus / "test.csv"))
    assert data.readout.labels == ("negative", "positive")
    n_rows = {name: len(rows) for name, rows in data.examples.items()}
    assert n_rows == {"train": 128 - n_rows["validation"], "validation": 13, "test": 19}

    def model(n_ctx):
        return GPT1(GPT1Config(vocab_size=tokenizer.vocab_size, n_special=3, n_ctx=n_ctx), data.readout)

    long, short = data.encoded(model(64), tokenizer), data.encoded(model(16), tokenizer)
    assert {name: len(split) for name, split in long.items()} == n_rows
    assert (long["train"].lengths.max() > 16) > (short["train"].lengths.max() > 16)
    first = data.encoded(model(64), tokenizer, max_text_tokens=3)
    assert first["test"].lengths.max() == 5
    monkeypatch.setattr("gpt1_jax.task_data.encode_split", None)
    assert data.encoded(model(64), tokenizer) is long
    assert data.encoded(model(16), tokenizer) is short
    assert data.encoded(model(64), tokenizer, max_text_tokens=3) is first


def test_a_task_without_a_training_split_is_refused(corpus, custom):
    data = TaskData(custom(test=corpus / "test.csv", labels=["negative", "positive"]))
    with pytest.raises(InputError, match=r"has no training split; give the files in task\.train"):
        _ = data.readout


@pytest.mark.parametrize(
    ("options", "buckets", "message"),
    [
        ({}, (8, 40, 64), "one of (8, 40, 64) tokens: at most 6 compilations"),
        ({"count": 1, "trained": True}, (64,), "at most 1 compilation for training and 2 for evaluation"),
        ({"buckets": (48, 64)}, (48, 64), "one of (48, 64) tokens: at most 4 compilations"),
    ],
)
def test_all_splits_share_lengths_and_the_compilations_are_counted(options, buckets, message, caplog):
    splits = [split_of([3, 64], 2), split_of([40], 2), split_of([5, 5, 5], 4)]  # two widths of a batch
    with caplog.at_level(logging.INFO, logger="absl"):
        assert shared_buckets(splits, **options) == buckets
    assert message in caplog.text
