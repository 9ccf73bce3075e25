"""The input transformations of section 3.3 and figure 1 of the paper: an example becomes C streams of token ids.

| kind | streams |
|---|---|
| classification | start text extract |
| entailment | start premise delimiter hypothesis extract |
| similarity | start a delimiter b extract; start b delimiter a extract |
| multiple choice | start context question delimiter answer_i extract, one per answer |

The paper writes RACE as [passage; question; $; answer]: no token between passage and question.

A stream that is longer than the context loses tokens from the *end* of what does not decide (as the official code
cuts): the text, the premise, the context, the longer of two similar texts. The hypothesis, the question, the answers
and the special tokens stay whole. The choices of one example share one shortened context, so that they are compared on
equal terms; two similar texts are cut by a rule that does not see their order, so that sim(a, b) = sim(b, a).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpt1_jax.errors import InputError

Ids = Sequence[int]
Fields = Mapping[str, Any]
"""Field of a task kind -> `Ids` of its text; "answers" -> those of each."""


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """The three ids that fine-tuning appends to the vocabulary."""

    start: int
    delimiter: int
    extract: int

    @classmethod
    def after(cls, vocab_size: int) -> SpecialTokens:
        """The ids V, V + 1, V + 2."""
        return cls(vocab_size, vocab_size + 1, vocab_size + 2)


class Streams(NamedTuple):
    """C token sequences of at most `n_ctx` ids, and how many tokens of the example were cut to get there."""

    streams: tuple[list[int], ...]
    n_cut: int


def classification(text: Ids, *, special: SpecialTokens, n_ctx: int) -> Streams:
    """One stream, start text extract; the end of the text is cut.

    Raises:
      InputError: n_ctx has no room for a token of it.
    """
    text, n_cut = _cut("text", text, n_ctx - 2, n_ctx, "the two special tokens")
    return Streams(([special.start, *text, special.extract],), n_cut)


def entailment(premise: Ids, hypothesis: Ids, *, special: SpecialTokens, n_ctx: int) -> Streams:
    """One stream, start premise delimiter hypothesis extract; the end of the premise is cut.

    Raises:
      InputError: the hypothesis and the special tokens leave no room for a token of the premise.
    """
    kept = f"the hypothesis ({len(hypothesis)} tokens) and three special tokens"
    premise, n_cut = _cut("premise", premise, n_ctx - 3 - len(hypothesis), n_ctx, kept)
    return Streams((_pair(premise, hypothesis, special),), n_cut)


def similarity(text_a: Ids, text_b: Ids, *, special: SpecialTokens, n_ctx: int) -> Streams:
    """Two streams, start a delimiter b extract and start b delimiter a extract; the ends of both texts may be cut.

    Raises:
      InputError: n_ctx is below 5.
    """
    room = n_ctx - 3
    if room < 2:
        raise InputError(f"n_ctx={n_ctx}: a pair of texts needs at least 5 positions")
    # Both sides get at least half of the room; what a shorter text leaves is the longer one's.
    half = room // 2
    keep_a, keep_b = len(text_a), len(text_b)
    if keep_a + keep_b > room:
        keep_a, keep_b = min(keep_a, max(half, room - keep_b)), min(keep_b, max(half, room - keep_a))
    a, b = text_a[:keep_a], text_b[:keep_b]
    n_cut = len(text_a) + len(text_b) - keep_a - keep_b
    return Streams((_pair(a, b, special), _pair(b, a, special)), n_cut)


def multiple_choice(
    context: Ids, question: Ids, answers: Sequence[Ids], *, special: SpecialTokens, n_ctx: int
) -> Streams:
    """A stream for each answer, start context question delimiter answer extract; the end of the context is cut.

    Context or question may be empty.

    Raises:
      InputError: there are not two answers, or the question, the longest one and the special tokens leave no room for a
        token of the context.
    """
    if len(answers) < 2:
        raise InputError(f"answers: {len(answers)} given; a choice needs at least two")
    longest = max(len(answer) for answer in answers)
    kept = f"the question ({len(question)} tokens), the longest answer ({longest} tokens) and three special tokens"
    context, n_cut = _cut("context", context, n_ctx - 3 - len(question) - longest, n_ctx, kept)
    return Streams(tuple(_pair([*context, *question], answer, special) for answer in answers), n_cut)


_TRANSFORMS: Mapping[str, Callable[..., Streams]] = {
    "classification": classification,
    "entailment": entailment,
    "similarity": similarity,
    "multiple_choice": multiple_choice,
}


def to_streams(kind: str, fields: Fields, *, special: SpecialTokens, n_ctx: int) -> Streams:
    """Applies the transformation of `kind` to an example's fields, given as token ids.

    Raises:
      InputError: if what may not be cut does not fit into `n_ctx`.
    """
    return _TRANSFORMS[kind](**fields, special=special, n_ctx=n_ctx)


def cut_texts(fields: Fields, max_tokens: int) -> tuple[Fields, int]:
    """The fields with every text cut to its first `max_tokens` tokens, and how many tokens that costs the example.

    The official code does this beforehand, whether or not the other texts leave room for more.
    """
    n_cut = 0

    def cut(ids: Ids) -> Ids:
        nonlocal n_cut
        n_cut += max(0, len(ids) - max_tokens)
        return ids[:max_tokens]

    result = {name: [cut(ids) for ids in value] if name == "answers" else cut(value) for name, value in fields.items()}
    return result, n_cut


def _pair(first: Ids, second: Ids, special: SpecialTokens) -> list[int]:
    return [special.start, *first, special.delimiter, *second, special.extract]


def _cut(name: str, ids: Ids, room: int, n_ctx: int, kept: str) -> tuple[Ids, int]:
    """The first `room` of `ids`, at least one of them unless there were none."""
    if room < min(1, len(ids)):
        raise InputError(
            f"{name}: nothing is left for its {len(ids)} tokens: {kept}, which are never cut, fill n_ctx={n_ctx}; "
            "use a longer n_ctx, or shorten or remove the row"
        )
    return ids[:room], max(0, len(ids) - room)
