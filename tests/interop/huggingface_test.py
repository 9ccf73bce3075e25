"""Hugging Face folders: every byte there and back, every form in which they come, and what is refused."""

import dataclasses
import json
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from helpers import params_for_transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from gpt1_jax.errors import InputError
from gpt1_jax.interop.huggingface import is_huggingface_folder, load_huggingface, save_huggingface
from gpt1_jax.model import GPT1, GPT1Config, ReadOut

PLAIN = GPT1Config(vocab_size=130, n_ctx=8, n_embd=12, n_head=3, n_layer=2)
TUNED = dataclasses.replace(PLAIN, n_special=3)
NO_BIAS = dataclasses.replace(TUNED, clf_bias=False)
ODD = dataclasses.replace(
    TUNED,
    **{"embd_pdrop": 0.0, "attn_pdrop": 0.2, "resid_pdrop": 0.3, "clf_pdrop": 0.4, "clf_bias": False},
    **{"activation": "swish", "embedding_dropout": "table", "dtype": "bfloat16", "remat": "dots", "attention": "xla"},
)
CLASSES = ReadOut("classification", ("no", "yes", "perhaps"))
CHOICE = ReadOut("multiple_choice", ("A", "B"))
LAST = dataclasses.replace(CLASSES, read_at="last")
MODELS = {
    "pre-trained": GPT1(PLAIN),
    "fine-tuned, without its head": GPT1(TUNED),
    "classification": GPT1(NO_BIAS, CLASSES),
    "classification, bias zero": GPT1(TUNED, CLASSES),
    "entailment": GPT1(ODD, ReadOut("entailment", ("ja", "näe"))),
    "multiple choice": GPT1(TUNED, CHOICE),
    "multiple choice, no bias": GPT1(NO_BIAS, ReadOut("multiple_choice")),
    "no special tokens": GPT1(dataclasses.replace(PLAIN, clf_bias=False), LAST),
    "no blocks": GPT1(GPT1Config(vocab_size=9, n_ctx=4, n_embd=4, n_head=1, n_layer=0, activation="relu")),
}


def same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def change_config(folder: Path, **changes: Any) -> None:
    """Sets fields of config.json; `...` removes one."""
    config = {k: v for k, v in (config_of(folder) | changes).items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model of MODELS, and then changes its tensors."""

    def write(name: str = "pre-trained", edit: Callable[[dict[str, np.ndarray]], Any] | None = None) -> Path:
        folder = tmp_path / "folder"
        save_huggingface(folder, MODELS[name], params_for_transformers(MODELS[name]))
        if edit is not None:
            tensors = load_file(folder / "model.safetensors")
            edit(tensors)
            save_file(tensors, folder / "model.safetensors")
        return folder

    return write


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_returns_every_byte(name, write):
    model, folder = MODELS[name], write(name)
    config, readout, params = load_huggingface(folder)
    assert (config, readout) == (model.config, model.readout)
    same(params, params_for_transformers(model))


def test_jax_arrays_can_be_written(tmp_path):
    params = params_for_transformers(MODELS["pre-trained"])
    save_huggingface(tmp_path, MODELS["pre-trained"], jax.tree.map(jax.numpy.asarray, params))
    same(load_huggingface(tmp_path)[2], params)


@pytest.mark.parametrize(
    ("name", "architecture", "tops"),
    [
        ("pre-trained", "OpenAIGPTLMHeadModel", set()),
        ("fine-tuned, without its head", "OpenAIGPTLMHeadModel", set()),
        ("classification, bias zero", "OpenAIGPTForSequenceClassification", {"score.weight"}),
        ("entailment", "OpenAIGPTForSequenceClassification", {"score.weight"}),
        (
            "multiple choice, no bias",
            "OpenAIGPTDoubleHeadsModel",
            {"multiple_choice_head.summary.weight", "multiple_choice_head.summary.bias"},
        ),
    ],
)
def test_layout(name, architecture, tops, write):
    model, folder = MODELS[name], write(name)
    c, params = model.config, params_for_transformers(model)
    config, tensors = config_of(folder), load_file(folder / "model.safetensors")
    assert config["architectures"] == [architecture]
    assert (config["model_type"], config["vocab_size"]) == ("openai-gpt", c.n_rows)
    assert {key for key in tensors if not key.startswith("transformer.")} == tops
    np.testing.assert_array_equal(
        tensors["transformer.tokens_embed.weight"], params["tokens_embed"]["embedding"][: c.n_rows]
    )
    key_of_head_1 = params["h_1"]["attn"]["c_attn"]["kernel"][:, 1, 1]
    np.testing.assert_array_equal(tensors["transformer.h.1.attn.c_attn.weight"][:, 12 + 4 : 12 + 8], key_of_head_1)
    assert tensors["transformer.h.0.attn.c_proj.weight"].shape == (12, 12)
    assert tensors["transformer.h.0.mlp.c_proj.weight"].shape == (48, 12)
    with safe_open(folder / "model.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}
    if model.readout:
        head = next(value for key, value in tensors.items() if key.endswith(("score.weight", "summary.weight")))
        np.testing.assert_array_equal(head, params["clf"]["kernel"].T)
        kind = model.readout.kind
        assert config.get("pad_token_id") == (None if kind == "multiple_choice" else 0)
        assert kind == "multiple_choice" or list(config["id2label"].values()) == list(model.readout.labels)
    if c.n_special:
        generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        assert generation == {"suppress_tokens": [130, 131, 132]}
    assert (folder / "generation_config.json").exists() == bool(c.n_special)


def test_recognised(write, tmp_path):
    folder = write()
    assert is_huggingface_folder(folder)
    change_config(folder, model_type=..., gpt1_jax=...)  # as the oldest are
    assert is_huggingface_folder(folder)
    assert load_huggingface(folder)[0] == PLAIN
    change_config(folder, model_type="gpt2")
    assert not is_huggingface_folder(folder)
    change_config(folder, model_type=..., afn=...)  # the oldest of GPT-2
    assert not is_huggingface_folder(folder)
    for content in ('{"model": {}}', "[]", "{", "[" * 100_000, None):
        if content is None:
            (folder / "config.json").unlink()
        else:
            (folder / "config.json").write_text(content, encoding="utf-8")
        assert not is_huggingface_folder(folder)
    assert not is_huggingface_folder(tmp_path / "nowhere")


def test_names_of_old_and_new_configs(write):
    folder = write()
    theirs = {"n_positions": ["max_position_embeddings", "n_ctx"], "n_embd": ["hidden_size"]}
    theirs |= {"n_head": ["num_attention_heads"], "n_layer": ["num_hidden_layers"]}
    before = config_of(folder)
    for name, others in theirs.items():
        for other in others:
            (folder / "config.json").write_text(json.dumps(before), encoding="utf-8")
            change_config(folder, **{name: ..., other: before[name]})
            assert load_huggingface(folder)[0] == PLAIN
    change_config(folder, afn="silu", attn_pdrop=0, n_ctx=99, predict_special_tokens=True, initializer_range=...)
    config, _, _ = load_huggingface(folder)
    assert config == dataclasses.replace(PLAIN, activation="swish", attn_pdrop=0.0)
    assert isinstance(config.attn_pdrop, float)


def old_form(tensors: dict[str, np.ndarray]) -> None:
    """As the first releases stored a model: no prefix, and buffers."""
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)
    for i in range(2):
        tensors[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), np.float32))
    tensors["position_ids"] = np.arange(8)


def test_old_checkpoints(write, caplog):
    folder = write(edit=old_form)
    with caplog.at_level(logging.INFO):
        same(load_huggingface(folder)[2], params_for_transformers(MODELS["pre-trained"]))
    assert "3 buffers, which are no weights, are left out: h.0.attn.bias, h.1.attn.bias, position_ids" in caplog.text


@pytest.mark.parametrize("both", [True, False])
def test_tied_table_under_either_name(both, write):
    name = "transformer.tokens_embed.weight"

    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["lm_head.weight"] = tensors[name].copy() if both else tensors.pop(name)

    same(load_huggingface(write(edit=edit))[2], params_for_transformers(MODELS["pre-trained"]))


@pytest.mark.parametrize(
    ("dtype", "word"), [(np.float16, "widened"), (ml_dtypes.bfloat16, "widened"), (np.float64, "rounded")]
)
def test_other_floats(dtype, word, write, caplog):
    def edit(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors)[:5]:
            tensors[name] = tensors[name].astype(dtype)

    folder = write(edit=edit)
    with caplog.at_level(logging.INFO):
        _, _, params = load_huggingface(folder)
    assert f"5 tensors of type {np.dtype(dtype).name} are {word} to float32" in caplog.text
    narrow = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), params_for_transformers(MODELS["pre-trained"]))
    for a, b, c in zip(
        *map(jax.tree.leaves, (params, narrow, params_for_transformers(MODELS["pre-trained"]))), strict=True
    ):
        assert a.dtype == np.float32
        assert a.tobytes() in (b.tobytes(), c.tobytes())


def shard(folder: Path) -> dict[str, str]:
    """Splits model.safetensors in three, with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"model-{i % 3 + 1:05}-of-00003.safetensors" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return files


def test_sharded(write):
    folder = write("multiple choice")
    shard(folder)
    same(load_huggingface(folder)[2], params_for_transformers(MODELS["multiple choice"]))


def test_shards_that_are_not_all_there(write):
    folder = write()
    index, files = folder / "model.safetensors.index.json", shard(folder)
    for name in ("../away.safetensors", "absent.safetensors"):
        broken = {"weight_map": files | {"transformer.h.0.ln_1.bias": name}}
        index.write_text(json.dumps(broken), encoding="utf-8")
        with pytest.raises(InputError, match=rf"index.json: names the file '{name}', which is not in this folder"):
            load_huggingface(folder)
    more = {"weight_map": files | {"a": files["transformer.h.0.ln_1.bias"], "b": files["transformer.h.0.ln_1.bias"]}}
    index.write_text(json.dumps(more), encoding="utf-8")
    with pytest.raises(InputError, match="names 'a' and 1 other tensors that no file has; it is damaged"):
        load_huggingface(folder)
    for content in ('{"weight_map": {"a": 1}}', "{}"):
        index.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=r"index.json: has no 'weight_map' of tensor names to file names"):
            load_huggingface(folder)


def test_a_head_that_another_program_put_on(write):
    """Its class and its labels are read, at the last token; the special rows are still ours."""

    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["score.weight"] = np.ones((2, 12), np.float32)

    folder = write("fine-tuned, without its head", edit)
    change_config(folder, id2label={"0": "bad", "1": "good"}, architectures=["OpenAIGPTForSequenceClassification"])
    config, readout, params = load_huggingface(folder)
    assert config == NO_BIAS
    assert readout == ReadOut("classification", ("bad", "good"), read_at="last")
    assert (params["clf"]["kernel"] == np.ones((12, 2))).all()
    change_config(folder, id2label=...)
    assert load_huggingface(folder)[1].labels == ("LABEL_0", "LABEL_1")


def test_a_head_that_another_program_took_off(write):
    folder = write("classification", lambda tensors: tensors.pop("score.weight"))
    change_config(folder, architectures=["OpenAIGPTModel"])
    config, readout, params = load_huggingface(folder)
    assert (config, readout) == (NO_BIAS, None)
    assert "clf" not in params


def test_a_bias_that_another_program_trained(write, caplog):
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["multiple_choice_head.summary.bias"] += 2

    config, readout, params = load_huggingface(write("multiple choice, no bias", edit))
    assert (config, readout) == (TUNED, ReadOut("multiple_choice"))
    assert params["clf"]["bias"] == 2
    assert "clf_bias=True" in caplog.text


CONFIGS = {
    "another model": ({"model_type": "gpt2"}, r"model_type='gpt2'; only 'openai-gpt' \(GPT-1\) can be loaded"),
    "epsilon": ({"layer_norm_epsilon": 1e-6}, r"layer_norm_epsilon=1e-06; the LayerNorm of this model has 1e-5"),
    "activation": ({"afn": "gelu_fast"}, r"afn='gelu_fast'; this model knows gelu, relu, swish, silu"),
    "type": ({"n_head": "3"}, r"n_head='3' must be of type int"),
    "bool": ({"n_head": True}, r"n_head=True must be of type int"),
    "range": ({"n_head": 5}, r"config.json: n_embd=12 is not divisible by n_head=5"),
    "resized": (
        {"vocab_size": 134},
        r"vocab_size=134, but this package wrote 130 tokens and 3 special ones: .* resized",
    ),
    "newer": ({"gpt1_jax": {"model": {"colour": 1}}}, r"config.json: gpt1_jax.model.colour is unknown"),
    "use_proj": ({"summary_use_proj": False}, r"summary_use_proj=False; the multiple-choice head .*=True\)"),
    "activated": ({"summary_activation": "tanh"}, r"summary_activation='tanh'; .* one linear layer on one token"),
    "mean": ({"summary_type": "mean"}, r"summary_type='mean'; .*\(summary_type='cls_index'\)"),
    "layers": ({"n_layer": 3}, r"h.2.attn.c_attn.bias, .* and 2 more are missing; config.json describes 3 layers"),
    "width": (
        {"n_embd": 24},
        r"config.json: does not fit .*h.0.attn.c_attn.bias has shape \[36\] .*\[72\].* and 24 more; check",
    ),
    "positions": ({"n_positions": 9}, r"positions_embed.weight has shape \[8, 12\] instead of \[9, 12\]; check"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_that_are_refused(name, write):
    changes, message = CONFIGS[name]
    folder = write("multiple choice")
    change_config(folder, **changes)
    with pytest.raises(InputError, match=message):
        load_huggingface(folder)


def test_size_of_the_vocabulary(write):
    folder = write()
    change_config(folder, vocab_size=131, gpt1_jax=...)
    with pytest.raises(InputError, match=r"tokens_embed.weight has shape \[130, 12\] instead of \[131, 12\]"):
        load_huggingface(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem_type": "regression"}, "problem_type='regression' with 3 outputs; only a softmax over two or more"),
        ({"id2label": {"0": "a", "1": "b"}}, r"id2label=.* must name the classes 0 .. 2 of score.weight"),
    ],
)
def test_classifiers_that_are_refused(changes, message, write):
    folder = write("classification")
    change_config(folder, **changes)
    with pytest.raises(InputError, match=message):
        load_huggingface(folder)


def drop(*names: str) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: [tensors.pop(name) for name in names] and None


def put(**arrays: np.ndarray) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({name.replace("__", "."): value for name, value in arrays.items()})


ONE = np.ones((2, 12), np.float32)
TENSORS = {
    "missing and unknown": (
        lambda t: t.update({"transformer.ln_f.weight": t.pop("transformer.h.0.ln_1.weight")}),
        r"of its tensors h.0.ln_1.weight are missing, and ln_f.weight are unknown; .* 2 layers and the task head score",
    ),
    "no head": (drop("score.weight"), r"score.weight are missing; .*the task head score"),
    "two heads": (
        put(multiple_choice_head__summary__weight=ONE[:1]),
        r"multiple_choice_head.summary.weight are unknown",
    ),
    "one output": (put(score__weight=ONE[:1]), r"problem_type='single_label_classification' with 1 outputs"),
    "untied": (
        put(lm_head__weight=np.zeros((133, 12), np.float32)),
        r"lm_head.weight differs from tokens_embed.weight",
    ),
    "two of one name": (put(tokens_embed__weight=ONE), r"has tokens_embed.weight both with and without 'transformer.'"),
    "integers": (
        put(score__weight=np.ones((3, 12), np.int8)),
        r"score.weight is stored as I8, and only float32, .*quant",
    ),
    "not finite": (
        put(transformer__h__0__ln_1__bias=np.array([0.0] * 11 + [np.nan], np.float32)),
        r"model.safetensors: h.0.ln_1.bias holds nan, all values must be finite in float32; download it again",
    ),
    "too large for float32": (
        put(score__weight=np.full((3, 12), -1e300)),
        r"score.weight holds -1e\+300, all values must be finite in float32",
    ),
    "shape": (
        put(transformer__h__0__ln_1__bias=ONE),
        r"config.json: does not fit .*: h.0.ln_1.bias has shape \[2, 12\] instead of \[12\]",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_refused(name, write):
    edit, message = TENSORS[name]
    with pytest.raises(InputError, match=message):
        load_huggingface(write("classification", edit))


def test_files_that_cannot_be_read(write):
    folder = write()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(
        InputError, match=r"model.safetensors: is no safetensors file \(.*\); it is damaged or not compl"
    ):
        load_huggingface(folder)
    weights.unlink()
    with pytest.raises(InputError, match=r"has no weights \(model.safetensors, .*pytorch_model.bin.*\); download"):
        load_huggingface(folder)
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"config.json: is not a JSON object \(.*\); it is damaged"):
        load_huggingface(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"config.json: cannot be read \(No such file or directory\); download"):
        load_huggingface(folder)


def test_a_pickle_without_pytorch(write, monkeypatch):
    """It is not opened by anything else."""
    folder = write()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pytorch_model.bin: reading this file takes PyTorch; pip install torch, or"):
        load_huggingface(folder)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.5.1+cpu"))
    with pytest.raises(
        InputError, match=r"pytorch_model.bin: PyTorch 2.5.1\+cpu cannot read this file safely; pip inst"
    ):
        load_huggingface(folder)


def with_bias(model: GPT1) -> Any:
    params = params_for_transformers(model)
    return params | {"clf": params["clf"] | {"bias": np.array([0, 1, 0], np.float32)}}


OURS = {
    "a bias": (GPT1(TUNED, CLASSES), with_bias, r"kind='classification': the task head has a bias, and `score` of"),
    "similarity": (
        GPT1(TUNED, ReadOut("similarity", ("no", "yes"))),
        params_for_transformers,
        r"kind='similarity': transformers has no GPT-1 that adds both orders",
    ),
    "position rows": (
        GPT1(dataclasses.replace(PLAIN, softmax_over_positions=True)),
        params_for_transformers,
        r"softmax_over_positions=True: transformers has no language model whose softmax spans the position rows",
    ),
    "another model's": (
        GPT1(PLAIN),
        lambda model: params_for_transformers(MODELS["no blocks"]),
        r"params\[h_0/attn/c_attn/bias\] is missing, the model asks for float32\[3, 3, 4\]",
    ),
    "rounded": (
        GPT1(PLAIN),
        lambda model: jax.tree.map(lambda x: x.astype(np.float16), params_for_transformers(model)),
        r"is float16\[3, 3, 4\], the model asks for float32",
    ),
    "readout forgotten": (
        GPT1(TUNED),
        lambda model: params_for_transformers(MODELS["multiple choice"]),
        r"params\[clf/kernel\] is not of this model; is its readout missing",
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_models_that_have_no_class_there(name, tmp_path):
    model, make, message = OURS[name]
    with pytest.raises(InputError, match=message):
        save_huggingface(tmp_path / "new", model, make(model))
    assert not (tmp_path / "new").exists()


def test_no_model_is_overwritten(write):
    folder = write()
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"already holds a model \(config.json, model.safetensors\); choose a new"):
        save_huggingface(folder, MODELS["no blocks"], params_for_transformers(MODELS["no blocks"]))
    assert (folder / "model.safetensors").read_bytes() == before
