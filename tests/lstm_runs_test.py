"""Runs with the LSTM: all that is there for the Transformer works with `model.trunk=lstm` and nothing else changed."""

import json

import jax
import numpy as np
import pytest

from gpt1_jax import evaluate, export, finetune, generate, load_pretrained, predict, pretrain
from gpt1_jax.errors import InputError
from gpt1_jax.metrics import read_metrics

LSTM = {"trunk": "lstm", "lstm_units": 64}


@pytest.fixture(scope="module")
def trained(pretrain_settings, tmp_path_factory):
    """The workdir of ten updates on eight devices."""
    workdir = tmp_path_factory.mktemp("lstm") / "pretrained"
    pretrain.run(pretrain_settings(model=LSTM), workdir)
    return workdir


def test_it_learns_and_is_loaded_again(trained):
    curve = [m["heldout_loss"] for m in read_metrics(trained) if "heldout_loss" in m]
    first = next(m["loss"] for m in read_metrics(trained))
    print(first, curve)
    model, params, tokenizer = load_pretrained(trained)
    assert model.config.trunk == "lstm"
    text = generate(model, params, tokenizer, ["the film", "a very long and"], max_new_tokens=5, temperature=0)
    print(text)


def test_finetune(trained, corpus, tmp_path):
    config = {"task": {"train": [str(corpus / "validation.csv")], "validation": [str(corpus / "test.csv")]}, "batch_size": 8, "epochs": 1, "n_buckets": 1, "optimizer": {"learning_rate": 1e-2}}
    result = finetune.run(config, tmp_path / "run", trained)
    print(result.metrics)
    print(predict(result.model, result.params, result.tokenizer, ["a warm film"]))
