"""Generation against a plain, uncached reference."""

from __future__ import annotations

import dataclasses
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing_test import kept

from gpt1_jax import decoding
from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, GPT1Config
from gpt1_jax.sampling import generate, generate_tokens
from gpt1_jax.tokenizers import train_sentencepiece

CONFIG = GPT1Config(vocab_size=97, n_ctx=16, n_embd=32, n_head=4, n_layer=2)
PROMPTS = [[5], [1, 2, 3, 4, 5, 6, 7], list(range(30, 46)), list(range(50, 73))]  # up to n_ctx, and beyond


class Counting(GPT1):
    """Counts how often its decoding is traced."""

    traces = 0

    def decode(self, *arguments):
        """As in GPT1."""
        type(self).traces += 1
        return super().decode(*arguments)


MODEL = Counting(CONFIG)


@functools.cache
def make_params(config: GPT1Config = CONFIG):
    """Weights far larger than at the start of training, so that some tokens are much likelier than others."""
    params = jax.jit(GPT1(config).init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))["params"]
    return jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)


@functools.partial(jax.jit, static_argnames="model")
def last_logits(model: GPT1, params, window, n):
    """Logits after the first n of the window's tokens, computed from scratch."""
    return model.apply({"params": params}, window[None])[0, n - 1, : model.config.vocab_size]


@jax.jit
def categorical(seed, row, index, scores):
    """The documented random stream."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), row), index)
    return jax.random.categorical(key, scores)


def window_logits(model: GPT1, params, sequence: list[int], stride: int) -> np.ndarray:
    """Logits of the next token, the sequence read through the window of the documented rule."""
    n_ctx, start = model.config.n_ctx, 0
    while len(sequence) - start > n_ctx:
        start += stride
    window = sequence[start:]
    padded = jnp.asarray(window + [0] * (n_ctx - len(window)))
    return np.asarray(last_logits(model, params, padded, len(window)))


def reference(model, params, prompts, max_new_tokens, stride, temperature=1.0, top_k=None, top_p=1.0, seed=0):
    """Generation without cache, batch or compiled loop."""
    news = []
    for i, prompt in enumerate(prompts):
        sequence = list(prompt)
        while len(sequence) < len(prompt) + max_new_tokens:
            logits = window_logits(model, params, sequence, stride)
            if temperature == 0:
                sequence.append(int(np.argmax(logits)))
                continue
            scores = logits / temperature
            allowed = np.full_like(scores, -np.inf)
            ids = kept(scores, top_k, top_p)
            allowed[ids] = scores[ids]
            sequence.append(int(categorical(seed, i, len(sequence), allowed)))
        news.append(sequence[len(prompt) :])
    return news


@pytest.mark.parametrize("stride", [1, 5, 16])
@pytest.mark.parametrize(
    "how", [{"temperature": 0}, {"seed": 7}, {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 3}]
)
def test_same_tokens_as_uncached(how, stride):
    model, params = MODEL, make_params()
    news = generate_tokens(model, params, PROMPTS, max_new_tokens=30, stride=stride, **how)
    assert news == reference(model, params, PROMPTS, 30, stride, **how)
    assert len({tuple(new) for new in news}) == len(PROMPTS)


def test_numbers_may_be_of_numpy():
    how = {"max_new_tokens": 9, "top_k": 20, "seed": 3, "stride": 5}
    of_numpy = {name: np.int64(value) for name, value in how.items()}
    args = (MODEL, make_params())
    assert generate_tokens(*args, [np.array([1, 2])], **of_numpy) == generate_tokens(*args, [[1, 2]], **how)


def test_default_stride_is_half_the_context():
    args = (MODEL, make_params(), PROMPTS)
    assert generate_tokens(*args, max_new_tokens=40) == reference(*args, 40, stride=8)


def test_bfloat16_takes_a_likeliest_token_up_to_rounding():
    config = GPT1Config(**(vars(CONFIG) | {"n_layer": 1, "dtype": "bfloat16"}))
    model, params = GPT1(config), make_params()
    news = generate_tokens(model, params, PROMPTS, max_new_tokens=30, temperature=0)
    short = []
    for prompt, new in zip(PROMPTS, news, strict=True):
        assert len(new) == 30
        for t in range(len(new)):
            logits = window_logits(model, params, prompt + new[:t], config.n_ctx // 2)
            short.append((logits.max() - logits[new[t]]) / logits.std())
    assert max(short) < 0.15
    assert np.mean(np.equal(short, 0)) > 0.9


def test_rows_do_not_touch_each_other():
    model, params = MODEL, make_params()
    row = [3, 1, 4, 1, 5]
    first = generate_tokens(model, params, [[9, 9], row, [8] * 14, [7]], max_new_tokens=40, seed=5)
    second = generate_tokens(model, params, [[2] * 12, row, [6]], max_new_tokens=40, seed=5)
    assert first[1] == second[1]
    greedy = generate_tokens(model, params, [[8] * 14, row, [5]], max_new_tokens=40, temperature=0)
    assert greedy[1] == generate_tokens(model, params, [row], max_new_tokens=40, temperature=0)[0]


def test_random_streams_differ_by_row_and_seed_and_repeat():
    args = (MODEL, make_params(), [[3, 1]] * 4)
    news = generate_tokens(*args, seed=2**32 - 1, temperature=2.0)
    assert news == generate_tokens(*args, seed=2**32 - 1, temperature=2.0)
    assert len({tuple(new) for new in news}) == 4
    assert news != generate_tokens(*args, seed=1, temperature=2.0)


@pytest.mark.parametrize("prompt", [[3, 1, 4], list(range(40))])
def test_two_calls_continue_as_one(prompt):
    more = functools.partial(generate_tokens, MODEL, make_params(), seed=4)
    whole = more([prompt], max_new_tokens=30)[0]
    part = more([prompt], max_new_tokens=11)[0]
    assert whole[:11] == part
    assert whole[11:] == more([prompt + part], max_new_tokens=19)[0]


def test_long_prompts_are_reported(caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        generate_tokens(MODEL, make_params(), PROMPTS[:3], max_new_tokens=30)
        assert not caplog.messages
        generate_tokens(MODEL, make_params(), PROMPTS, max_new_tokens=1)
    assert "1 of 4 prompts are longer than n_ctx=16" in caplog.text
    assert "first 8 tokens" in caplog.text


def before(new, *stops):
    """The tokens before the first of the stop sequences."""
    starts = [t for stop in stops for t in range(len(new)) if new[t : t + len(stop)] == stop]
    return new[: min(starts, default=len(new))]


def test_stop_sequences_end_rows_and_the_loop():
    more = functools.partial(generate_tokens, MODEL, make_params(), PROMPTS, temperature=3.0)
    whole = more()
    pair = whole[1][20:22]
    stopped = more(stop_sequences=[pair])
    assert stopped == [before(new, pair) for new in whole]
    assert [len(new) for new in stopped] == [40, 20, 40, 40]
    # Only new tokens count: those of the prompt do not end a row.
    seam = [PROMPTS[1][-1], whole[1][0]]
    assert more(stop_sequences=[seam]) == [before(new, seam) for new in whole]
    # A million steps if the loop went on.
    stops = [[whole[0][6]], [whole[1][9]], [whole[2][25]], whole[3][12:14]]
    assert more(max_new_tokens=10**6, stop_sequences=stops) == [before(new, *stops) for new in whole]


@pytest.mark.parametrize("softmax_over_positions", [False, True])
def test_special_padded_and_position_rows_are_never_drawn(softmax_over_positions):
    changes = {"n_layer": 0, "n_special": 3, "softmax_over_positions": softmax_over_positions}
    config = GPT1Config(**(vars(CONFIG) | changes))
    params = jax.tree.map(lambda x: x, make_params(config))
    table = params["tokens_embed"]["embedding"]
    # Rows beyond the vocabulary take 50 times the logits of the others, with either sign.
    params["tokens_embed"] = {"embedding": table.at[97:].set(50 * table[:31] * (-1.0) ** jnp.arange(31)[:, None])}
    params["positions_embed"] = {"embedding": 50 * params["positions_embed"]["embedding"]}
    prompts = [[config.vocab_size, 3, config.extract_id], *PROMPTS[1:]]
    for temperature in (0, 1, 1e6):
        news = generate_tokens(GPT1(config), params, prompts, max_new_tokens=40, temperature=temperature)
        assert 0 <= np.min(news) <= np.max(news) < 97


def test_compiles_once_for_a_bucket():
    more = functools.partial(generate_tokens, MODEL, make_params())
    more([[1] * 3, [2] * 7, [3]], max_new_tokens=9)
    traces = Counting.traces
    for length in (1, 2, 8, 16):
        more([[4] * length] * 4, max_new_tokens=40, temperature=0.7, top_k=5, top_p=0.3, seed=length)
    more([[4]] * 3, max_new_tokens=1, temperature=0)
    assert Counting.traces == traces > 0


def test_prompts_of_all_lengths_share_two_compilations_for_each_number_of_rows():
    config = dataclasses.replace(CONFIG, n_ctx=100, n_layer=1)
    more = functools.partial(generate_tokens, GPT1(config), make_params(config))
    compiled = decoding.run._cache_size()
    for length in range(1, 96, 5):
        more([[4] * length], max_new_tokens=3, temperature=length % 2, top_p=0.5)
    assert decoding.run._cache_size() - compiled == 2  # up to 64 tokens, and up to 128


@pytest.mark.parametrize("length", [1, 31, 32, 33, 34, 63, 64, 65, 66, 97, 100])
def test_prompts_are_read_in_pieces(length):
    config = dataclasses.replace(CONFIG, n_ctx=100, n_layer=1)
    model, params = GPT1(config), make_params(config)
    prompts = [np.random.default_rng(n).integers(0, 97, n).tolist() for n in (length, 3)]
    assert generate_tokens(model, params, prompts, max_new_tokens=4, temperature=0) == reference(
        model, params, prompts, 4, stride=50, temperature=0
    )


def test_in_bfloat16_matrices_are_cast_before_the_loop():
    config = dataclasses.replace(CONFIG, n_layer=1, dtype="bfloat16")
    seen = set()

    class Recording(GPT1):
        def decode(self, *arguments):
            params = self.variables["params"]
            seen.add((params["h_0"]["mlp"]["c_fc"]["kernel"].dtype.name, params["h_0"]["ln_1"]["scale"].dtype.name))
            return super().decode(*arguments)

    generate_tokens(Recording(config), make_params(), [[1]], max_new_tokens=2)
    assert seen == {("bfloat16", "float32")}


class Words:
    """Words with a space before them, as SentencePiece has them; the first space of a text is dropped."""

    vocab_size = 97
    document_separator = (0,)
    fingerprint = ""

    def encode(self, text):
        """Ids of words such as w17."""
        return [int(word[1:]) for word in text.lower().split()]

    def encode_batch(self, texts):
        """Ids of every text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        """The separator has no text."""
        return "".join(f" w{t}" for t in ids if t).removeprefix(" ")


def test_texts_in_and_out():
    more = functools.partial(generate, MODEL, make_params(), Words(), max_new_tokens=12, stop_at_separator=False)
    prompts = ["W3 w1", "w4", ""]
    ids = generate_tokens(MODEL, make_params(), [[3, 1], [4], [0]], max_new_tokens=12)
    texts = more(prompts)
    assert texts == [Words().decode(p + t) for p, t in zip([[3, 1], [4], []], ids, strict=True)]
    assert more(prompts[0]) == texts[0]
    tails = more(prompts, echo=False)
    assert tails[0].startswith(" w")
    assert texts[:2] == ["w3 w1" + tails[0], "w4" + tails[1]]
    assert texts[2] == tails[2]
    assert more(prompts, max_new_tokens=0) == ["w3 w1", "w4", ""]
    assert more([]) == []


def test_sentencepiece_within_the_context(tmp_path):
    tokenizer = train_sentencepiece(["the plot is thin .\nthe cast is good ."] * 20, tmp_path, vocab_size=290)
    config = GPT1Config(vocab_size=290, n_ctx=80, n_embd=16, n_head=2, n_layer=1)
    model, params = GPT1(config), make_params(config)
    texts = ["The plot", "the cast is", "", "thin and naïve"]
    prompts = [tokenizer.encode(text) or [*tokenizer.document_separator] for text in texts]
    news = reference(model, params, prompts, 20, stride=40, temperature=0)
    continued = generate(model, params, tokenizer, texts, max_new_tokens=20, temperature=0, stop_at_separator=False)
    assert continued == [tokenizer.decode(p + t) for p, t in zip(prompts, news, strict=True)]
    for text, more in zip(texts, continued, strict=True):
        assert more.startswith(text.lower())
        assert len(more) > len(text)


def test_a_text_stops_at_the_document_separator():
    tokenizer = Words()
    more = functools.partial(generate, MODEL, make_params(), tokenizer, ["w5", "w6 w7", "w8"], temperature=3.0)
    whole = [tokenizer.encode(text) for text in more(stop_at_separator=False)]
    tokenizer.document_separator = tuple(whole[1][8:10])
    stopped = [tokenizer.encode(text) for text in more()]
    assert stopped == [before(text, whole[1][8:10]) for text in whole]
    assert stopped[0] == whole[0]
    assert len(stopped[1]) == 8
    assert [tokenizer.encode(text) for text in more(stop_at_separator=False)] == whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": 2.5}, "top_k=2.5"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": None}, "top_p=None must be above 0"),
        ({"stop_sequences": [[5.5]]}, r"stop_sequences\[0\]=\[5.5\] must be a sequence of token ids"),
        ({"stop_sequences": ["ab"]}, r"stop_sequences\[0\]='ab' must be a sequence of token ids"),
        ({"max_new_tokens": 1 << 31}, "max_new_tokens=2147483648 must be"),
        ({"temperature": None}, "temperature=None must be a number"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"stride": 0}, "stride=0 must be an integer from 1 to 16"),
        ({"stride": 17}, "stride=17"),
        ({"stop_sequences": [[]]}, r"stop_sequences\[0\]"),
        ({"prompts": [[1], []]}, r"prompts\[1\] is empty"),
        ({"prompts": [[1], [2, 97]]}, r"prompts\[1\] holds the token id 97; ids must be from 0 to 96"),
        ({"prompts": [[-1]]}, "token id -1"),
        ({"prompts": [1, 2]}, r"prompts\[0\]=1 must be a sequence"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        generate_tokens(MODEL, None, **({"prompts": [[1]]} | arguments))


def test_tokenizer_and_texts_are_checked():
    other = Words()
    other.vocab_size = 96
    with pytest.raises(InputError, match="tokenizer: the tokenizer has 96 tokens and the model vocab_size=97"):
        generate(MODEL, None, other, "w1")
    with pytest.raises(InputError, match=r"prompts=None is a NoneType; it must be a text or a list of texts"):
        generate(MODEL, None, Words(), None)
    with pytest.raises(InputError, match=r"prompts\[1\]=7"):
        generate(MODEL, None, Words(), ["w1", 7])
    other = Words()
    other.document_separator = ()
    with pytest.raises(InputError, match=r"prompts\[0\]='' has no token"):
        generate(MODEL, None, other, "")
