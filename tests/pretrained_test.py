"""Models on disk: round trip, shorter contexts, and what is refused."""

import json
import shutil

import jax
import numpy as np
import pytest

from gpt1_jax import GPT1, GPT1Config, InputError, generate, load_pretrained, save_pretrained


def test_saved_and_loaded_is_the_same_model(pretrained, tmp_path):
    model, params, tokenizer = load_pretrained(pretrained)
    save_pretrained(tmp_path / "model", model, params, tokenizer)
    again, again_params, again_tokenizer = load_pretrained(tmp_path / "model")
    assert again == model
    assert again_tokenizer.fingerprint == tokenizer.fingerprint
    jax.tree.map(np.testing.assert_array_equal, params, again_params)
    with pytest.raises(InputError, match="not empty"):
        save_pretrained(tmp_path / "model", model, params, tokenizer)
    with pytest.raises(InputError, match="format='onnx'"):
        save_pretrained(tmp_path / "other", model, params, tokenizer, format="onnx")


def test_a_shorter_context_keeps_the_first_positions(pretrained):
    model, params, _ = load_pretrained(pretrained)
    short, short_params, _ = load_pretrained(pretrained, n_ctx=8)
    tokens = np.arange(16).reshape(2, 8) % 300
    np.testing.assert_array_equal(
        model.apply({"params": params}, tokens), short.apply({"params": short_params}, tokens)
    )
    with pytest.raises(InputError, match="n_ctx=33"):
        load_pretrained(pretrained, n_ctx=33)


def test_dtype_is_of_the_computation_only(pretrained):
    model, params, tokenizer = load_pretrained(pretrained, dtype="bfloat16")
    assert model.config.dtype == "bfloat16"
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {"float32"}
    assert generate(model, params, tokenizer, "the film", max_new_tokens=3)


def test_what_cannot_be_loaded_says_why(pretrained, tmp_path):
    with pytest.raises(InputError, match="not a workdir"):
        load_pretrained(tmp_path / "nothing")
    copy = tmp_path / "copy"
    shutil.copytree(pretrained, copy)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(InputError, match="no finished checkpoint"):
        load_pretrained(copy)
    (copy / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(InputError, match="describes no GPT-1"):
        load_pretrained(copy)
    shutil.copytree(pretrained, copy / "seed_3")
    (copy / "config.json").write_text('{"program": "finetune, repeated"}')
    with pytest.raises(InputError, match=r"holds several runs: give one of them, .*copy/seed_3$"):
        load_pretrained(copy)


def test_without_a_best_checkpoint_the_latest_is_loaded(pretrained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pretrained, copy)
    config = json.loads((copy / "config.json").read_text())
    config["best"] = {"best_metric": "validation_accuracy"}  # of which no checkpoint has a value
    (copy / "config.json").write_text(json.dumps(config))
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(copy)[1], load_pretrained(pretrained)[1])


def test_a_tokenizer_of_another_size_is_refused(pretrained, tmp_path):
    _, params, tokenizer = load_pretrained(pretrained)
    other = GPT1(GPT1Config(vocab_size=500, n_ctx=8, n_embd=16, n_head=2, n_layer=1))
    with pytest.raises(InputError, match="vocab_size=500"):
        save_pretrained(tmp_path / "model", other, params, tokenizer)
    copy = tmp_path / "copy"
    shutil.copytree(pretrained, copy)
    config = json.loads((copy / "config.json").read_text())
    config["model"]["vocab_size"] = 381
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="vocab_size=381"):
        load_pretrained(copy)


def test_a_flipped_bit_is_found(pretrained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pretrained, copy)
    data = max((copy / "checkpoints" / "10").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(InputError, match=data.name):
        load_pretrained(copy)
