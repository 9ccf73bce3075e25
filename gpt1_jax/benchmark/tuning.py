"""Fine-tuning at the lengths that labelled examples have, by buckets, and the same examples padded to n_ctx."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt1_jax import finetune
from gpt1_jax.benchmark.settings import Settings
from gpt1_jax.benchmark.text import Text
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.benchmark.training import LONG, OURS, Updates, how_it_runs
from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.labelled import train_batches
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.model import GPT1, count_parameters
from gpt1_jax.model_config import N_SPECIAL, GPT1Config, ReadOut
from gpt1_jax.optim import make_lm_schedule, make_schedule
from gpt1_jax.sharding import make_mesh
from gpt1_jax.task_data import encode_task_split, shared_buckets
from gpt1_jax.tasks.config import make_spec
from gpt1_jax.tasks.examples import load_examples
from gpt1_jax.tasks.readout import make_readout, readout_without_data
from gpt1_jax.train import HostBatch

PADDED = "padded to n_ctx"
_N_UPDATES = 8  # of a call: batches of an epoch, as many of each bucket as their share in it
_N_EXAMPLES, _MEAN_LENGTH, _DEVIATION, _RANGE = 8530, 26, 11, (5, 72)  # about those of Rotten Tomatoes' sentences


class Tuning:
    """What both contestants share: the model with its state, and the examples.

    Args:
      settings: the config's task says the examples; where it has none, streams of made-up lengths stand for them.
      batch_size: examples of a batch.
      text: has the tokenizer of the task's texts.
    """

    def __init__(self, settings: Settings, batch_size: int, text: Text) -> None:
        self._settings, self._text = settings, text
        self._config = dataclasses.replace(settings.finetune, batch_size=batch_size)

    def by_buckets(self) -> Contestant:
        """Updates from batches as an epoch has them."""
        config, split = self._config, self._split
        fixed = config.buckets or shared_buckets([split], count=config.n_buckets, trained=True)
        batches = train_batches(split, batch_size=config.batch_size, seed=config.seed, buckets=fixed)
        epoch = sorted((batches[i] for i in range(batches.steps_per_epoch)), key=_length)
        n = min(_N_UPDATES, len(epoch))
        chosen = [epoch[(2 * i + 1) * len(epoch) // (2 * n)] for i in range(n)]
        return self._contestant(OURS, chosen, f"buckets {', '.join(map(str, fixed))}; {self._described}")

    def padded(self) -> Contestant:
        """An update from a batch that is as long as the model reads."""
        batches = train_batches(self._split, batch_size=self._config.batch_size, seed=0, buckets=(self._split.n_ctx,))
        return self._contestant(PADDED, [batches[0]], "the same step")

    def _contestant(self, name: str, batches: Sequence[HostBatch], about: str) -> Contestant:
        updates, model = self._updates, self._model
        compiled = {_length(batch): updates.compile(batch) for batch in {_length(b): b for b in batches}.values()}
        options = {"with_lm": self._config.lm_coef > 0, "frozen_trunk": self._config.freeze != "none"}

        def start() -> Any:
            return [updates(batch) for batch in batches][-1]

        return Contestant(
            name,
            start,
            amount=float(sum((batch["weight"] > 0).sum() for batch in batches)),
            unit="examples",
            flops=sum(
                batch["tokens"].size * train_flops_per_token(model.config, _length(batch), **options)
                for batch in batches
            ),
            n_parameters=count_parameters(model.config, model.readout),
            compile_seconds=sum(seconds for seconds, _ in compiled.values()),
            temp_bytes=max((n for _, n in compiled.values() if n is not None), default=None),
            about=about,
        )

    @functools.cached_property
    def _model(self) -> GPT1:
        config = GPT1Config(**{**self._config.model.given(), "n_special": N_SPECIAL})
        return GPT1(config, self._readout)

    @functools.cached_property
    def _readout(self) -> ReadOut:
        return make_readout(self._spec, self._examples) if self._examples else readout_without_data(self._config.task)

    @functools.cached_property
    def _updates(self) -> Updates:
        config, model, mesh = self._config, self._model, make_mesh(self._config.mesh)
        schedules = {
            "learning_rate": make_schedule(config.optimizer, LONG),
            "lm_coef": make_lm_schedule(config.lm_coef, config.lm_coef_schedule, LONG, config.lm_coef_drop),
        }
        return Updates(model, *finetune.jit_step(config, model, mesh), mesh, schedules)

    @functools.cached_property
    def _spec(self) -> Any:
        return make_spec(self._config.task)

    @functools.cached_property
    def _examples(self) -> Any:
        task = self._config.task
        return load_examples(self._spec)["train"] if task.train or task.data else None

    @functools.cached_property
    def _split(self) -> EncodedSplit:
        rng, config = np.random.default_rng(self._config.seed), self._model.config
        if self._examples:
            split = encode_task_split(self._spec, "train", self._examples, self._model, self._text.tokenizer)
            return dataclasses.replace(
                split, tokens=rng.integers(config.vocab_size, size=split.tokens.size, dtype=np.int32)
            )
        drawn = rng.normal(_MEAN_LENGTH, _DEVIATION, _N_EXAMPLES).round().astype(np.int64)
        readout = self._readout
        lengths = np.repeat(np.clip(drawn, *_RANGE).clip(max=config.n_ctx), readout.n_streams)
        tokens = rng.integers(config.vocab_size, size=lengths.sum(), dtype=np.int32)
        labels: np.ndarray = rng.integers(max(1, len(readout.labels)), size=_N_EXAMPLES, dtype=np.int32)
        if readout.score_range is not None:
            labels = rng.uniform(*readout.score_range, size=_N_EXAMPLES)
        return EncodedSplit(
            name="train",
            tokens=tokens,
            stream_starts=np.concatenate([[0], np.cumsum(lengths)]),
            example_starts=np.arange(_N_EXAMPLES + 1) * readout.n_streams,
            labels=labels,
            ids=tuple(map(str, range(_N_EXAMPLES))),
            n_ctx=config.n_ctx,
            n_truncated=0,
            n_cut=0,
        )

    @property
    def _described(self) -> str:
        lengths = self._split.lengths
        origin = "the task's examples" if self._examples else "made-up lengths as of Rotten Tomatoes' sentences"
        return (
            f"{origin}: {lengths.mean():.0f} tokens on average, at most {lengths.max()}; "
            f"{how_it_runs(self._model, make_mesh(self._config.mesh))}"
        )


def _length(batch: HostBatch) -> int:
    return batch["tokens"].shape[-1]
