"""The tasks of a reproduction: which of them have their data, and what they are scored by."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path

from gpt1_jax.errors import InputError
from gpt1_jax.reproduce import paper
from gpt1_jax.reproduce.config import ReproduceConfig, TaskEntry
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.tasks.zero_shot import make_heuristic
from gpt1_jax.tasks.zero_shot_spec import zero_shot_spec


@dataclasses.dataclass(frozen=True)
class Scored:
    """What a task is scored by.

    Attributes:
      title: of the column.
      split: of the examples.
      metric: a name of `gpt1_jax.tasks.metrics`.
      ids: how the examples' identifiers begin; empty: all.
    """

    title: str
    split: str
    metric: str
    ids: str = ""


def find_specs(config: ReproduceConfig, fetched: Collection[Path]) -> tuple[dict[str, TaskSpec], dict[str, str]]:
    """The tasks whose data are there, and why the others are not."""
    specs, missing = {}, {}
    for name, entry in config.tasks.items():
        try:
            specs[name] = _spec(config, name, entry, fetched)
        except InputError as error:
            missing[name] = re.sub(r"\btask\.(?=\w)", f"config.tasks.{name}.task.", str(error))
    return specs, missing


def _spec(config: ReproduceConfig, name: str, entry: TaskEntry, fetched: Collection[Path]) -> TaskSpec:
    task = task_config(config, name)
    if entry.finetuned:
        spec = make_spec(task)
        if "train" not in spec.splits:
            raise InputError(f"there is no training split for {name}; give its files")
    else:
        if not entry.zero_shot:
            raise InputError(f"{name} is neither fine-tuned nor asked zero-shot; set one of the two")
        heuristic = make_heuristic(entry.zero_shot, entry.label_words)
        if task.name == "custom" and not (task.test or task.validation):
            raise InputError(f"task.test is empty: name the file that has the examples of {name}")
        spec = zero_shot_spec(heuristic, task=task, own=None)
    for source in spec.sources.values():
        files = [Path(path) for path in source.paths if source.reader == "table"]
        absent = [path for path in files if not path.exists() and path.parent not in fetched]
        if absent:
            raise InputError(f"{absent[0]} does not exist; correct the path in task.train, .validation or .test")
    if not scored(config, name, spec):
        raise InputError(f"no split of {name} has labels to be scored by; give a test or validation file with labels")
    return spec


def task_config(config: ReproduceConfig, name: str) -> TaskConfig:
    """A task, with the folder of all where it has none of its own."""
    task = config.tasks[name].task
    if task.name == "custom" or task.data:
        return task
    return dataclasses.replace(task, data=config.data)


def scored(config: ReproduceConfig, name: str, spec: TaskSpec) -> tuple[Scored, ...]:
    """What a task is scored by: the paper's metrics of its test splits, or of the validation splits in their place
    where the labels of a test are not known; of the user's own the first metric of its test or validation split.
    """
    columns = [column for table in paper.TABLES.values() for column in table if column.task == spec.name]
    if columns:
        found = [Scored(c.title, _labelled(spec, c.split), c.metric, c.ids) for c in columns]
        return tuple(each for each in found if each.split)
    split = _labelled(spec, "test") or next(iter(spec.validation_splits), "")
    return (Scored(config.title(name), split, spec.metrics[0]),) if split else ()


def second_scored(spec_name: str, scored: tuple[Scored, ...]) -> tuple[Scored, ...]:
    """The further metrics of a task that count in GLUE's average."""
    if spec_name not in paper.GLUE_SECOND:
        return ()
    return tuple(dataclasses.replace(each, metric=paper.GLUE_SECOND[spec_name][0]) for each in scored)


def _labelled(spec: TaskSpec, split: str) -> str:
    """The split, or the validation split in its place; "" if neither has labels."""
    for name in (split, split.replace("test", "validation")):
        if name in spec.splits and spec.is_labelled(name):
            return name
    return ""


def asked(scored: tuple[Scored, ...]) -> Scored:
    """The column of a zero-shot curve: all examples of a split."""
    return next((each for each in scored if not each.ids), scored[0])


def chance_of(entry: TaskEntry, spec: TaskSpec) -> float | None:
    """A random guess: as many classes or answers as have names; a correlation with one is 0. None if the data have to
    tell the names.
    """
    if entry.chance is not None:
        return entry.chance
    if spec.metrics[0] != "accuracy":
        return 0.0
    labels = spec.labels or (make_heuristic(entry.zero_shot, entry.label_words).labels if entry.zero_shot else ())
    return 100.0 / len(labels) if labels else None
