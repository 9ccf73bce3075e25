"""The labelled examples of a run: read and encoded for its model, once for all runs of a config."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import numpy as np
from absl import logging

from gpt1_jax.data.buckets import choose_buckets
from gpt1_jax.data.encode import EncodedSplit, encode_split
from gpt1_jax.errors import InputError, counted
from gpt1_jax.model import GPT1
from gpt1_jax.model_config import ReadOut
from gpt1_jax.tasks.examples import Example, load_examples
from gpt1_jax.tasks.readout import make_readout
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.tokenizers import Tokenizer


class TaskData:
    """The splits of a task to train on. The runs of several seeds, or of a sweep, share one.

    Args:
      spec: the task.

    Raises:
      InputError: from its attributes: the files cannot be used, or there is no training split.
    """

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self._encoded: dict[tuple[object, ...], dict[str, EncodedSplit]] = {}

    @functools.cached_property
    def examples(self) -> dict[str, list[Example]]:
        """Of all splits."""
        examples = load_examples(self.spec)
        if "train" not in examples:
            raise InputError(
                f"task {self.spec.name!r} has no training split; give the files in task.train or task.data"
            )
        return examples

    @functools.cached_property
    def readout(self) -> ReadOut:
        """How a model of the task is read out."""
        return make_readout(self.spec, self.examples["train"])

    def encoded(
        self, model: GPT1, tokenizer: Tokenizer, *, max_text_tokens: int | None = None
    ) -> dict[str, EncodedSplit]:
        """All splits, encoded for a model with this task's `readout`, see `encode_task_split`."""
        key = (model.config.n_ctx, tokenizer.fingerprint, max_text_tokens)
        if key not in self._encoded:
            self._encoded[key] = {
                name: encode_task_split(self.spec, name, rows, model, tokenizer, max_text_tokens=max_text_tokens)
                for name, rows in self.examples.items()
            }
        return self._encoded[key]


def encode_task_split(
    spec: TaskSpec,
    name: str,
    examples: Sequence[Example],
    model: GPT1,
    tokenizer: Tokenizer,
    *,
    max_text_tokens: int | None = None,
) -> EncodedSplit:
    """A split of a task, encoded for a model with a readout. See `data.encode.encode_split` for what it raises."""
    return encode_split(
        examples,
        kind=spec.kind,
        labels=model.task_readout.labels,
        scores=model.task_readout.score_range is not None,
        tokenizer=tokenizer,
        n_ctx=model.config.n_ctx,
        max_text_tokens=max_text_tokens,
        name=name,
        allow_empty=spec.allow_empty,
    )


def shared_buckets(
    splits: Collection[EncodedSplit], buckets: Sequence[int] = (), *, count: int = 4, trained: bool = False
) -> tuple[int, ...]:
    """The lengths of the batches of all splits of a task, logged with how many compilations they may take.

    Args:
      splits: all that there will be batches of.
      buckets: the lengths, where they are given.
      count: most lengths to choose.
      trained: one of the splits is trained on, too.
    """
    lengths = np.concatenate([split.lengths for split in splits])
    chosen = tuple(buckets) or choose_buckets(lengths, next(iter(splits)).n_ctx, count)
    shapes = len(chosen) * len({int(split.n_streams.max()) for split in splits})  # a split has its own most answers
    logging.info(
        "batches are padded to one of %s tokens: at most %s%s",
        chosen,
        f"{counted(len(chosen), 'compilation')} for training and " if trained else "",
        f"{shapes} for evaluation" if trained else counted(shapes, "compilation"),
    )
    return chosen
