"""The LSTM in place of the blocks: against the equations in NumPy, padding, decoding, and the start that learns."""

import functools
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from helpers import random_params

from gpt1_jax.model import GPT1, GPT1Config

CONFIG = GPT1Config(vocab_size=50, n_ctx=12, n_embd=16, trunk="lstm", lstm_units=24)
MODEL = GPT1(CONFIG)
TOKENS = np.random.default_rng(0).integers(0, 50, (3, 12), np.int32)
PARAMS = random_params(MODEL)


@functools.cache
def compiled(model: GPT1 = MODEL, deterministic: bool = True) -> Any:
    """(params, tokens, key=..., **arguments) -> hidden states."""

    def apply(params: Any, tokens: Any, key: Any = None, **arguments: Any) -> jax.Array:
        rngs = None if key is None else {"dropout": key}
        arguments |= {"deterministic": deterministic, "rngs": rngs, "method": GPT1.features}
        return model.apply({"params": params}, tokens, **arguments)[0]

    return jax.jit(apply)


def in_numpy(params: Any, tokens: np.ndarray) -> np.ndarray:
    """The equations of the module's docstring, one row and one token after another, in float64."""
    p = {"/".join(path): np.float64(x) for path, x in flatten_dict(params).items()}

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    out = np.zeros((*tokens.shape, CONFIG.n_embd))
    for row, ids in enumerate(tokens):
        c = h = np.zeros(CONFIG.lstm_units)
        for t, token in enumerate(ids):
            x = p["tokens_embed/embedding"][token] + p["positions_embed/embedding"][t]
            i, f, g, o = (
                x @ p[f"lstm/cell/i{gate}/kernel"] + h @ p[f"lstm/cell/h{gate}/kernel"] + p[f"lstm/cell/h{gate}/bias"]
                for gate in "ifgo"
            )
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            out[row, t] = h @ p["lstm/c_proj/kernel"] + p["lstm/c_proj/bias"]
    return out


def test_the_equations():
    expected = in_numpy(PARAMS, TOKENS)
    np.testing.assert_allclose(compiled()(PARAMS, TOKENS), expected, rtol=0, atol=2e-5)
    logits = MODEL.apply({"params": PARAMS}, TOKENS)
    np.testing.assert_allclose(logits, expected @ PARAMS["tokens_embed"]["embedding"][:50].T, rtol=0, atol=1e-4)
