"""Attention and next-token probabilities are those of the model's own computation."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax import introspection, tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.introspection import attention_maps, next_token_probabilities, next_tokens, text_after, token_texts
from gpt1_jax.model import GPT1, GPT1Config

CONFIG = GPT1Config(vocab_size=40, n_ctx=24, n_embd=16, n_head=4, n_layer=2)
MODEL = GPT1(CONFIG)


@pytest.fixture(scope="module")
def params():
    return random_params(MODEL)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(0, 40, size=(3, 11))


def by_hand(params, tokens):
    """Attention probabilities and the top hidden states, in NumPy: h_0 = W_e + W_p; post-LayerNorm blocks."""

    def norm(x, p):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    length = tokens.shape[1]
    x = params["tokens_embed"]["embedding"][tokens] + params["positions_embed"]["embedding"][:length]
    maps = []
    for i in range(CONFIG.n_layer):
        p = params[f"h_{i}"]
        attn, mlp = p["attn"], p["mlp"]
        q, k, v = (
            np.einsum("bld,dhe->bhle", x, attn["c_attn"]["kernel"][:, j]) + attn["c_attn"]["bias"][j][None, :, None]
            for j in range(3)
        )
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        maps.append(softmax(np.where(np.tril(np.ones((length, length))), scores, -np.inf)))
        a = np.einsum("bhle,hed->bld", maps[-1] @ v, attn["c_proj"]["kernel"]) + attn["c_proj"]["bias"]
        n = norm(x + a, p["ln_1"])
        m = n @ mlp["c_fc"]["kernel"] + mlp["c_fc"]["bias"]
        m = 0.5 * m * (1 + np.tanh(np.sqrt(2 / np.pi) * (m + 0.044715 * m**3)))
        x = norm(n + m @ mlp["c_proj"]["kernel"] + mlp["c_proj"]["bias"], p["ln_2"])
    logits = x @ params["tokens_embed"]["embedding"][: CONFIG.vocab_size].T
    return np.stack(maps), softmax(logits)


def test_they_are_those_of_the_paper(params, tokens):
    maps, probabilities = by_hand(params, tokens)
    ours = attention_maps(MODEL, params, tokens)
    assert (ours.shape, ours.dtype) == ((2, 3, 4, 11, 11), np.float32)
    np.testing.assert_allclose(ours, maps, atol=2e-5)
    ours = next_token_probabilities(MODEL, params, tokens)
    assert (ours.shape, ours.dtype) == ((3, 11, 40), np.float32)
    np.testing.assert_allclose(ours, probabilities, atol=2e-5)


@pytest.mark.parametrize("changes", [{"remat": "full"}, {"scan_layers": True}, {"dtype": "bfloat16"}])
def test_however_the_model_is_computed(changes, params, tokens):
    maps, _ = by_hand(params, tokens)
    ours = attention_maps(GPT1(dataclasses.replace(CONFIG, **changes)), params, tokens)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, maps, atol=0.1 if "dtype" in changes else 2e-5)
    np.testing.assert_allclose(ours.sum(-1), 1, atol=0.01 if "dtype" in changes else 1e-5)
    assert not np.triu(ours, 1).any()


def test_nothing_is_computed_where_nobody_asks(params, tokens):
    def exponentials(**kwargs):
        return str(jax.make_jaxpr(lambda p: MODEL.apply({"params": p}, tokens, **kwargs))(params)).count("= exp ")

    assert exponentials(mutable=["intermediates"]) == 2 * exponentials() > 0
    assert not isinstance(MODEL.apply({"params": params}, tokens), tuple)


def test_the_likeliest_tokens_and_the_one_that_came(params, tokens):
    probabilities = next_token_probabilities(MODEL, params, tokens)
    found = next_tokens(MODEL, params, tokens, k=3)
    order = np.argsort(-probabilities, axis=-1, kind="stable")
    np.testing.assert_array_equal(found.ids, order[..., :3])
    np.testing.assert_allclose(found.probabilities, np.take_along_axis(probabilities, order, -1)[..., :3], rtol=1e-5)
    for b, t in np.ndindex(3, 10):
        came = tokens[b, t + 1]
        assert found.probability[b, t] == pytest.approx(probabilities[b, t, came], rel=1e-5)
        assert found.rank[b, t] == 1 + list(order[b, t]).index(came)


def test_of_equal_tokens_the_lower_ids_come_first(params, tokens):
    same = params | {"tokens_embed": {"embedding": np.zeros_like(params["tokens_embed"]["embedding"])}}
    found = next_tokens(MODEL, same, tokens, k=4)
    assert found.ids[2, 7].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(found.rank, tokens[:, 1:] + 1)
    np.testing.assert_allclose(found.probability, 1 / 40, rtol=1e-5)


def test_special_tokens_are_read_but_never_expected():
    config = dataclasses.replace(CONFIG, n_special=3, softmax_over_positions=True)
    model = GPT1(config)
    params, tokens = random_params(model), np.array([[40, 5, 6, 41, 7, 42]])
    probabilities = next_token_probabilities(model, params, tokens)
    logits = np.asarray(model.apply({"params": params}, tokens))[..., :40]
    np.testing.assert_allclose(probabilities, jax.nn.softmax(logits), atol=1e-6)
    found = next_tokens(model, params, tokens, k=40)
    assert sorted(found.ids[0, 0]) == list(range(40))
    assert np.isnan(found.probability[0]).tolist() == [False, False, True, False, True]
    assert (found.rank[0] == 0).tolist() == [False, False, True, False, True]


def test_other_lengths_give_the_same_numbers_and_compile_nothing(params, tokens):
    whole = attention_maps(MODEL, params, tokens)
    expected = next_tokens(MODEL, params, tokens)
    compiled = introspection._attention_maps._cache_size(), introspection._next_tokens._cache_size()
    for length in (1, 2, 7):
        part = tokens[:, :length]
        np.testing.assert_array_equal(attention_maps(MODEL, params, part), whole[..., :length, :length])
        found = next_tokens(MODEL, params, part)
        np.testing.assert_array_equal(found.ids, expected.ids[:, :length])
        np.testing.assert_array_equal(found.rank, expected.rank[:, : length - 1])
    assert compiled == (introspection._attention_maps._cache_size(), introspection._next_tokens._cache_size())
    assert attention_maps(MODEL, params, np.zeros((1, 24), int)).shape == (2, 1, 4, 24, 24)


def test_no_layers(tokens):
    model = GPT1(dataclasses.replace(CONFIG, n_layer=0))
    assert attention_maps(model, random_params(model), tokens).shape == (0, 3, 4, 11, 11)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1, 2], r"shape \(2,\)"),
        (np.zeros((1, 0), int), r"shape \(1, 0\)"),
        ([[0.5]], "float64"),
        ([[0] * 25], "25 long, n_ctx=24"),
        ([[0, 40]], "the id 40; ids must be from 0 to 39"),
        ([[-1]], "the id -1"),
    ],
)
@pytest.mark.parametrize("ask", [attention_maps, next_token_probabilities, next_tokens])
def test_bad_tokens(ask, bad, message, params):
    with pytest.raises(InputError, match=message):
        ask(MODEL, params, bad)


@pytest.mark.parametrize("k", [0, 41, 2.5])
def test_bad_k(k, params, tokens):
    with pytest.raises(InputError, match=f"k={k}"):
        next_tokens(MODEL, params, tokens, k=k)


def test_texts_of_tokens(tmp_path):
    words = "the film , bright pace 12 . a naïve story\n" * 20
    tokenizer = tokenizers.train_sentencepiece([words], tmp_path, vocab_size=300)
    for text in ("the film , bright pace 12 .", "naïve \N{PILE OF POO}", "a\nb", "שלום"):
        ids = tokenizer.encode(text)
        assert "".join(token_texts(tokenizer, ids)).replace("\ufffd", "").lstrip() == tokenizer.decode(ids)
    ids = tokenizer.encode("the film")
    size = tokenizer.vocab_size
    special = token_texts(tokenizer, [size, *ids, size + 1, *ids, size + 2])
    assert [special[0], special[len(ids) + 1], special[-1]] == list(introspection.SPECIAL)
    assert "".join(special[1 : len(ids) + 1]) == "the film"
    assert "".join(special[len(ids) + 2 : -1]) == " the film"
    assert text_after(tokenizer, [], ids[0]) == token_texts(tokenizer, ids)[0]
    assert text_after(tokenizer, ids, *tokenizer.document_separator) == "<end>"
