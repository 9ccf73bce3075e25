"""The peers compute what our model computes: the same loss from the same weights."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax.benchmark import peers
from gpt1_jax.benchmark.peers import naive
from gpt1_jax.errors import InputError
from gpt1_jax.losses import lm_nll_sum
from gpt1_jax.model import GPT1, GPT1Config, count_parameters
from gpt1_jax.optim import OptimizerConfig

CONFIG = GPT1Config(vocab_size=50, n_ctx=12, n_embd=16, n_head=2, n_layer=1)
TOKENS = np.random.default_rng(0).integers(50, size=(2, 12), dtype=np.int32)


@pytest.fixture(scope="module")
def params():
    return random_params(GPT1(CONFIG))


@pytest.fixture(scope="module")
def expected(params):
    mask = np.ones(TOKENS.shape, np.float32)
    return float(lm_nll_sum(GPT1(CONFIG), params, {"tokens": TOKENS, "mask": mask})) / (2 * 11)


def plain(params):
    """Block -> matrices as [in, out], and everything else as it is."""
    d = CONFIG.n_embd
    for i in range(CONFIG.n_layer):
        block = params[f"h_{i}"]
        attn, mlp = block["attn"], block["mlp"]
        qkv, proj = attn["c_attn"], attn["c_proj"]
        yield (
            {"kernel": qkv["kernel"].reshape(d, 3 * d), "bias": qkv["bias"].reshape(3 * d)},
            {"kernel": proj["kernel"].reshape(d, d), "bias": proj["bias"]},
            *(mlp["c_fc"], mlp["c_proj"], block["ln_1"], block["ln_2"]),
        )


def each_dropout_alone():
    for site in ("embd_pdrop", "attn_pdrop", "resid_pdrop"):
        rates = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, site: 0.1}
        yield dataclasses.replace(CONFIG, **rates)


def test_naive(params, expected):
    names = ("qkv", "proj", "mlp_fc", "mlp_proj", "ln_1", "ln_2")
    theirs = {f"h_{i}": dict(zip(names, parts, strict=True)) for i, parts in enumerate(plain(params))}
    theirs["tokens"] = {"embedding": params["tokens_embed"]["embedding"][: CONFIG.n_rows]}
    theirs["positions"] = params["positions_embed"]
    assert float(naive.loss(CONFIG, theirs, TOKENS)) == pytest.approx(expected, rel=1e-5)  # float32
    for config in each_dropout_alone():
        assert abs(float(naive.loss(config, theirs, TOKENS, jax.random.key(0))) - expected) > 1e-4


def test_torch(params, expected):
    torch = pytest.importorskip("torch")
    from gpt1_jax.benchmark.peers import torch_gpt

    model = torch_gpt.Model(CONFIG).eval()
    assert sum(p.numel() for p in model.parameters()) == count_parameters(CONFIG)
    with torch.no_grad():
        model.tokens.weight.copy_(torch.from_numpy(params["tokens_embed"]["embedding"][: CONFIG.n_rows]))
        model.positions.weight.copy_(torch.from_numpy(params["positions_embed"]["embedding"]))
        for block, parts in zip(model.blocks, plain(params), strict=True):
            layers = (block.qkv, block.proj, block.fc, block.mlp_proj, block.ln_1, block.ln_2)
            for layer, values in zip(layers, parts, strict=True):
                weight = values["kernel"].T if "kernel" in values else values["scale"]
                layer.weight.copy_(torch.from_numpy(weight))
                layer.bias.copy_(torch.from_numpy(values["bias"]))
        tokens = torch.from_numpy(TOKENS.astype(np.int64))
        assert float(model(tokens)) == pytest.approx(expected, rel=1e-5)
        weights = model.state_dict()
        for config in each_dropout_alone():
            dropping = torch_gpt.Model(config).train()
            dropping.load_state_dict(weights)
            assert abs(float(dropping(tokens)) - expected) > 1e-4


@pytest.mark.parametrize("name", ["torch_gpt", "transformers_gpt"])
def test_peers_on_torch_train_and_evaluate(name):
    pytest.importorskip("torch")
    if name == "transformers_gpt":
        pytest.importorskip("transformers")
    import importlib

    peer = importlib.import_module(f"gpt1_jax.benchmark.peers.{name}")
    training = peer.train(CONFIG, OptimizerConfig(learning_rate=1e-2), TOKENS)
    losses = [float(training.start()) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.3
    assert training.n_parameters == count_parameters(CONFIG)
    assert peer.evaluate(CONFIG, TOKENS[None]).start() == pytest.approx(np.log(50), rel=0.05)
    if hasattr(peer, "decode"):
        assert peer.decode(CONFIG, TOKENS[:, :4], 6).start().shape == (2, 10)


def test_naive_trains_and_evaluates():
    training = naive.train(CONFIG, OptimizerConfig(learning_rate=1e-2), TOKENS)
    losses = [float(training.start()[1]) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.3
    assert training.n_parameters == count_parameters(CONFIG)
    assert float(naive.evaluate(CONFIG, TOKENS[None]).start()[0]) == pytest.approx(np.log(50), rel=0.2)


def test_what_is_missing_is_said_with_how_to_get_it(monkeypatch):
    with pytest.raises(InputError, match="works on one device and there are 8"):
        peers.load_peer("naive")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert peers.load_peer("naive") is naive
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"torch and transformers, into this same .*pip install torch transformers"):
        peers.load_peer("transformers")
