"""From what a task says of its answers to how a model reads them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpt1_jax.model_config import ReadOut
from gpt1_jax.tasks.config import DATA_SETS, TaskConfig, make_spec
from gpt1_jax.tasks.examples import Example, label_names
from gpt1_jax.tasks.spec import TaskSpec

_OTHER_POINTS = 6


def make_readout(spec: TaskSpec, train: Sequence[Example] | None = None) -> ReadOut:
    """The read-out of a task, with the label names of `tasks.examples.label_names` or the points of its scores.

    Raises:
      InputError: label names have to be learned from `train` and cannot be.
    """
    if spec.score_range is None:
        return ReadOut(spec.kind, label_names(spec, train))
    points = 0 if spec.score_loss == "squared" else spec.score_points or default_points(spec.score_range)
    return ReadOut(spec.kind, score_range=spec.score_range, score_points=points)


def readout_without_data(task: TaskConfig) -> ReadOut:
    """`make_readout` where no file is looked at: where they have to say the labels, two stand for them."""
    known = {data_set.name: data_set for data_set in DATA_SETS}.get(task.name)
    if known is not None and known.labels is not None:
        return ReadOut(known.kind, known.labels)
    if task.name == "custom":
        task = task if task.train else dataclasses.replace(task, train=("-",))
    else:
        task = dataclasses.replace(task, data="tfds")
    spec = make_spec(task)
    if spec.labels is None and spec.score_range is None:
        spec = dataclasses.replace(spec, labels=("0", "1"))
    return make_readout(spec)


def default_points(score_range: tuple[float, float]) -> int:
    """The whole numbers of a range that has 3 to 21 of them and ends in two, such as 6 for 0 to 5; else 6 points."""
    low, high = score_range
    whole = float(low).is_integer() and float(high).is_integer()
    return int(high - low) + 1 if whole and 2 <= high - low <= 20 else _OTHER_POINTS
