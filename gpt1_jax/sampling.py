"""Text from the model: one compiled loop over cached keys and values.

The window rule. The model has n_ctx positions, so a sequence of n tokens is read through a window that starts at

    w(n) = 0                                             while n <= n_ctx
    w(n) = stride * ceil((n - n_ctx) / stride)           afterwards

and the next token is drawn from P(token n | tokens w(n) .. n-1). Positions are learned and absolute: when the window
moves, every token in it gets another position and nothing cached holds any longer, so the window is read again. A
large stride does that rarely (each row once in `stride` tokens) and leaves at least n_ctx - stride + 1 tokens of
context; stride=1 always leaves n_ctx, and reads the window again for every token. The window depends on n alone, so
that a text continued in two calls is the text continued in one.

Shapes: B rows, T slots of the token buffer, S slots of the cache, V vocabulary. B, T and the prompts' length are
rounded up to powers of two, and everything else that a caller may change (but the stride) is traced: another prompt,
temperature or number of tokens seldom compiles anything.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax import Array, lax

from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, GPT1Config, KVCache

if TYPE_CHECKING:
    from gpt1_jax.tokenizers import Tokenizer

_MIN_PREFILL = 16  # smallest buckets: of the prompts' length,
_MIN_SLOTS = 64  # and of prompt and new tokens together
_ANY = -1  # in a stop sequence: matches every token


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
    if tokenizer.vocab_size != model.config.vocab_size:
        raise InputError(
            f"tokenizer.vocab_size={tokenizer.vocab_size} differs from the model's vocab_size="
            f"{model.config.vocab_size}; use the tokenizer that the model was trained with"
        )
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"prompts[{i}]={text!r} is a {type(text).__name__}; prompts must be texts")
    separator = list(tokenizer.document_separator)
    heads = tokenizer.encode_batch(texts)
    for i, head in enumerate(heads):
        if not head and not separator:
            raise InputError(
                f"prompts[{i}]={texts[i]!r} has no token and this tokenizer has no document separator to start from; "
                f"give at least one word"
            )
    tails = generate_tokens(
        model,
        params,
        [head or separator for head in heads],
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
    if len(prompts) == 0 or max_new_tokens == 0:
        return [[] for _ in prompts]

    dropped = [_window_start(len(prompt), config.n_ctx, stride) for prompt in prompts]
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

    result = _run(
        model,
        params,
        _Rows(tokens, length, limit, np.asarray([*dropped, *[0] * (n_rows - len(dropped))], np.int32)),
        _pad_left(stop_sequences),
        jax.random.key(seed, impl="threefry2x32"),
        np.float32(temperature),
        np.int32(config.vocab_size if top_k is None else min(top_k, config.vocab_size)),
        np.float32(top_p),
        n_prefill=min(_bucket(longest - 1, _MIN_PREFILL), config.n_ctx),
        stride=stride,
    )
    tokens, end = jax.device_get((result.tokens, result.length))
    news = [tokens[i, len(window) : end[i]].tolist() for i, window in enumerate(windows)]
    return [_without_stop(new, stop_sequences) for new in news]


def draw(logits: Array, keys: Array, temperature: Array, top_k: Array, top_p: Array) -> Array:
    """One token id for each row, from softmax(logits / temperature) restricted to top_k, then to top_p.

    Args:
      logits: float32 [B, V].
      keys: random keys [B].
      temperature: float32 scalar; 0 takes the likeliest token.
      top_k: int32 scalar, 1 .. V; V keeps all.
      top_p: float32 scalar, in (0, 1]; 1 keeps all. Applied to the probabilities renormalised over the top k.

    Returns:
      int32 [B].
    """

    def random(logits: Array) -> Array:
        # The largest score is 0 before the division, so that no temperature overflows.
        scores = (logits - logits.max(axis=-1, keepdims=True)) / temperature
        return jax.vmap(jax.random.categorical)(keys, restrict(scores, top_k, top_p)).astype(jnp.int32)

    def likeliest(logits: Array) -> Array:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    return lax.cond(temperature < jnp.finfo(jnp.float32).tiny, likeliest, random, logits)


def restrict(scores: Array, top_k: Array, top_p: Array) -> Array:
    """-inf for every token outside the k likeliest, and then outside the smallest set of probability top_p.

    Args and shapes as in `draw`; of equal tokens the lower ids count as likelier, so the sets are exact. At least one
    token is left.
    """

    def k_likeliest(scores: Array) -> Array:
        kept = _likeliest(scores, jnp.ones_like(scores), top_k.astype(jnp.float32))
        return jnp.where(kept, scores, -jnp.inf)

    def nucleus(scores: Array) -> Array:
        kept = _likeliest(scores, jax.nn.softmax(scores, axis=-1), top_p)
        return jnp.where(kept, scores, -jnp.inf)

    scores = lax.cond(top_k < scores.shape[-1], k_likeliest, lambda scores: scores, scores)
    return lax.cond(top_p < 1, nucleus, lambda scores: scores, scores)


def _likeliest(scores: Array, weights: Array, target: Array) -> Array:
    """The smallest set of highest scores whose weights sum to the target or more: bool [B, V].

    Equal scores must have equal weights. The lowest score of the set is found bit by bit, which takes 32 sums where
    sorting 40k tokens takes several times as long.
    """
    bits = lax.bitcast_convert_type(jnp.where(scores == 0, 0.0, scores), jnp.uint32)  # -0 equals 0
    top_bit = jnp.uint32(1 << 31)
    order = jnp.where(bits >= top_bit, ~bits, bits | top_bit)  # unsigned integers in the order of the floats

    def lower_bit(i: Array, lowest: Array) -> Array:
        raised = lowest | (top_bit >> i.astype(jnp.uint32))
        enough = jnp.sum(jnp.where(order >= raised, weights, 0), axis=-1, keepdims=True) >= target
        return jnp.where(enough, raised, lowest)

    lowest = lax.fori_loop(0, 32, lower_bit, jnp.zeros((scores.shape[0], 1), jnp.uint32))
    above = jnp.sum(jnp.where(order > lowest, weights, 0), axis=-1, keepdims=True)
    tied = order == lowest
    before = jnp.cumsum(tied, axis=-1) - tied
    return (order > lowest) | (tied & (above + before * weights < target))


@flax.struct.dataclass
class _Rows:
    """The sequences as the loop carries them.

    Attributes:
      tokens: int32 [B, T].
      length: int32 [B], tokens known so far; a row is active while length < limit.
      limit: int32 [B]; lowered to `length` when a stop sequence ends the row.
      dropped: int32 [B], tokens of the prompt before tokens[:, 0].
      cache: all tokens of the row's window but the newest.
    """

    tokens: Array
    length: Array
    limit: Array
    dropped: Array
    cache: KVCache | None = None

    @property
    def active(self) -> Array:
        """Which rows still want tokens: bool [B]."""
        return self.length < self.limit


@functools.partial(jax.jit, static_argnames=("model", "n_prefill", "stride"))
def _run(
    model: GPT1,
    params: Mapping[str, Any],
    rows: _Rows,
    stops: Array,
    key: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    *,
    n_prefill: int,
    stride: int,
) -> _Rows:
    """The whole of generation: reads the prompts, then adds tokens until no row is active."""
    config = model.config
    n_rows, n_slots = rows.tokens.shape
    n_kept = config.n_ctx - stride
    prompt_end = rows.length
    row_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n_rows))

    def decode(tokens: Array, cache: KVCache) -> tuple[Array, KVCache]:
        return model.apply({"params": params}, tokens, cache, method="decode")

    def step(s: _Rows) -> _Rows:
        """Reads the newest token of every row and draws the next one."""
        newest = jnp.take_along_axis(s.tokens, s.length[:, None] - 1, axis=1)
        h, cache = decode(newest, s.cache)
        logits = model.apply({"params": params}, h[:, 0], method="lm_logits")[:, : config.vocab_size]
        keys = jax.vmap(jax.random.fold_in)(row_keys, s.dropped + s.length)
        drawn = draw(logits, keys, temperature, top_k, top_p)
        at = jnp.where(s.active, s.length, n_slots)
        tokens = s.tokens.at[jnp.arange(n_rows), at].set(drawn, mode="drop")
        length = s.length + s.active
        stopped = s.active & _ends_with(tokens, prompt_end, length, stops)
        return s.replace(
            tokens=tokens,
            length=length,
            limit=jnp.where(stopped, length, s.limit),
            cache=cache.replace(length=s.cache.length + s.active),
        )

    def full(s: _Rows) -> Array:
        return s.active & (s.cache.length == config.n_ctx)

    def slide(s: _Rows) -> _Rows:
        """Moves the window of one full row: the newest token is read by the next step, those before it here.

        One row at a time, so that rows that fill up at different times cost nothing to each other.
        """
        row = jnp.argmax(full(s))
        cache = s.cache
        if n_kept:
            window = lax.dynamic_slice(s.tokens, (row, s.length[row] - 1 - n_kept), (1, n_kept))
            _, read = decode(window, KVCache.empty(config, 1, n_kept))
            cache = cache.replace(
                keys=tuple(_set_row(old, new, row) for old, new in zip(cache.keys, read.keys, strict=True)),
                values=tuple(_set_row(old, new, row) for old, new in zip(cache.values, read.values, strict=True)),
            )
        return s.replace(cache=cache.replace(length=cache.length.at[row].set(n_kept)))

    def until_full(s: _Rows) -> _Rows:
        s = lax.while_loop(lambda s: full(s).any(), slide, s)
        return lax.while_loop(lambda s: s.active.any() & ~full(s).any(), step, s)

    _, cache = decode(rows.tokens[:, :n_prefill], KVCache.empty(config, n_rows, min(n_slots, config.n_ctx)))
    rows = rows.replace(cache=cache.replace(length=rows.length - 1))
    body = until_full if n_slots > config.n_ctx else step
    return lax.while_loop(lambda s: s.active.any(), body, rows).replace(cache=None)


def _set_row(cache: Array, new: Array, row: Array) -> Array:
    return lax.dynamic_update_slice(cache, new, (row, 0, 0, 0))


def _ends_with(tokens: Array, start: Array, end: Array, sequences: Array) -> Array:
    """Whether tokens[b, start[b] : end[b]] ends with one of the sequences [N, M] (see `_pad_left`): bool [B]."""
    at = end[:, None] + jnp.arange(-sequences.shape[1], 0)
    tail = jnp.take_along_axis(tokens, jnp.maximum(at, 0), axis=1)
    same = (tail[:, None] == sequences) & (at >= start[:, None])[:, None]
    return (same | (sequences == _ANY)).all(axis=-1).any(axis=-1)


def _pad_left(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """The sequences as rows of one array int32 [N, M], filled up with `_ANY` on the left."""
    width = max(map(len, sequences), default=1)
    return np.asarray([[_ANY] * (width - len(s)) + list(s) for s in sequences], np.int32).reshape(-1, width)


def _without_stop(new: list[int], sequences: Sequence[Sequence[int]]) -> list[int]:
    ends = [len(s) for s in sequences if new[-len(s) :] == list(s)]
    return new[: len(new) - max(ends, default=0)]


def _join(tokenizer: Tokenizer, head: list[int], tail: list[int], echo: bool) -> str:
    """The text of prompt and continuation, or of the continuation as it reads after the prompt."""
    text = tokenizer.decode([*head, *tail])
    if echo:
        return text
    prompt = tokenizer.decode(head)
    return text[len(prompt) :] if text.startswith(prompt) else tokenizer.decode(tail)


def _window_start(n: int, n_ctx: int, stride: int) -> int:
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
    _check_integer("max_new_tokens", max_new_tokens, 0, None, "0 returns the prompt alone")
    _check_integer("seed", seed, 0, 2**32 - 1, "any of them is as random as another")
    _check_integer("stride", stride, 1, config.n_ctx, "leave it out for n_ctx / 2")
    if top_k is not None:
        _check_integer("top_k", top_k, 1, None, "leave it out (None) to draw from all tokens")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise InputError(f"temperature={temperature} must be a number from 0 up; 0 takes the likeliest token always")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p={top_p} must be above 0 and at most 1; 1 draws from all tokens")
    for i, stop in enumerate(stop_sequences):
        if not stop or not all(0 <= t < config.vocab_size for t in stop):
            raise InputError(
                f"stop_sequences[{i}]={list(stop)} must hold at least one id, each from 0 to {config.vocab_size - 1} "
                f"(vocab_size - 1); remove it or correct its ids"
            )
    for i, prompt in enumerate(prompts):
        ids = np.asarray(prompt)
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise InputError(f"prompts[{i}]={prompt!r} must be a sequence of token ids; encode texts first")
        if not ids.size:
            raise InputError(f"prompts[{i}] is empty; give at least one token to continue from")
        bad = ids[(ids < 0) | (ids >= config.n_rows)]
        if bad.size:
            raise InputError(
                f"prompts[{i}] holds the token id {bad[0]}; ids must be from 0 to {config.n_rows - 1} (vocab_size="
                f"{config.vocab_size}, n_special={config.n_special}); encode it with the tokenizer of this model"
            )


def _check_integer(name: str, value: int, low: int, high: int | None, remedy: str) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or (high is not None and number > high):
        allowed = f"an integer from {low} up" if high is None else f"an integer from {low} to {high}"
        raise InputError(f"{name}={value!r} must be {allowed}; {remedy}")
