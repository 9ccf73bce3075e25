"""What only transformers and PyTorch can say. Run by transformers_test.py, where they are installed."""

import dataclasses
import json
import logging
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from helpers import params_for_transformers

from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.interop.huggingface import load_huggingface, save_huggingface
from gpt1_jax.losses import task_outputs
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.sampling import generate_tokens

PLAIN = GPT1Config(vocab_size=61, n_ctx=16, n_embd=16, n_head=2, n_layer=2)
TUNED = dataclasses.replace(PLAIN, n_special=3)
NO_BIAS = dataclasses.replace(TUNED, clf_bias=False)
CLASSES = ReadOut("classification", ("no", "yes", "perhaps"))
LAST = dataclasses.replace(CLASSES, read_at="last")
LANGUAGE_MODELS = {
    "pre-trained": GPT1(PLAIN),
    "relu": GPT1(dataclasses.replace(PLAIN, activation="relu")),
    "swish": GPT1(dataclasses.replace(PLAIN, activation="swish")),
    "fine-tuned, without its head": GPT1(TUNED),
}
TASK_MODELS = {
    "classification": GPT1(NO_BIAS, CLASSES),
    "classification, bias zero": GPT1(TUNED, CLASSES),
    "entailment": GPT1(NO_BIAS, ReadOut("entailment", ("no", "yes"))),
    "classification at the last token": GPT1(dataclasses.replace(PLAIN, clf_bias=False), LAST),
    "multiple choice": GPT1(TUNED, ReadOut("multiple_choice")),
    "multiple choice, no bias": GPT1(NO_BIAS, ReadOut("multiple_choice", ("A", "B"))),
    "multiple choice at the last token": GPT1(PLAIN, ReadOut("multiple_choice", read_at="last")),
}
MODELS = LANGUAGE_MODELS | TASK_MODELS
close = dict(rtol=0, atol=1e-5)
GOLDENS = ("hf_tiny_lm", "hf_tiny_base", "hf_tiny_doubleheads", "hf_tiny_seqclf")


def same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def class_of(folder: Path) -> Any:
    """The class that config.json names."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return getattr(transformers, config["architectures"][0])


@pytest.fixture
def load(caplog: pytest.LogCaptureFixture) -> Callable[..., Any]:
    """`from_pretrained`, with nothing to be said about it."""
    transformers.logging.enable_propagation()

    def load(folder: Path, cls: Any = None) -> Any:
        caplog.clear()
        with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
            warnings.simplefilter("error")
            loaded, info = (cls or class_of(folder)).from_pretrained(folder, output_loading_info=True)
        assert not any(info.values()), info
        assert caplog.records == []
        return loaded.eval()

    return load


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_models(name, load, tmp_path):
    model = LANGUAGE_MODELS[name]
    params = params_for_transformers(model)
    save_huggingface(tmp_path, model, params)
    theirs = load(tmp_path)
    assert type(theirs) is transformers.OpenAIGPTLMHeadModel
    assert theirs.lm_head.weight is theirs.transformer.tokens_embed.weight
    ids = np.random.default_rng(1).integers(0, model.config.n_rows, (3, 16))
    with torch.no_grad():
        logits = theirs(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(model.apply({"params": params}, ids), logits, **close)


def labelled_batch(model: GPT1) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Streams padded with zeros, and the places that are read: the last real token, which an extract token may be."""
    rng = np.random.default_rng(2)
    n_streams = 4 if model.readout.kind == "multiple_choice" else 1
    tokens = rng.integers(1, model.config.vocab_size, (5, n_streams, 16), np.int32)
    at = rng.integers(3, 16, tokens.shape[:2])
    if model.readout.read_at == "extract":
        np.put_along_axis(tokens, at[..., None], model.config.extract_id, axis=2)
    mask = np.arange(16) <= at[..., None]
    batch = {
        "tokens": np.where(mask, tokens, 0),
        "mask": mask.astype(np.float32),
        "stream_mask": np.ones(at.shape, bool),
        "label": np.zeros(5, np.int32),
        "weight": np.ones(5, np.float32),
    }
    return batch, at


@pytest.mark.parametrize("name", TASK_MODELS)
def test_task_heads(name, load, tmp_path):
    model = TASK_MODELS[name]
    params = params_for_transformers(model)
    save_huggingface(tmp_path, model, params)
    theirs = load(tmp_path)
    batch, at = labelled_batch(model)
    ours = task_outputs(model, params, batch)["logits"]
    ids = torch.tensor(batch["tokens"]).long()
    with torch.no_grad():
        if model.readout.kind == "multiple_choice":
            assert type(theirs) is transformers.OpenAIGPTDoubleHeadsModel
            out = theirs(ids, mc_token_ids=torch.tensor(at))
            lm = model.apply({"params": params}, batch["tokens"].reshape(-1, 16))
            np.testing.assert_allclose(lm, out.logits.reshape(-1, 16, model.config.n_rows), **close)
            logits = out.mc_logits
        else:
            assert type(theirs) is transformers.OpenAIGPTForSequenceClassification
            assert [theirs.config.id2label[i] for i in range(len(model.readout.labels))] == list(model.readout.labels)
            logits = theirs(ids[:, 0]).logits
    np.testing.assert_allclose(ours, logits.numpy(), **close)


def test_automatic_classes(load, tmp_path):
    for name, cls in [
        ("fine-tuned, without its head", transformers.AutoModelForCausalLM),
        ("classification", transformers.AutoModelForSequenceClassification),
    ]:
        folder = tmp_path / cls.__name__
        save_huggingface(folder, MODELS[name], params_for_transformers(MODELS[name]))
        assert type(load(folder, cls)) is class_of(folder)


@pytest.mark.parametrize("name", MODELS)
def test_saved_again_by_transformers(name, load, tmp_path):
    """The section of ours survives, and with it the same model."""
    model = MODELS[name]
    save_huggingface(tmp_path / "ours", model, params_for_transformers(model))
    load(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    config, readout, params = load_huggingface(tmp_path / "theirs")
    assert (config, readout) == (model.config, model.readout)
    same(params, params_for_transformers(model))


def test_shards_that_transformers_writes(load, tmp_path):
    model = MODELS["pre-trained"]
    save_huggingface(tmp_path / "ours", model, params_for_transformers(model))
    load(tmp_path / "ours").save_pretrained(tmp_path / "theirs", max_shard_size="8KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    same(load_huggingface(tmp_path / "theirs")[2], params_for_transformers(model))


def test_changed_by_transformers(load, tmp_path):
    """A classifier on top of our language model is loaded as one; a resized table is not ours any more."""
    model = MODELS["fine-tuned, without its head"]
    save_huggingface(tmp_path / "ours", model, params_for_transformers(model))
    classifier = transformers.OpenAIGPTForSequenceClassification.from_pretrained(tmp_path / "ours", num_labels=4)
    classifier.save_pretrained(tmp_path / "classifier")
    config, readout, params = load_huggingface(tmp_path / "classifier")
    assert config == NO_BIAS
    assert readout == ReadOut("classification", tuple(f"LABEL_{i}" for i in range(4)), read_at="last")
    np.testing.assert_array_equal(params["clf"]["kernel"], classifier.score.weight.detach().numpy().T)

    resized = load(tmp_path / "ours")
    resized.resize_token_embeddings(70)
    resized.save_pretrained(tmp_path / "resized")
    with pytest.raises(InputError, match="vocab_size=70, but this package wrote 61 tokens and 3 special ones"):
        load_huggingface(tmp_path / "resized")


def test_greedy_generation_without_special_tokens(load, tmp_path):
    model = MODELS["fine-tuned, without its head"]
    params = params_for_transformers(model)
    rows = params["tokens_embed"]["embedding"]
    rows[61:64] = 2 * rows[:61][np.argsort(-np.linalg.norm(rows[:61], axis=1))[:3]]  # likelier than any token
    prompts = np.random.default_rng(3).integers(0, 61, (4, 5))
    save_huggingface(tmp_path, model, params)
    theirs = load(tmp_path)

    def new_tokens() -> np.ndarray:
        ids = torch.tensor(prompts)
        return theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=11, do_sample=False)[
            :, 5:
        ].numpy()

    ours = generate_tokens(model, params, prompts.tolist(), max_new_tokens=11, temperature=0)
    np.testing.assert_array_equal(ours, new_tokens())
    theirs.generation_config.suppress_tokens = None
    assert (new_tokens() >= 61).any()


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("name", GOLDENS)
def test_weights_in_a_pickle(name, archive, goldens, tmp_path):
    """Both forms that PyTorch has had, with the old buffers."""
    state = class_of(goldens / name).from_pretrained(goldens / name).state_dict()
    prefix = "transformer." if "transformer.positions_embed.weight" in state else ""
    state[f"{prefix}h.0.attn.bias"] = torch.ones(1, 1, 4, 4).tril()
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    (tmp_path / "config.json").write_bytes((goldens / name / "config.json").read_bytes())
    ours, expected = load_huggingface(tmp_path), load_huggingface(goldens / name)
    assert ours[:2] == expected[:2]
    same(ours[2], expected[2])


def test_pickles_with_an_index(goldens, tmp_path):
    state = class_of(goldens / "hf_tiny_lm").from_pretrained(goldens / "hf_tiny_lm").state_dict()
    files = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(state)}
    for file in set(files.values()):
        torch.save({name: state[name].clone() for name in state if files[name] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")
    (tmp_path / "config.json").write_bytes((goldens / "hf_tiny_lm" / "config.json").read_bytes())
    same(load_huggingface(tmp_path)[2], load_huggingface(goldens / "hf_tiny_lm")[2])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype, goldens, tmp_path):
    half = transformers.OpenAIGPTLMHeadModel.from_pretrained(goldens / "hf_tiny_lm", dtype=getattr(torch, dtype))
    half.save_pretrained(tmp_path / "safetensors")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "config.json").write_bytes((tmp_path / "safetensors" / "config.json").read_bytes())
    torch.save(half.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    expected = half.float().transformer.h[0].mlp.c_fc.weight.detach().numpy()
    for form in ("safetensors", "bin"):
        kernel = load_huggingface(tmp_path / form)[2]["h_0"]["mlp"]["c_fc"]["kernel"]
        assert kernel.dtype == np.float32
        np.testing.assert_array_equal(kernel, expected)


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["archive", "legacy", "pickle"])
def test_a_malicious_pickle_is_refused(form, goldens, tmp_path):
    trap = tmp_path / "trap"
    state = {"transformer.tokens_embed.weight": torch.zeros(2), "more": Malicious(trap)}
    file = tmp_path / "pytorch_model.bin"
    if form == "pickle":
        file.write_bytes(pickle.dumps({"more": Malicious(trap)}, protocol=2))
    else:
        torch.save(state, file, _use_new_zipfile_serialization=form == "archive")
    (tmp_path / "config.json").write_bytes((goldens / "hf_tiny_lm" / "config.json").read_bytes())
    with pytest.raises(InputError, match=r"pytorch_model.bin: holds more than weights.*it is not opened"):
        load_huggingface(tmp_path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda file: file.write_bytes(b"weights"), r"pytorch_model.bin: "),
        (
            lambda file: torch.save({"model": {"a": torch.zeros(1)}}, file),
            r"is not a dictionary of tensors; save model.s",
        ),
        (lambda file: torch.save(torch.zeros(3), file), r"is not a dictionary of tensors"),
        (
            lambda file: (torch.save({"a": torch.zeros(999)}, file), file.write_bytes(file.read_bytes()[:-900])),
            r"cannot be read \(.*\); it is damaged",
        ),
    ],
    ids=["text", "nested", "tensor", "cut"],
)
def test_other_files_are_refused(content, message, goldens, tmp_path):
    (tmp_path / "config.json").write_bytes((goldens / "hf_tiny_lm" / "config.json").read_bytes())
    content(tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=message):
        load_huggingface(tmp_path)


def cases(goldens: Path) -> list[dict[str, Any]]:
    """Texts that transformers takes (no halves of characters)."""
    every = json.loads((goldens / "tokenizer.json").read_text(encoding="utf-8"))["cases"]
    return [case for case in every if "hf_fast_ids" in case]


def test_tokenizer_files(goldens, tmp_path):
    """The toy vocabulary as we write it and as transformers wrote it: the same ids, special tokens after them."""
    toy = tokenizers.load(goldens)
    toy.save_huggingface(tmp_path, special_tokens=tokenizers.SPECIAL_TOKENS)
    for cls in (transformers.AutoTokenizer, transformers.OpenAIGPTTokenizer):
        ours, theirs = cls.from_pretrained(tmp_path), cls.from_pretrained(goldens / "hf_toy_tokenizer_v5")
        for case in cases(goldens):
            assert ours(case["text"])["input_ids"] == theirs(case["text"])["input_ids"], case["text"]
        special = ours.convert_tokens_to_ids(list(tokenizers.SPECIAL_TOKENS))
        assert special == [toy.vocab_size + i for i in range(3)]


@pytest.mark.skipif("GPT1_OPENAI_DIR" not in os.environ, reason="GPT1_OPENAI_DIR does not name the original vocabulary")
def test_tokenizer_files_of_the_original_vocabulary(goldens, tmp_path):
    tokenizers.load(os.environ["GPT1_OPENAI_DIR"]).save_huggingface(tmp_path)
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path)
    for case in cases(goldens):
        assert theirs(case["text"])["input_ids"] == case["hf_fast_ids"], case["text"]
