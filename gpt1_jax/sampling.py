"""Text from the model, or tokens: prompts as rows of one batch, which `decoding` continues.

The window rule. The model has n_ctx positions, so a sequence of n tokens is read through a window that starts at

    w(n) = 0                                             while n <= n_ctx
    w(n) = stride * ceil((n - n_ctx) / stride)           afterwards

and the next token is drawn from P(token n | tokens w(n) .. n-1). Positions are learned and absolute: when the window
moves, every token in it gets another position and nothing cached holds any longer, so the window is read again. A
large stride does that rarely (each row once in `stride` tokens) and leaves at least n_ctx - stride + 1 tokens of
context; stride=1 always leaves n_ctx, and reads the window again for every token. The window depends on n alone, so
that a text continued in two calls is the text continued in one.

The number of rows, and of prompt and new tokens together, are rounded up to powers of two, and everything else that a
caller may change (but the stride) is traced: another prompt, temperature or number of tokens seldom compiles anything.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from gpt1_jax.decoding import Rows, pad_left, run
from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, GPT1Config
from gpt1_jax.tokenizers.protocol import check_tokenizer

if TYPE_CHECKING:
    from gpt1_jax.tokenizers import Tokenizer

_MIN_SLOTS = 64  # smallest bucket of prompt and new tokens together


def generate(
    model: GPT1,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int = 40,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    stride: int | None = None,
    stop_at_separator: bool = True,
    echo: bool = True,
) -> str | list[str]:
    """Continues one text, or several of any lengths at once.

    The prompt is part of what is decoded, so that the space at the seam is right; it comes back as the model read it
    (in lower case, for example, if the tokenizer folds case). An empty prompt starts a new document, after the
    tokenizer's document separator.

    Args:
      model: any GPT1, fine-tuned or not.
      params: its parameters.
      tokenizer: the one the model was trained with.
      prompts: a text, or a list of texts.
      max_new_tokens: most tokens to add to each text; with 0 the texts come back as they are.
      temperature: logits are divided by it; 0 takes the likeliest token always.
      top_k: draws from the k likeliest tokens only; None from all.
      top_p: then draws from the smallest set of likeliest tokens that holds this much probability; 1 from all.
      seed: of the random stream; row i of a list has its own, which no other row can disturb.
      stride: tokens by which a full window moves (see the module's docstring); default n_ctx / 2.
      stop_at_separator: a text ends where the model ends the document; the separator itself is not returned.
      echo: return the prompt and its continuation; False returns the continuation alone.

    Returns:
      a text for a text, a list for a list.

    Raises:
      InputError: an argument is out of range, the tokenizer is not the model's, or a prompt is empty and the
        tokenizer has no document separator.
    """
    check_tokenizer(tokenizer, model.config.vocab_size, "tokenizer")
    if not isinstance(prompts, Iterable):
        raise InputError(f"prompts={prompts!r} is a {type(prompts).__name__}; it must be a text or a list of texts")
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"prompts[{i}]={text!r} is a {type(text).__name__}; prompts must be texts")
    separator = list(tokenizer.document_separator)
    heads = tokenizer.encode_batch(texts)
    starts = [head or new_document(tokenizer, f"prompts[{i}]={texts[i]!r}") for i, head in enumerate(heads)]
    tails = generate_tokens(
        model,
        params,
        starts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stride=stride,
        stop_sequences=[separator] if stop_at_separator and separator else [],
    )
    results = [_join(tokenizer, head, tail, echo) for head, tail in zip(heads, tails, strict=True)]
    return results[0] if isinstance(prompts, str) else results


def generate_tokens(
    model: GPT1,
    params: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 40,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    stride: int | None = None,
    stop_sequences: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Continues sequences of token ids; see `generate` for what is not described here.

    The token at index n of row i (counted from the start of its prompt) is drawn with
    fold_in(fold_in(key(seed), i), n), so it depends on nothing but the tokens before it, i, n and the seed.

    Args:
      model: any GPT1.
      params: its parameters.
      prompts: ids of each row, at least one; special tokens (start, delimiter, extract) may be read but are never
        drawn.
      max_new_tokens: most tokens to add to each row.
      temperature: 0 for the likeliest token.
      top_k: None for all.
      top_p: 1 for all.
      seed: 0 .. 2**32 - 1.
      stride: 1 .. n_ctx.
      stop_sequences: a row ends as soon as its new tokens end with one of these.

    Returns:
      the new ids of each row, without the stop sequence that ended it.

    Raises:
      InputError: an argument is out of range.
    """
    config = model.config
    stride = max(1, config.n_ctx // 2) if stride is None else stride
    _check(config, prompts, max_new_tokens, temperature, top_k, top_p, seed, stride, stop_sequences)
    max_new_tokens = int(max_new_tokens)  # of NumPy, perhaps
    if len(prompts) == 0 or max_new_tokens == 0:
        return [[] for _ in prompts]

    dropped = [window_start(len(prompt), config.n_ctx, stride) for prompt in prompts]
    if any(dropped):
        logging.warning(
            "%d of %d prompts are longer than n_ctx=%d tokens: the model reads their last window, without the first "
            "%d tokens in all (%d at most)",
            *(np.count_nonzero(dropped), len(prompts), config.n_ctx, sum(dropped), max(dropped)),
        )
    windows = [prompt[n:] for prompt, n in zip(prompts, dropped, strict=True)]
    longest = max(map(len, windows))
    n_rows, n_slots = _bucket(len(windows), 1), _bucket(longest + max_new_tokens, _MIN_SLOTS)
    tokens = np.zeros((n_rows, n_slots), np.int32)
    length = np.ones((n_rows,), np.int32)  # rows beyond the prompts have nothing to do
    limit = np.ones((n_rows,), np.int32)
    for i, window in enumerate(windows):
        tokens[i, : len(window)] = window
        length[i], limit[i] = len(window), len(window) + max_new_tokens

    result = run(
        model,
        params,
        Rows(
            *map(jnp.asarray, (tokens, length, limit, np.asarray([*dropped, *[0] * (n_rows - len(dropped))], np.int32)))
        ),
        pad_left(stop_sequences),
        jax.random.key(seed, impl="threefry2x32"),
        np.float32(temperature),
        np.int32(config.vocab_size if top_k is None else min(top_k, config.vocab_size)),
        np.float32(top_p),
        stride=stride,
    )
    tokens, end = jax.device_get((result.tokens, result.length))
    news = [tokens[i, len(window) : end[i]].tolist() for i, window in enumerate(windows)]
    return [_without_stop(new, stop_sequences) for new in news]


def _without_stop(new: list[int], sequences: Sequence[Sequence[int]]) -> list[int]:
    ends = [len(s) for s in sequences if new[-len(s) :] == list(s)]
    return new[: len(new) - max(ends, default=0)]


def new_document(tokenizer: Tokenizer, what: str) -> list[int]:
    """The tokens after which a document begins: what a model reads where a prompt, called `what`, has none.

    Raises:
      InputError: the tokenizer has no such tokens.
    """
    if not tokenizer.document_separator:
        raise InputError(
            f"{what} has no token and this tokenizer has no document separator to start from; give at least one word"
        )
    return list(tokenizer.document_separator)


def _join(tokenizer: Tokenizer, head: list[int], tail: list[int], echo: bool) -> str:
    """The text of prompt and continuation, or of the continuation as it reads after the prompt."""
    text = tokenizer.decode([*head, *tail])
    if echo:
        return text
    prompt = tokenizer.decode(head)
    return text[len(prompt) :] if text.startswith(prompt) else tokenizer.decode(tail)


def window_start(n: int, n_ctx: int, stride: int) -> int:
    """w(n): where the window begins through which n tokens are read, see the module."""
    return stride * math.ceil(max(0, n - n_ctx) / stride)


def _bucket(n: int, smallest: int) -> int:
    """The least power of two that is at least n, and at least `smallest`, itself one."""
    return max(smallest, 1 << max(0, n - 1).bit_length())


def _check(
    config: GPT1Config,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int,
    stride: int,
    stop_sequences: Sequence[Sequence[int]],
) -> None:
    """Refuses what is out of range, before anything is compiled."""
    _check_integer("max_new_tokens", max_new_tokens, 0, 1 << 30, "0 returns the prompt alone")
    _check_integer("seed", seed, 0, 2**32 - 1, "any of them is as random as another")
    _check_integer("stride", stride, 1, config.n_ctx, "leave it out for n_ctx / 2")
    if top_k is not None:
        _check_integer("top_k", top_k, 1, None, "leave it out (None) to draw from all tokens")
    if not 0 <= _number(temperature) < math.inf:
        raise InputError(f"temperature={temperature!r} must be a number from 0 up; 0 takes the likeliest token always")
    if not 0 < _number(top_p) <= 1:
        raise InputError(f"top_p={top_p!r} must be above 0 and at most 1; 1 draws from all tokens")
    for i, stop in enumerate(stop_sequences):
        ids = _ids(f"stop_sequences[{i}]", stop)
        if not ids.size or ids.min() < 0 or ids.max() >= config.vocab_size:
            raise InputError(
                f"stop_sequences[{i}]={ids.tolist()} must hold at least one id, each from 0 to {config.vocab_size - 1} "
                f"(vocab_size - 1); remove it or correct its ids"
            )
    for i, prompt in enumerate(prompts):
        ids = _ids(f"prompts[{i}]", prompt)
        if not ids.size:
            raise InputError(f"prompts[{i}] is empty; give at least one token to continue from")
        bad = ids[(ids < 0) | (ids >= config.n_rows)]
        if bad.size:
            raise InputError(
                f"prompts[{i}] holds the token id {bad[0]}; ids must be from 0 to {config.n_rows - 1} (vocab_size="
                f"{config.vocab_size}, n_special={config.n_special}); encode it with the tokenizer of this model"
            )


def _ids(name: str, given: Any) -> np.ndarray:
    """A sequence of token ids as an array."""
    try:
        ids = np.asarray(given)
    except ValueError:  # of sequences of several lengths
        ids = np.asarray(None)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise InputError(f"{name}={given!r:.80} must be a sequence of token ids; encode texts first")
    return ids


def _number(value: Any) -> float:
    """It as a float; NaN, which is in no range, of what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _check_integer(name: str, value: int, low: int, high: int | None, remedy: str) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or (high is not None and number > high):
        allowed = f"an integer from {low} up" if high is None else f"an integer from {low} to {high}"
        raise InputError(f"{name}={value!r} must be {allowed}; {remedy}")
