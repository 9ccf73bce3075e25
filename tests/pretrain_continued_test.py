"""Pre-training that goes on from a model that is trained already, on a text of another kind."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from gpt1_jax import InputError, load_pretrained, pretrain, save_pretrained
from gpt1_jax.metrics import read_metrics
from gpt1_jax.model import GPT1, ReadOut
from gpt1_jax.warm_start import add_special_rows


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """A text that the pre-trained model has not seen, in letters that it has."""
    path = tmp_path_factory.mktemp("text") / "reports.txt"
    path.write_text("the pace of the cast was tired , the music of the ending was warm .\n" * 40)
    return path


@pytest.fixture(scope="module")
def config(reports):
    def make(**changes):
        return {
            "source": f"text:{reports}",
            "heldout_fraction": 0.0,
            "batch_size": 8,
            "n_steps": 4,
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
            "loop": {"log_every": 1, "save_every": 2},
            **changes,
        }

    return make


@pytest.fixture(scope="module")
def continued(config, pretrained, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "continued"
    return pretrain.run(config(), workdir, pretrained), workdir


def test_it_starts_from_the_model_and_learns_the_text(continued, pretrained):
    result, workdir = continued
    model, params, tokenizer = load_pretrained(pretrained)
    assert result.model == model
    assert result.tokenizer.fingerprint == tokenizer.fingerprint
    losses = [m["loss"] for m in read_metrics(workdir)]
    assert losses[0] < np.log(model.config.vocab_size) - 0.3  # a new model begins at the logarithm of its vocabulary
    assert losses[-1] < losses[0]
    stored = json.loads((workdir / "config.json").read_text())
    assert stored["init_from"] == str(pretrained)
    assert {"n_special": 0, **stored["config"]["model"]} == stored["model"]
    moved = jax.tree.map(lambda a, b: float(abs(a - b).max()), dict(result.params), dict(params))
    assert 0 < max(jax.tree.leaves(moved)) < 4 * 1.1e-3  # four updates of at most the rate each


def test_started_again_it_is_the_same_run(config, continued, pretrained, tmp_path):
    result, workdir = continued
    before = (workdir / "metrics.jsonl").read_bytes()
    again = pretrain.run(config(), workdir, pretrained)
    assert (workdir / "metrics.jsonl").read_bytes() == before
    jax.tree.map(np.testing.assert_array_equal, dict(again.params), dict(result.params))
    with pytest.raises(InputError, match="init_from is"):
        pretrain.run(config(), workdir, workdir)
    with pytest.raises(InputError, match="init_from is"):
        pretrain.run(json.loads((workdir / "config.json").read_text())["config"], workdir)


def test_the_network_may_differ_in_what_is_not_in_the_weights(config, pretrained, tmp_path):
    changes = {"n_steps": 2, "model": {"n_ctx": 16, "dtype": "bfloat16", "embd_pdrop": 0.0}}
    model = pretrain.run(config(**changes), tmp_path / "run", pretrained).model
    assert (model.config.n_ctx, model.config.dtype, model.config.embd_pdrop) == (16, "bfloat16", 0.0)
    assert model.config.attn_pdrop == load_pretrained(pretrained)[0].config.attn_pdrop


def test_a_fine_tuned_model_leaves_its_head_behind(config, pretrained, tmp_path):
    model, params, tokenizer = load_pretrained(pretrained)
    network, params = add_special_rows(model.config, params, seed=0)
    head = {"kernel": np.ones((network.n_embd, 2), np.float32), "bias": np.ones(2, np.float32)}
    task = ReadOut("classification", ("a", "b"))
    save_pretrained(tmp_path / "task", GPT1(network, task), {**params, "clf": head}, tokenizer)
    result = pretrain.run(config(n_steps=2), tmp_path / "run", tmp_path / "task")
    assert result.model == GPT1(network)
    assert "clf" not in result.params
    loaded, again, _ = load_pretrained(tmp_path / "run")
    assert loaded == result.model
    v = network.vocab_size
    rows = np.asarray(again["tokens_embed"]["embedding"])[v : v + 3]
    np.testing.assert_allclose(rows, np.asarray(params["tokens_embed"]["embedding"])[v : v + 3], atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"n_layer": 3}}, "model.n_layer=3 contradicts"),
        ({"model": {"vocab_size": 99}}, "model.vocab_size=99 contradicts"),
        ({"model": {"n_ctx": 64}}, "n_ctx=64"),
        ({"tokenizer": {"path": "other"}}, "tokenizer.path='other' contradicts"),
        ({"source": ""}, "config.source is empty"),
    ],
)
def test_what_contradicts_the_model_is_refused(config, pretrained, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        pretrain.run(config(**changes), tmp_path / "run", pretrained)
    assert not (tmp_path / "run" / "config.json").exists()
