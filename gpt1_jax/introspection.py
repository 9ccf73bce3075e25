"""What a model attends to, and what it expects next: the numbers behind pictures of a prompt.

    attention_maps             softmax(q k^T / sqrt(head_dim)) of every layer and head
    next_token_probabilities   softmax(h_n W_e^T), the paper's equation 2, over the vocabulary
    next_tokens                its k likeliest tokens, and how likely the token was that came

All are read from the model's own modules, without dropout. Rows and lengths are padded to powers of two (a causal
model does not see what comes later), so that another prompt seldom compiles anything.

Shapes: B batch, L length, H heads, V vocabulary.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, apply

if TYPE_CHECKING:
    from gpt1_jax.tokenizers import Tokenizer

SPECIAL = ("<start>", "<delimiter>", "<extract>")
"""How the tokens are shown that fine-tuning appends after the vocabulary."""

_MIN_LENGTH = 16  # smallest length that is compiled
_CONTEXT = 8  # tokens before one that may decide how it reads


class NextTokens(NamedTuple):
    """What a model expects after every token of a batch [B, L].

    Attributes:
      ids: int32 [B, L, k], the likeliest next tokens, the likeliest first.
      probabilities: float32 [B, L, k], theirs.
      probability: float32 [B, L - 1], of the token that came: P(tokens[:, t + 1] | tokens[:, : t + 1]). NaN where that
        was a special one.
      rank: int32 [B, L - 1], of the token that came; 1 is the likeliest. 0 where that was a special one.
    """

    ids: np.ndarray
    probabilities: np.ndarray
    probability: np.ndarray
    rank: np.ndarray


def attention_maps(model: GPT1, params: Mapping[str, Any], tokens: Any) -> np.ndarray:
    """The attention probabilities of every layer and head.

    Args:
      model: any GPT1.
      params: its parameters.
      tokens: int [B, L], L <= n_ctx. Shorter rows are padded on the right with anything: queries before the padding
        do not see it.

    Returns:
      float32 [n_layer, B, H, L, L]: entry [l, b, h, i, j] is how much token i of row b looks at token j. Rows add up
      to 1, and are 0 above the diagonal.

    Raises:
      InputError: tokens of another shape, out of range, or longer than n_ctx; or a model without attention.
    """
    if model.config.trunk != "transformer":
        raise InputError(f"trunk={model.config.trunk!r} has no attention to show; next_tokens shows what it expects")
    tokens = _checked(model, tokens)
    n_rows, length = tokens.shape
    maps = _attention_maps(model, params, _padded(model, tokens))
    return np.asarray(jax.device_get(maps))[:, :n_rows, :, :length, :length]


def next_token_probabilities(model: GPT1, params: Mapping[str, Any], tokens: Any) -> np.ndarray:
    """The distribution of the next token at every position.

    Args:
      model: any GPT1.
      params: its parameters.
      tokens: int [B, L], as in `attention_maps`.

    Returns:
      float32 [B, L, V]: entry [b, t, v] is P(v | tokens[b, : t + 1]). Over the vocabulary, as `generate` draws: the
      special tokens of a fine-tuned model have no share.

    Raises:
      InputError: as `attention_maps`.
    """
    tokens = _checked(model, tokens)
    probabilities = _next_token_probabilities(model, params, _padded(model, tokens))
    return np.asarray(jax.device_get(probabilities))[: tokens.shape[0], : tokens.shape[1]]


def next_tokens(model: GPT1, params: Mapping[str, Any], tokens: Any, k: int = 5) -> NextTokens:
    """The k likeliest next tokens at every position, and probability and rank of the token that came.

    Args:
      model: any GPT1.
      params: its parameters.
      tokens: int [B, L], as in `attention_maps`.
      k: 1 .. V; each is a compilation. Of equally likely tokens the lower ids come first.

    Raises:
      InputError: as `attention_maps`, or k is out of range.
    """
    tokens = _checked(model, tokens)
    n_rows, length = tokens.shape
    vocab_size = model.config.vocab_size
    try:
        k = operator.index(k)
    except TypeError:
        raise InputError(f"k={k!r} must be an integer from 1 to {vocab_size} (vocab_size)") from None
    if not 1 <= k <= vocab_size:
        raise InputError(f"k={k} must be from 1 to {vocab_size} (vocab_size)")
    found = jax.device_get(_next_tokens(model, params, _padded(model, tokens), k))
    ids, probabilities, probability, rank = (np.asarray(x)[:n_rows] for x in found)
    special = tokens[:, 1:] >= vocab_size
    return NextTokens(
        ids[:, :length],
        probabilities[:, :length],
        np.where(special, np.float32(np.nan), probability[:, : length - 1]),
        np.where(special, 0, rank[:, : length - 1]),
    )


def text_after(tokenizer: Tokenizer, before: Sequence[int], token: int) -> str:
    """The text that one token adds after others, with the space that comes before it; never "".

    A byte of a character that is not complete gives U+FFFD. Tokens that no text shows have a name in angle brackets:
    special ones (`SPECIAL`), `<end>` for the end of a document, `<ID>` for others.
    """
    vocab_size = tokenizer.vocab_size
    if token >= vocab_size:
        return SPECIAL[token - vocab_size]
    head = [i for i in before[-_CONTEXT:] if i < vocab_size]
    old, new = tokenizer.decode(head), tokenizer.decode([*head, token])
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    text = new[same:]
    text = text or tokenizer.decode([token, token])  # a space that would begin the text
    return text or ("<end>" if (token,) == tuple(tokenizer.document_separator) else f"<{token}>")


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The texts of a sequence of tokens, each as `text_after` those before it."""
    tokens = [int(i) for i in tokens]
    return [text_after(tokenizer, tokens[:at], token) for at, token in enumerate(tokens)]


@functools.partial(jax.jit, static_argnames=("model",))
def _attention_maps(model: GPT1, params: Mapping[str, Any], tokens: Array) -> Array:
    _, state = model.apply({"params": params}, tokens, method="features", mutable=["intermediates"])
    n_layer, n_head = model.config.n_layer, model.config.n_head
    layers = [state["intermediates"][f"h_{i}"]["attn"]["probabilities"][0] for i in range(n_layer)]
    if not layers:
        return jnp.zeros((0, tokens.shape[0], n_head, *[tokens.shape[1]] * 2), jnp.float32)
    return jnp.stack(layers).astype(jnp.float32)


def _vocabulary_logits(model: GPT1, params: Mapping[str, Any], tokens: Array) -> Array:
    return apply(model, params, lambda m: m(tokens))[..., : model.config.vocab_size]


@functools.partial(jax.jit, static_argnames=("model",))
def _next_token_probabilities(model: GPT1, params: Mapping[str, Any], tokens: Array) -> Array:
    return jax.nn.softmax(_vocabulary_logits(model, params, tokens), axis=-1)


@functools.partial(jax.jit, static_argnames=("model", "k"))
def _next_tokens(model: GPT1, params: Mapping[str, Any], tokens: Array, k: int) -> tuple[Array, ...]:
    """`ids` and `probabilities` [B, L, k], `probability` and `rank` [B, L - 1]."""
    logits = _vocabulary_logits(model, params, tokens)
    log_sums = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    top, ids = jax.lax.top_k(logits, k)
    came = jnp.minimum(tokens[:, 1:, None], model.config.vocab_size - 1)
    logits, came_sums = logits[:, :-1], log_sums[:, :-1]
    own = jnp.take_along_axis(logits, came, axis=-1)
    ahead = (logits > own) | ((logits == own) & (jnp.arange(logits.shape[-1]) < came))
    return ids, jnp.exp(top - log_sums), jnp.exp(own - came_sums)[..., 0], 1 + ahead.sum(-1, dtype=jnp.int32)


def _checked(model: GPT1, tokens: Any) -> np.ndarray:
    """The tokens as int32 [B, L]."""
    config, array = model.config, np.asarray(tokens)
    if array.ndim != 2 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"tokens are {array.dtype} of shape {array.shape}; give ids of tokens, integers [rows, length], at least "
            "one of each"
        )
    if array.shape[1] > config.n_ctx:
        raise InputError(f"tokens are {array.shape[1]} long, n_ctx={config.n_ctx}: shorten the text")
    bad = array[(array < 0) | (array >= config.n_rows)]
    if bad.size:
        raise InputError(
            f"tokens hold the id {bad[0]}; ids must be from 0 to {config.n_rows - 1} (vocab_size={config.vocab_size}, "
            f"n_special={config.n_special}); encode the text with the tokenizer of this model"
        )
    return array.astype(np.int32)


def _padded(model: GPT1, tokens: np.ndarray) -> np.ndarray:
    """The tokens with rows and columns of zeros behind them."""
    n_rows, length = tokens.shape
    length = min(max(_MIN_LENGTH, 1 << (length - 1).bit_length()), model.config.n_ctx)
    return np.pad(tokens, ((0, (1 << (n_rows - 1).bit_length()) - n_rows), (0, length - tokens.shape[1])))
