"""What the language model says of a text: how it goes on, how likely each token was, what each looks at."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence

import numpy as np

from gpt1_jax.errors import InputError
from gpt1_jax.introspection import attention_maps, next_token_probabilities, text_after, token_texts
from gpt1_jax.playground.models import Loaded, check_text
from gpt1_jax.sampling import generate_tokens, new_document, window_start
from gpt1_jax.tasks.transforms import SpecialTokens, classification

MAX_NEW_TOKENS = 500
"""Of one request, so that nobody waits long for somebody else's."""

N_ALTERNATIVES = 8
"""Likeliest tokens that are shown in place of one."""


@dataclasses.dataclass(frozen=True)
class Token:
    """A token of the prompt, or one that was added.

    Attributes:
      text: what it adds to the text before it.
      is_new: whether the model drew it.
      probability: P(it | what the model had read), at temperature 1 and over all tokens; None for the first.
      rank: 1 if it was the likeliest; None for the first.
      alternatives: the likeliest tokens in its place and their probabilities, the likeliest first.
    """

    text: str
    is_new: bool
    probability: float | None = None
    rank: int | None = None
    alternatives: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A text and how it came about.

    Attributes:
      text: prompt and continuation, as `generate` gives them.
      tokens: those that the model read, the new ones last.
      n_dropped: tokens of the prompt that it could not read, at its beginning.
      n_new: tokens that were added.
      ended: whether the model ended the document, rather than the limit of new tokens.
      seed: the one that repeats it.
    """

    text: str
    tokens: tuple[Token, ...]
    n_dropped: int
    n_new: int
    ended: bool
    seed: int


def continue_text(
    loaded: Loaded,
    prompt: str,
    *,
    max_new_tokens: int = 40,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | None = None,
) -> Continuation:
    """Continues a text as `generate` does, and tells of every token how likely it was.

    Args:
      loaded: any model.
      prompt: the text; an empty one begins a new document.
      max_new_tokens: 0 to `MAX_NEW_TOKENS`.
      temperature: as in `generate`.
      top_k: likewise.
      top_p: likewise.
      seed: likewise; None takes another one each time.

    Raises:
      InputError: as `generate`, and for a text or a number of tokens that is too large for a page.
    """
    model, params, tokenizer = loaded.model, loaded.params, loaded.tokenizer
    prompt = check_text("prompt", prompt)
    if isinstance(max_new_tokens, int) and max_new_tokens > MAX_NEW_TOKENS:
        raise InputError(f"max_new_tokens={max_new_tokens} must be at most {MAX_NEW_TOKENS} here")
    separator = list(tokenizer.document_separator)
    head = tokenizer.encode(prompt)
    shown_from = 0
    if not head:
        head = new_document(tokenizer, f"prompt={prompt!r}")
        shown_from = len(head)
    seed = secrets.randbelow(2**32) if seed is None else seed
    tail = generate_tokens(
        model,
        params,
        [head],
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_sequences=[separator] if separator else [],
    )[0]
    stride = max(1, model.config.n_ctx // 2)
    n_dropped = window_start(len(head), model.config.n_ctx, stride)
    return Continuation(
        text=tokenizer.decode([*head, *tail]),
        tokens=tuple(_told(loaded, [*head, *tail], len(head), stride)[shown_from:]),
        n_dropped=n_dropped,
        n_new=len(tail),
        ended=len(tail) < max_new_tokens,
        seed=seed,
    )


def _told(loaded: Loaded, ids: Sequence[int], n_prompt: int, stride: int) -> list[Token]:
    """The tokens from the first one that was read on; each was drawn from the window that `sampling` describes."""
    n_ctx = loaded.model.config.n_ctx
    first = window_start(n_prompt, n_ctx, stride)
    starts = [max(first, window_start(n, n_ctx, stride)) for n in range(first, len(ids))]  # of the window before each
    tokens = [Token(text_after(loaded.tokenizer, ids[:first], ids[first]), is_new=first >= n_prompt)]
    for start in sorted(set(starts)):
        places = [n for n, own in enumerate(starts, first) if own == start and n > first]
        if not places:
            continue
        probabilities = next_token_probabilities(loaded.model, loaded.params, [list(ids[start : places[-1]])])[0]
        tokens += [_token(loaded, ids, n, probabilities[n - 1 - start], n >= n_prompt) for n in places]
    return tokens


def _token(loaded: Loaded, ids: Sequence[int], n: int, probabilities: np.ndarray, is_new: bool) -> Token:
    """The token at place n, of which `probabilities` [V] were expected."""
    tokenizer, before = loaded.tokenizer, ids[:n]
    text = text_after(tokenizer, before, ids[n])
    if ids[n] >= len(probabilities):  # a special token
        return Token(text, is_new)
    own = probabilities[ids[n]]
    likeliest = np.argsort(-probabilities, kind="stable")[:N_ALTERNATIVES]
    ahead = (probabilities > own) | ((probabilities == own) & (np.arange(len(probabilities)) < ids[n]))
    return Token(
        text,
        is_new,
        float(own),
        1 + int(np.count_nonzero(ahead)),
        tuple((text_after(tokenizer, before, int(i)), float(probabilities[i])) for i in likeliest),
    )


@dataclasses.dataclass(frozen=True)
class Attention:
    """What the tokens of a text look at.

    Attributes:
      tokens: L texts.
      weights: float32 [L, L]; row i is token i's attention, 0 for what comes after it.
      n_cut: tokens at the end of the text that did not fit.
    """

    tokens: tuple[str, ...]
    weights: np.ndarray
    n_cut: int


def attention(loaded: Loaded, text: str, layer: int, head: int | None) -> Attention:
    """The attention of one head, or the mean over the heads of a layer.

    A model that was fine-tuned for classification reads the text as its task has it, between start and extract.

    Args:
      loaded: any model.
      text: at least one token; the first n_ctx are read.
      layer: 0 .. n_layer - 1, from the bottom.
      head: 0 .. n_head - 1; None for the mean.

    Raises:
      InputError: there is no token, layer or head like that.
    """
    config, readout = loaded.model.config, loaded.model.readout
    for name, value, n in (("layer", layer, config.n_layer), ("head", head, config.n_head)):
        if value is not None and not 0 <= value < n:
            raise InputError(f"{name}={value} must be from 0 to {n - 1}")
    ids = loaded.tokenizer.encode(check_text("text", text))
    if not ids:
        raise InputError("the text is empty; give at least one word")
    n_cut = max(0, len(ids) - config.n_ctx)
    if readout is not None and readout.kind == "classification" and readout.read_at == "extract":
        (ids,), n_cut = classification(ids, special=SpecialTokens.after(config.vocab_size), n_ctx=config.n_ctx)
    ids = ids[: config.n_ctx]
    maps = attention_maps(loaded.model, loaded.params, [ids])[layer, 0]
    return Attention(
        tuple(token_texts(loaded.tokenizer, ids)), maps.mean(axis=0) if head is None else maps[head], n_cut
    )
