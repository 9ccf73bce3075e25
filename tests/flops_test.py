"""The FLOPs that speeds are held against."""

import jax
import numpy as np
import pytest

from gpt1_jax import flops
from gpt1_jax.losses import next_token_nll
from gpt1_jax.model import GPT1, GPT1Config


def test_by_hand():
    """The paper's model at 512 tokens: 6 N per token for the blocks and the head, 12 L D per layer for attention."""
    config = GPT1Config()
    n_matrices = 12 * 12 * 768**2 + 40478 * 768
    assert flops.train_flops_per_token(config, 512) == 6 * n_matrices + 12 * 12 * 512 * 768
    assert flops.train_flops_per_token(config, 512) == pytest.approx(0.753e9, rel=0.01)


def test_against_the_compiler_s_count():
    """XLA counts element-wise work as well, and the backward pass leaves out a few products."""
    config = GPT1Config(vocab_size=1024, n_ctx=64, n_embd=64, n_head=4, n_layer=2)
    model, tokens = GPT1(config), np.zeros((4, 64), np.int32)

    def loss(params: dict) -> jax.Array:
        h, table = model.apply({"params": params}, tokens, method=GPT1.features)
        return next_token_nll(h, table, tokens, n_rows=config.n_logits).sum()

    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    counted = jax.jit(jax.grad(loss)).lower(params).cost_analysis()["flops"]
    assert flops.train_flops_per_token(config, 64) * tokens.size == pytest.approx(counted, rel=0.15)


def test_what_is_not_computed_does_not_count():
    config = GPT1Config()
    whole, head, blocks = flops.train_flops_per_token(config, 512), 6 * 40478 * 768, 2 * 12 * 12 * 768**2
    assert flops.train_flops_per_token(config, 512, with_lm=False) == whole - head
    assert flops.train_flops_per_token(config, 512, frozen_trunk=True) == whole - blocks
    assert flops.train_flops_per_token(config, 512, with_lm=False, frozen_trunk=True) == whole - head - blocks


def test_peak_of_this_device_is_measured_where_no_data_sheet_has_it():
    if jax.default_backend() != "cpu":
        pytest.skip("the table holds accelerators")
    peak, source = flops.device_peak_flops()
    assert source == "measured"
    assert 1e7 < peak < 1e14


def test_the_longest_name_of_a_device_counts(monkeypatch):
    class Device:
        device_kind = "TPU v5 lite"

    monkeypatch.setattr(flops.jax, "local_devices", lambda: [Device()])
    assert flops.device_peak_flops.__wrapped__() == (197e12, "data sheet")
