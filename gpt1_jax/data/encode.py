"""A split encoded: the streams of its labelled examples as one array of tokens."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from gpt1_jax.errors import InputError, counted
from gpt1_jax.tasks.examples import Example, label_index
from gpt1_jax.tasks.spec import FIELDS, OPTIONAL_FIELDS
from gpt1_jax.tasks.transforms import Fields, SpecialTokens, cut_texts, to_streams

if TYPE_CHECKING:
    from gpt1_jax.tokenizers import Tokenizer

_ENCODE_CHUNK = 1024  # examples per tokenizer call: bounds the Python lists that are alive at once


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedSplit:
    """The streams of N examples, laid end to end.

    Attributes:
      name: the split's name.
      tokens: int32 [T], all streams of all examples.
      stream_starts: int64 [S + 1]; stream s is `tokens[stream_starts[s]:stream_starts[s + 1]]`.
      example_starts: int64 [N + 1]; example i has the streams `example_starts[i]` to `example_starts[i + 1]`.
      labels: int32 [N], classes, -1 where not known; or float64 [N], scores, NaN where not known.
      ids: N identifiers.
      n_ctx: no stream is longer.
      n_truncated: examples that lost tokens.
      n_cut: tokens that they lost.
      weights: float32 [N], above 0, of the examples in the task's loss; None: all the same.
      label_names: of the classes; none where there are scores.
    """

    name: str
    tokens: np.ndarray
    stream_starts: np.ndarray
    example_starts: np.ndarray
    labels: np.ndarray
    ids: tuple[str, ...]
    n_ctx: int
    n_truncated: int
    n_cut: int
    weights: np.ndarray | None = None
    label_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def streams(self, i: int) -> list[np.ndarray]:
        """The streams of example `i`, int32 each."""
        first, last = self.example_starts[i], self.example_starts[i + 1]
        return [self.tokens[self.stream_starts[s] : self.stream_starts[s + 1]] for s in range(first, last)]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int64 [N]: tokens in the longest stream of each example."""
        return np.maximum.reduceat(np.diff(self.stream_starts), self.example_starts[:-1])

    @functools.cached_property
    def n_streams(self) -> np.ndarray:
        """int64 [N]: streams (answers) of each example; their maximum is the C of the batches."""
        return np.diff(self.example_starts)

    @property
    def has_scores(self) -> bool:
        """Whether `labels` are scores."""
        return self.labels.dtype.kind == "f"

    @functools.cached_property
    def n_unlabelled(self) -> int:
        """Examples whose label or score is not known."""
        return int((np.isnan(self.labels) if self.has_scores else self.labels < 0).sum())


def encode_split(
    examples: Sequence[Example],
    *,
    kind: str,
    labels: Sequence[str],
    tokenizer: Tokenizer,
    n_ctx: int,
    scores: bool = False,
    max_text_tokens: int | None = None,
    special_tokens: bool = True,
    name: str = "",
    allow_empty: bool = False,
) -> EncodedSplit:
    """Encodes examples as the streams of their task kind, with the special ids right after the tokenizer's vocabulary.

    Truncated examples are counted and logged.

    Args:
      examples: at least one.
      kind: of the task, which decides the streams.
      labels: the label names in class order; not looked at for scores.
      tokenizer: the model's.
      n_ctx: most tokens of a stream.
      scores: the examples have scores in place of labels.
      max_text_tokens: cuts every text to so many tokens beforehand, whether or not there is room for more.
      special_tokens: False leaves start, delimiter and extract out, for a model that was not fine-tuned with them and
        reads the last token (`ReadOut.read_at`).
      name: of the split, for messages.
      allow_empty: takes texts that have no tokens.

    Raises:
      InputError: without examples; and, naming file and line, for a label not in `labels`, a text without tokens
        or an example that does not fit into `n_ctx`.
    """
    if not examples:
        raise InputError(f"split {name!r}: no examples")
    special = SpecialTokens.after(tokenizer.vocab_size)
    if scores:
        targets = np.array([math.nan if example.score is None else example.score for example in examples])
    else:
        targets = np.array([label_index(example, labels) for example in examples], np.int32)
    pieces, stream_lengths, n_streams, cuts = [], [], [], []
    for start in range(0, len(examples), _ENCODE_CHUNK):
        chunk: list[int] = []
        for example, fields in _encode_fields(examples[start : start + _ENCODE_CHUNK], kind, tokenizer, allow_empty):
            n_beforehand = 0
            if max_text_tokens is not None:
                fields, n_beforehand = cut_texts(fields, max_text_tokens)
            try:
                streams, n_cut = to_streams(kind, fields, special=special, n_ctx=n_ctx)
            except InputError as error:
                raise InputError(f"{example.where}: {error}") from None
            for stream in streams:
                if not special_tokens:
                    stream = [token for token in stream if token < tokenizer.vocab_size]
                chunk += stream
                stream_lengths.append(len(stream))
            n_streams.append(len(streams))
            cuts.append(n_beforehand + n_cut)
        pieces.append(np.array(chunk, np.int32))
    split = EncodedSplit(
        name=name,
        tokens=np.concatenate(pieces),
        stream_starts=_starts(stream_lengths),
        example_starts=_starts(n_streams),
        labels=targets,
        ids=tuple(example.id for example in examples),
        n_ctx=n_ctx,
        n_truncated=sum(n_cut > 0 for n_cut in cuts),
        n_cut=sum(cuts),
        label_names=() if scores else tuple(labels),
    )
    logging.info(
        "split %s: %s, %s, %d tokens (median %d, longest %d); %s (%.2f %%) cut to n_ctx=%d%s, %s lost",
        name,
        counted(len(split), "example"),
        counted(len(stream_lengths), "stream"),
        len(split.tokens),
        np.median(split.lengths),
        split.lengths.max(),
        counted(split.n_truncated, "example"),
        100 * split.n_truncated / len(split),
        n_ctx,
        "" if max_text_tokens is None else f" and {max_text_tokens} tokens a text",
        counted(split.n_cut, "token"),
    )
    return split


def _encode_fields(
    examples: Sequence[Example], kind: str, tokenizer: Tokenizer, allow_empty: bool
) -> Iterable[tuple[Example, Fields]]:
    """Token ids of every field; all texts of the chunk go through the tokenizer in one call."""
    fields = FIELDS[kind]
    texts = [
        text
        for example in examples
        for field in fields
        for value in (example.fields[field],)
        for text in ((value,) if isinstance(value, str) else value)
    ]
    encoded = tokenizer.encode_batch(texts)
    for text, ids in zip(texts, encoded, strict=True):
        if ids and not 0 <= min(ids) <= max(ids) < tokenizer.vocab_size:
            raise InputError(
                f"tokenizer: ids {min(ids)}..{max(ids)} for {text!r:.60}; its vocab_size is {tokenizer.vocab_size}"
            )
    known = iter([ids if text else [] for text, ids in zip(texts, encoded, strict=True)])
    for example in examples:
        result: dict[str, Any] = {}
        for field in fields:
            value = example.fields[field]
            result[field] = next(known) if isinstance(value, str) else [next(known) for _ in value]
            optional = allow_empty or field in OPTIONAL_FIELDS
            if not optional and not (result[field] if isinstance(value, str) else all(result[field])):
                raise InputError(f"{example.where}: {field} {value!r:.60} has no tokens; fill it in or remove the row")
        yield example, result


def _starts(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
