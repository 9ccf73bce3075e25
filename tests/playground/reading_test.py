"""Texts that are continued, and what is told of each token; attention."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax import GPT1, InputError, generate
from gpt1_jax.introspection import attention_maps
from gpt1_jax.playground.models import MAX_CHARACTERS, Loaded
from gpt1_jax.playground.reading import MAX_NEW_TOKENS, attention, continue_text
from gpt1_jax.sampling import generate_tokens

LONG = "a moving film , a clever story , a tender script , a dull ending , and then the music and the cast again . "


class Counting(GPT1):
    """Counts how often it is traced, by whatever method."""

    traces = 0

    def _embed(self, *args):
        type(self).traces += 1
        return super()._embed(*args)


@pytest.fixture(scope="module")
def sharp(language_model) -> Loaded:
    """A model that expects some tokens much more than others."""
    model = Counting(language_model.model.config)
    return dataclasses.replace(language_model, model=model, params=random_params(model, scale=0.1))


@pytest.mark.parametrize("prompt", ["a film", "", "😀 <b>", LONG])
def test_the_text_is_that_of_generate(sharp, prompt):
    how = {"max_new_tokens": 30, "temperature": 0.8, "top_k": 50, "top_p": 0.9}
    result = continue_text(sharp, prompt, seed=5, **how)
    assert result.text == generate(sharp.model, sharp.params, sharp.tokenizer, prompt, seed=5, **how)
    assert result.n_new == sum(token.is_new for token in result.tokens) == 30
    assert not result.ended


def test_probabilities_are_those_of_the_window_that_a_token_was_drawn_from(sharp):
    """The prompt is longer than the 32 tokens of the context, and what is added fills it again."""
    n_ctx, stride, n_new = 32, 16, 30
    result = continue_text(sharp, LONG, max_new_tokens=n_new, temperature=0)
    prompt = sharp.tokenizer.encode(LONG)
    ids = [*prompt, *generate_tokens(sharp.model, sharp.params, [prompt], max_new_tokens=n_new, temperature=0)[0]]
    assert result.n_dropped == stride * -(-(len(prompt) - n_ctx) // stride) > 0
    assert len(result.tokens) == len(ids) - result.n_dropped
    assert "".join(token.text for token in result.tokens).strip() in result.text

    first, *others = result.tokens
    assert (first.probability, first.rank, first.alternatives) == (None, None, ())
    apply = jax.jit(sharp.model.apply)
    for n, token in enumerate(others, result.n_dropped + 1):
        start = max(result.n_dropped, stride * max(0, -(-(n - n_ctx) // stride)))
        window = np.zeros((1, n_ctx), np.int32)
        window[0, : n - start] = ids[start:n]
        expected = np.exp(np.asarray(apply({"params": sharp.params}, window), np.float64)[0, n - start - 1])
        expected /= expected.sum()
        assert token.probability == pytest.approx(expected[ids[n]], rel=1e-3)
        assert token.rank == 1 + (expected > expected[ids[n]] * (1 + 1e-6)).sum()
        assert [p for _, p in token.alternatives] == pytest.approx(
            sorted(expected)[: -len(token.alternatives) - 1 : -1]
        )
        assert token.is_new == (n >= len(prompt))
        assert not token.is_new or token.rank == 1  # of temperature 0


def test_everybody_has_a_seed_of_their_own(sharp):
    one, other = continue_text(sharp, "a film"), continue_text(sharp, "a film")
    assert one.seed != other.seed
    assert one.text != other.text
    assert continue_text(sharp, "a film", seed=one.seed).text == one.text


def test_without_new_tokens_it_tells_of_the_prompt(sharp):
    result = continue_text(sharp, "a film", max_new_tokens=0)
    assert (result.text, result.n_new, result.ended) == ("a film", 0, False)
    assert "".join(token.text for token in result.tokens).strip() == "a film"
    assert all(token.probability for token in result.tokens[1:])


def test_other_lengths_seldom_compile(sharp):
    words = ["a", "warm", "film", ",", "a", "lovely"]
    continue_text(sharp, " ".join(words[:4]), max_new_tokens=2)
    attention(sharp, " ".join(words[:5]), 0, None)
    before = Counting.traces
    for n in range(3, 6):
        continue_text(sharp, " ".join(words[:n]), max_new_tokens=n, temperature=n / 3, top_k=n, seed=n)
        attention(sharp, " ".join(words[:n]), 1, 2)
    assert Counting.traces == before


def test_attention_is_that_of_the_model(sharp):
    found = attention(sharp, "a warm film", 1, 2)
    ids = sharp.tokenizer.encode("a warm film")
    maps = attention_maps(sharp.model, sharp.params, [ids])
    np.testing.assert_array_equal(found.weights, maps[1, 0, 2])
    np.testing.assert_allclose(attention(sharp, "a warm film", 0, None).weights, maps[0, 0].mean(axis=0))
    assert "".join(found.tokens).strip() == "a warm film"
    assert attention(sharp, LONG, 0, 0).n_cut == len(sharp.tokenizer.encode(LONG)) - 32


def test_a_classifier_is_shown_the_text_as_its_task_has_it(tasks):
    found = attention(tasks("classification", ("no", "yes")), "a film", 0, 0)
    assert (found.tokens[0], found.tokens[-1]) == ("<start>", "<extract>")
    assert found.weights.shape == (len(found.tokens),) * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_new_tokens": MAX_NEW_TOKENS + 1}, "max_new_tokens=501 must be at most 500"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"temperature": -1.0}, "temperature=-1"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, "top_p=0"),
        ({"seed": -1}, "seed=-1"),
        ({"prompt": "a \ud800"}, "prompt: character 2 is half"),
        ({"prompt": "a" * (MAX_CHARACTERS + 1)}, "prompt has 100,001 characters"),
        ({"prompt": None}, "prompt: a text is expected"),
    ],
)
def test_what_cannot_be_continued(sharp, change, message):
    with pytest.raises(InputError, match=message):
        continue_text(sharp, **{"prompt": "a film", **change})


@pytest.mark.parametrize(
    ("arguments", "message"), [(("", 0, 0), "empty"), (("a", 2, 0), "layer=2 must"), (("a", 0, 4), "head=4 must")]
)
def test_what_has_no_attention(sharp, arguments, message):
    with pytest.raises(InputError, match=message):
        attention(sharp, *arguments)
