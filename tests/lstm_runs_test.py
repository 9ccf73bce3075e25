"""Runs with the LSTM: all that is there for the Transformer works with `model.trunk=lstm` and nothing else changed."""

import pytest

from gpt1_jax import finetune, generate, load_pretrained, predict, pretrain

LSTM = {"trunk": "lstm", "lstm_units": 64}


@pytest.fixture(scope="module")
def trained(pretrain_settings, tmp_path_factory):
    """The workdir of ten updates on eight devices."""
    workdir = tmp_path_factory.mktemp("lstm") / "pretrained"
    pretrain.run(pretrain_settings(model=LSTM), workdir)
    return workdir


def test_it_is_loaded_and_continues_texts(trained):
    model, params, tokenizer = load_pretrained(trained)
    assert (model.config.trunk, model.config.lstm_units) == ("lstm", 64)
    texts = generate(model, params, tokenizer, ["the film", "a very long and"], max_new_tokens=5, temperature=0)
    assert [text.startswith(prompt) for text, prompt in zip(texts, ("the film", "a very long and"), strict=True)]


def test_finetune(trained, corpus, tmp_path):
    task = {"train": [str(corpus / "validation.csv")], "validation": [str(corpus / "test.csv")]}
    result = finetune.run({"task": task, "batch_size": 8, "epochs": 1, "n_buckets": 1}, tmp_path / "run", trained)
    labels, probabilities = predict(result.model, result.params, result.tokenizer, ["a warm film"])
    assert set(labels) <= {"negative", "positive"}
    assert probabilities.sum() == pytest.approx(1)
