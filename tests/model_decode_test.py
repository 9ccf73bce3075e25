"""Decoding with a KV cache gives the hidden states of the whole forward pass, in whatever pieces."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax.model import GPT1, GPT1Config, KVCache

CONFIG = GPT1Config(vocab_size=50, n_ctx=12, n_embd=16, n_head=2, n_layer=2)
MODEL = GPT1(CONFIG)
TOKENS = np.random.default_rng(0).integers(0, 50, (3, 12), np.int32)


PARAMS = random_params(MODEL)


@functools.cache
def compiled(model: GPT1) -> tuple[Any, Any]:
    """(tokens -> hidden states), ((tokens, cache) -> (hidden states, cache))."""
    whole = jax.jit(lambda tokens: model.apply({"params": PARAMS}, tokens, method=GPT1.features)[0])
    step = jax.jit(lambda tokens, cache: model.apply({"params": PARAMS}, tokens, cache, method=GPT1.decode))
    return whole, step


def assert_close(actual: Any, expected: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.float32(actual), np.float32(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("pieces", [(1,) * 6, (4, 1, 1, 4, 1, 1), (12,)], ids=str)
@pytest.mark.parametrize("n_slots", [None, 20])
def test_in_pieces(pieces, n_slots):
    whole, step = compiled(MODEL)
    expected = whole(TOKENS)
    cache = KVCache.empty(CONFIG, 3, n_slots)
    assert (n_slots or 12) in cache.keys[0].shape
    start = 0
    for n in pieces:
        h, cache = step(TOKENS[:, start : start + n], cache)
        assert_close(h, expected[:, start : start + n])
        start += n
        assert cache.length.tolist() == [start] * 3


def test_rows_of_unequal_lengths():
    """Prompts padded on the right; `length` is set back, and what follows overwrites the padding."""
    whole, step = compiled(MODEL)
    expected = whole(TOKENS)
    lengths = np.array([2, 5, 4])
    prompt = np.where(np.arange(5) < lengths[:, None], TOKENS[:, :5], 49)
    h, cache = step(prompt, KVCache.empty(CONFIG, 3))
    for row, n in enumerate(lengths):
        assert_close(h[row, :n], expected[row, :n])
    cache = cache.replace(length=jnp.asarray(lengths))
    for _ in range(7):
        position = np.asarray(cache.length)
        tokens = np.take_along_axis(TOKENS, position[:, None], 1)
        h, cache = step(tokens, cache)
        assert_close(h[:, 0], expected[np.arange(3), position])
    assert cache.length.tolist() == [9, 12, 11]


def test_padding_past_the_last_position_is_harmless():
    """The last real token fits, the padding behind it does not: it needs slots, but no position."""
    whole, step = compiled(MODEL)
    expected = whole(TOKENS)
    cache = KVCache.empty(CONFIG, 3, n_slots=16)
    _, cache = step(TOKENS[:, :10], cache)
    tail = np.concatenate([TOKENS[:, 10:], np.full((3, 2), 7, np.int32)], axis=1)
    h, _ = step(tail, cache)
    assert_close(h[:, :2], expected[:, 10:])


def test_logits_of_the_cache_s_hidden_states():
    _, step = compiled(MODEL)
    h, _ = step(TOKENS, KVCache.empty(CONFIG, 3))
    logits = MODEL.apply({"params": PARAMS}, h, method=GPT1.lm_logits)
    assert_close(logits, MODEL.apply({"params": PARAMS}, TOKENS), atol=5e-5)


def test_bfloat16():
    model = GPT1(dataclasses.replace(CONFIG, dtype="bfloat16"))
    whole, step = compiled(model)
    cache = KVCache.empty(model.config, 3)
    assert {x.dtype.name for x in (*cache.keys, *cache.values)} == {"bfloat16"}
    _, cache = step(TOKENS[:, :4], cache)
    h, cache = step(TOKENS[:, 4:5], cache)
    assert {x.dtype.name for x in (h, *cache.keys, *cache.values)} == {"bfloat16"}
    assert_close(h[:, 0], whole(TOKENS)[:, 4], atol=0.05)
