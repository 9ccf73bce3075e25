"""Folders that transformers wrote, against what its models returned (see goldens/README.md)."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from gpt1_jax.interop.huggingface import load_huggingface, save_huggingface
from gpt1_jax.losses import next_token_nll, task_outputs
from gpt1_jax.model import GPT1
from gpt1_jax.sampling import generate_tokens

pytestmark = pytest.mark.parity

FOLDERS = ("hf_tiny_lm", "hf_tiny_base", "hf_tiny_doubleheads", "hf_tiny_seqclf")
TOP = ("transformer", "lm_head", "score", "multiple_choice_head")
KEPT = (
    *("model_type", "vocab_size", "n_positions", "n_embd", "n_head", "n_layer", "layer_norm_epsilon"),
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "tie_word_embeddings"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
)
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-5)
Loaded = tuple[GPT1, Any, Mapping[str, np.ndarray]]


@pytest.fixture(scope="module")
def load(goldens: Path) -> Callable[[str], Loaded]:
    @functools.cache
    def load(name: str) -> Loaded:
        config, readout, params = load_huggingface(goldens / name)
        return GPT1(config, readout), params, np.load(goldens / f"{name}_outputs.npz")

    return load


@pytest.fixture(scope="module")
def lm(load) -> Loaded:
    return load("hf_tiny_lm")


@functools.partial(jax.jit, static_argnums=0)
def logits(model: GPT1, params: Any, tokens: Any, **kwargs: Any) -> jax.Array:
    return model.apply({"params": params}, tokens, **kwargs)


def test_hidden_states_attention_and_logits(lm):
    model, params, z = lm
    out, state = model.apply({"params": params}, z["ids"], capture_intermediates=True)
    embedded, _ = GPT1(dataclasses.replace(model.config, n_layer=0)).apply(
        {"params": params}, z["ids"], method=GPT1.features
    )
    blocks = [state["intermediates"][f"h_{i}"] for i in range(model.config.n_layer)]
    close(np.stack([embedded, *(block["__call__"][0][0] for block in blocks)]), z["hidden_states"])
    close(blocks[0]["attn"]["probabilities"][0], z["attentions0"])
    close(out, z["logits"])


@pytest.mark.parametrize(("labels", "loss"), [("ids", "loss_labels_eq_ids"), ("labels", "loss_labels")])
def test_losses(lm, labels, loss):
    model, params, z = lm
    h, table = model.apply({"params": params}, z["ids"], method=GPT1.features)
    targets = z[labels]
    counted = targets[:, 1:] >= 0
    nll = next_token_nll(h, table, np.maximum(targets, 0), n_rows=model.config.n_logits)
    close(np.asarray(nll)[counted].mean(), z[loss])


def test_given_positions(lm):
    model, params, z = lm
    close(logits(model, params, z["ids"], positions=z["position_ids"]), z["logits_position_ids"])


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding(lm, side):
    """There positions count the padding unless they are given; what is at padding means nothing."""
    model, params, z = lm
    mask = z[f"mask_{side}"].astype(bool)
    positions = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)
    out = logits(model, params, z["ids"], positions=positions, attention_mask=mask)
    close(np.asarray(out)[mask], z[f"logits_mask_{side}"][mask])
    assert not mask.all()


def test_token_types(lm):
    """There the row of the token's type is added to the embedding: a longer table of positions says the same."""
    model, params, z = lm
    n_ctx, types = model.config.n_ctx, z["token_type_ids"]
    kinds = np.unique(types)
    rows = params["positions_embed"]["embedding"] + params["tokens_embed"]["embedding"][kinds][:, None]
    longer = GPT1(dataclasses.replace(model.config, n_ctx=n_ctx * len(kinds)))
    positions = np.arange(types.shape[1]) + n_ctx * np.searchsorted(kinds, types)
    table = {"embedding": rows.reshape(-1, rows.shape[-1])}
    out = logits(longer, params | {"positions_embed": table}, z["ids"], positions=positions)
    close(out, z["logits_token_type"])


def test_greedy_generation(lm):
    model, params, z = lm
    n_prompt = z["gen_prompt"].shape[1]
    texts = z["gen_greedy20"]
    n_new = texts.shape[1] - n_prompt
    ours = generate_tokens(model, params, z["gen_prompt"].tolist(), max_new_tokens=n_new, temperature=0)
    np.testing.assert_array_equal(ours, texts[:, n_prompt:])
    steps = np.asarray(logits(model, params, texts))[:, n_prompt - 1 : -1]
    close(steps, z["gen_greedy20_step_logits"])


def test_greedy_generation_of_rows_padded_on_the_left(lm):
    model, params, z = lm
    mask, texts = z["gen_leftpad_mask"].astype(bool), z["gen_leftpad_greedy20"]
    n_prompt = mask.shape[1]
    prompts = [row[:n_prompt][real].tolist() for row, real in zip(texts, mask, strict=True)]
    ours = generate_tokens(model, params, prompts, max_new_tokens=texts.shape[1] - n_prompt, temperature=0)
    np.testing.assert_array_equal(ours, texts[:, n_prompt:])
    alone = z["gen_row0_unpadded_greedy20"][0]
    n_new = len(alone) - len(prompts[0])
    assert generate_tokens(model, params, prompts[:1], max_new_tokens=n_new, temperature=0) == [alone[-n_new:].tolist()]


def test_base_is_the_trunk_of_the_language_model(lm, goldens):
    model, params, _ = lm
    config, readout, base = load_huggingface(goldens / "hf_tiny_base")
    assert (config, readout) == (model.config, None)
    jax.tree.map(np.testing.assert_array_equal, base, params)


def labelled(z: Mapping[str, np.ndarray], mask: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """A batch of streams [B, C, L]."""
    tokens = z["ids"].reshape(mask.shape)
    return {
        "tokens": tokens,
        "mask": mask.astype(np.float32),
        "stream_mask": np.ones(mask.shape[:2], bool),
        "label": labels,
        "weight": np.ones(len(mask), np.float32),
    }


@functools.partial(jax.jit, static_argnums=0)
def outputs(model: GPT1, params: Any, batch: Any) -> dict[str, jax.Array]:
    return task_outputs(model, params, batch)


def test_double_heads(load):
    model, params, z = load("hf_tiny_doubleheads")
    assert model.readout.kind == "multiple_choice"
    ids = z["ids"]
    until = np.arange(ids.shape[-1]) <= z["mc_token_ids"][..., None]
    out = outputs(model, params, labelled(z, until, z["mc_labels"]))
    close(out["logits"], z["mc_logits"])
    close(out["task_nll"].mean(), z["mc_loss"])
    close(out["lm_nll"].mean(), z["lm_loss"])
    close(logits(model, params, ids.reshape(-1, ids.shape[-1])), z["logits"].reshape(-1, *z["logits"].shape[2:]))
    whole = outputs(model, params, labelled(z, np.ones_like(until), z["mc_labels"]))
    close(whole["logits"], z["mc_logits_default_index"])
    assert np.abs(z["mc_logits_default_index"] - z["mc_logits"]).max() > 1e-3


def test_sequence_classification(load, goldens):
    """The last token that is not padding is read."""
    model, params, z = load("hf_tiny_seqclf")
    padding = json.loads((goldens / "hf_tiny_seqclf" / "config.json").read_text(encoding="utf-8"))["pad_token_id"]
    n_labels = z["logits"].shape[1]
    assert model.readout.n_outputs == n_labels
    labels = np.arange(len(z["ids"]), dtype=np.int32) % n_labels
    out = outputs(model, params, labelled(z, (z["ids"] != padding)[:, None], labels))
    close(out["logits"], z["logits"])
    close(out["task_nll"].mean(), z["loss"])


@pytest.mark.parametrize("name", FOLDERS)
def test_there_and_back(name, goldens, tmp_path):
    """The tensors that came are the tensors that go, whichever name the tied one has; nothing of the config is lost."""
    config, readout, params = load_huggingface(goldens / name)
    save_huggingface(tmp_path, GPT1(config, readout), params)
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (goldens / name, tmp_path))
    stem = "transformer.tokens_embed.weight"
    theirs = {k if k.split(".")[0] in TOP else f"transformer.{k}": v for k, v in theirs.items()}
    theirs[stem] = theirs.pop("lm_head.weight", theirs.get(stem))
    assert theirs.keys() == ours.keys()
    for key, value in theirs.items():
        assert (value.dtype, value.shape, value.tobytes()) == (ours[key].dtype, ours[key].shape, ours[key].tobytes())
    before, after = (
        json.loads((folder / "config.json").read_text(encoding="utf-8")) for folder in (goldens / name, tmp_path)
    )
    kept = KEPT + ("id2label", "label2id") * (name == "hf_tiny_seqclf")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    again = load_huggingface(tmp_path)
    assert again[:2] == (config, readout)
    jax.tree.map(np.testing.assert_array_equal, again[2], params)
