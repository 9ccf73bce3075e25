"""Runs with the LSTM: what there is for the Transformer works with `model.trunk=lstm` and nothing else changed."""

import importlib.util
import shutil

import jax
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax import GPT1, evaluate, export, finetune, generate, load_pretrained, predict, pretrain, save_pretrained
from gpt1_jax.errors import InputError
from gpt1_jax.model_config import N_SPECIAL, GPT1Config, ReadOut
from gpt1_jax.warm_start import ModelOptions, starting_point

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


def test_a_run_goes_on_where_it_was_to_the_same_bits(trained, pretrain_settings, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "10")
    again = pretrain.run(pretrain_settings(model=LSTM), tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, dict(again.params), load_pretrained(trained)[1])


def test_a_task_and_what_can_be_asked_of_it(trained, corpus, tmp_path):
    task = {"train": [str(corpus / "validation.csv")], "validation": [str(corpus / "test.csv")]}
    result = finetune.run({"task": task, "batch_size": 8, "epochs": 1, "n_buckets": 1}, tmp_path / "run", trained)
    labels, probabilities = predict(result.model, result.params, result.tokenizer, ["a warm film", "a dull one ."])
    assert set(labels) <= {"negative", "positive"}
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    metrics = evaluate.run(tmp_path / "run", {"batch_size": 8})["validation"]
    assert metrics == pytest.approx(result.metrics["validation"], abs=1e-5)
    asked = evaluate.run(trained, {"zero_shot": "sst2", "data": (str(corpus / "test.csv"),), "batch_size": 8})
    assert 0 <= asked["test"]["accuracy"] <= 1


def test_what_is_transferred(trained):
    common = {"init_from": trained, "tokenizer": None, "seed": 0}
    embeddings = {"tokens_embed", "positions_embed"}
    assert set(starting_point(ModelOptions(), **common, n_transfer=0).params) == embeddings
    assert set(starting_point(ModelOptions(), **common, n_transfer=1).params) == embeddings | {"lstm"}
    with pytest.raises(InputError, match=r"n_transfer=2: .* has an LSTM, which counts as 1 block; use 0 to 1"):
        starting_point(ModelOptions(), **common, n_transfer=2)
    assert starting_point(ModelOptions(n_layer=5), **common).params.keys() == embeddings | {"lstm"}


@pytest.mark.parametrize("changes", [{"lstm_units": 32}, {"trunk": "transformer"}], ids=str)
def test_other_weights_are_refused(trained, changes):
    with pytest.raises(InputError, match=r"model\.(lstm_units=32|trunk='transformer') contradicts"):
        starting_point(ModelOptions(**changes), init_from=trained, tokenizer=None, seed=0)


@pytest.mark.parametrize("readout", [None, ReadOut("multiple_choice", ("A", "B"))], ids=["text", "task"])
def test_an_exported_folder_says_what_the_package_says(trained, tmp_path, readout):
    tokenizer = load_pretrained(trained)[2]
    n_special = 0 if readout is None else N_SPECIAL
    config = GPT1Config(vocab_size=tokenizer.vocab_size, n_special=n_special, n_ctx=24, n_embd=32, **LSTM)
    model = GPT1(config, readout)
    save_pretrained(tmp_path / "model", model, random_params(model), tokenizer)
    export.run(tmp_path / "model", tmp_path / "exported")
    spec = importlib.util.spec_from_file_location("exported_lstm", tmp_path / "exported" / "predict.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exported, (model, params, _) = module.load(), load_pretrained(tmp_path / "model")
    if readout is None:
        prompts, settings = ["a warm film", "", "a dull story with a cast"], {"max_new_tokens": 30, "temperature": 0.0}
        assert exported.generate(prompts, **settings) == generate(model, params, tokenizer, prompts, **settings)
    else:
        examples = [{"context": "a film", "question": "what ?", "answers": ["the cast", "it"]}]
        found, expected = exported(examples), predict(model, params, tokenizer, examples)
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-6)
