"""Parameters under their official names, and back."""

import jax
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax.errors import InputError
from gpt1_jax.interop.openai import params_from_official, params_to_official
from gpt1_jax.model import GPT1, GPT1Config, ReadOut

PRE_TRAINED = GPT1Config(vocab_size=50, n_ctx=8, n_embd=12, n_head=3, n_layer=2)
FINE_TUNED = GPT1Config(vocab_size=50, n_special=3, n_ctx=8, n_embd=12, n_head=3, n_layer=2)
NO_BIAS = GPT1Config(vocab_size=50, n_special=3, n_ctx=8, n_embd=12, n_head=3, n_layer=1, clf_bias=False)
MODELS = {
    "pre-trained": (PRE_TRAINED, None),
    "fine-tuned": (FINE_TUNED, ReadOut("multiple_choice")),
    "three classes": (FINE_TUNED, ReadOut("classification", ("a", "b", "c"))),
    "head without bias": (NO_BIAS, ReadOut("multiple_choice")),
    "no blocks": (GPT1Config(vocab_size=9, n_ctx=4, n_embd=4, n_head=1, n_layer=0), None),
}


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_returns_every_byte(name):
    config, readout = MODELS[name]
    params = random_params(GPT1(config, readout))
    official = params_to_official(params, config)
    again = params_from_official(official.__getitem__, config, readout)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert list(params_to_official(again, config)) == list(official)
    for key, value in params_to_official(again, config).items():
        assert value.tobytes() == official[key].tobytes(), key


def test_layout():
    """The heads of q, then those of k, then those of v; token, special and position rows."""
    params = random_params(GPT1(*MODELS["fine-tuned"]))
    official = params_to_official(params, FINE_TUNED)
    assert official["model/we"].shape == (50 + 3 + 8, 12)
    np.testing.assert_array_equal(official["model/we"][53:], params["positions_embed"]["embedding"])
    assert official["model/h1/attn/c_attn/w"].shape == (1, 12, 36)
    kernel = params["h_1"]["attn"]["c_attn"]["kernel"]
    np.testing.assert_array_equal(official["model/h1/attn/c_attn/w"][0, :, 12 + 4 : 12 + 8], kernel[:, 1, 1])
    assert official["model/h1/attn/c_proj/w"].shape == (1, 12, 12)
    assert official["model/h1/mlp/c_proj/w"].shape == (1, 48, 12)
    assert official["model/clf/w"].shape == (12, 1)
    assert official["model/clf/b"].shape == (1,)


def test_a_head_that_is_not_asked_for_is_left_out():
    official = params_to_official(random_params(GPT1(*MODELS["fine-tuned"])), FINE_TUNED)
    assert "clf" not in params_from_official(official.__getitem__, FINE_TUNED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_ctx": 7}, r"model/we has shape \[61, 12\], the model's config asks for \[60, 12\]; set vocab_size"),
        ({"n_special": 0}, r"model/we has shape \[61, 12\], the model's config asks for \[58, 12\]"),
    ],
)
def test_another_shape_is_refused(changes, message):
    official = params_to_official(random_params(GPT1(*MODELS["fine-tuned"])), FINE_TUNED)
    config = GPT1Config(
        **{"vocab_size": 50, "n_special": 3, "n_ctx": 8, "n_embd": 12, "n_head": 3, "n_layer": 2} | changes
    )
    with pytest.raises(InputError, match=message):
        params_from_official(official.__getitem__, config)


def test_another_shape_inside_a_block_is_refused():
    official = params_to_official(random_params(GPT1(*MODELS["fine-tuned"])), FINE_TUNED)
    official["model/h1/mlp/c_fc/w"] = official["model/h1/mlp/c_fc/w"][..., :-1]
    with pytest.raises(InputError, match=r"model/h1/mlp/c_fc/w has shape \[1, 12, 47\], .* asks for \[1, 12, 48\]"):
        params_from_official(official.__getitem__, FINE_TUNED)
