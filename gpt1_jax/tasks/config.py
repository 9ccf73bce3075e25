"""A task as it is written in a config: plain values that become a `TaskSpec`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from gpt1_jax.config import check_fields
from gpt1_jax.errors import InputError, did_you_mean, quoted
from gpt1_jax.tasks.datasets import glue, nli, official, race, story_cloze
from gpt1_jax.tasks.spec import FIELDS, OPTIONAL_FIELDS, Source, TaskSpec, as_kind, check_choice

DEFAULT_METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "f1"),
    "entailment": ("accuracy", "f1"),
    "similarity": ("accuracy", "f1"),
    "multiple_choice": ("accuracy",),
}
DEFAULT_SCORE_METRICS = ("pearson", "spearman")
DEFAULT_VALIDATION_FRACTION = 0.1


def _no_columns() -> dict[str, str]:
    """Every field of every kind is there, so that a command line can name its columns."""
    return {field: "" for fields in FIELDS.values() for field in fields}


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """Which task, and where its data are.

    Attributes:
      name: a key of `TASKS`; "custom" is made of the user's own files.
      data: where a named data set is: a folder with its official files, "tfds" for TensorFlow Datasets, or "tfds:DIR"
        with the folder in which TFDS keeps its data sets. The name says all the rest but `metrics`, `score_loss` and
        `score_points`.
      kind: classification, entailment, similarity or multiple_choice.
      train: CSV, TSV or JSONL files.
      validation: likewise; none holds `validation_fraction` of the training rows out.
      test: likewise; none holds `test_fraction` of the training rows out.
      fields: the kind's fields -> columns. A field that is not there, or is empty, has the column of its own name; of
        context and question, one may go without: naming the other leaves it out. Several columns with commas between
        them are the answers in order ("ending1,ending2"), or the parts of a text, joined by a space.
      label: the label's column.
      labels: names in class order; empty learns them from the training rows. Multiple choice needs the answers' names,
        as the label's column has them: 0,1 or A,B,C,D.
      score_range: lowest and highest score, where the label is a number and not a class.
      score_loss: of a score, see `gpt1_jax.scores`: "soft" or "squared".
      score_points: of the range, for "soft"; None: its whole numbers, see `TaskSpec`.
      metrics: the first one decides which checkpoint is best; empty takes the kind's.
      unlabelled: splits whose files have no labels.
      validation_fraction: used without validation files; None takes 0.1.
      test_fraction: used without test files.
      split_seed: decides which rows are held out.
      id: column with the rows' identifiers; None: file and line.
      drop_labels: label values whose rows are left out, counted and logged.
      allow_empty: takes empty texts, counted and logged, instead of refusing them.
      header: column names of CSV and TSV files whose first row does not name them.
      quoting: of CSV and TSV files: "csv", or "none" where quotes are ordinary characters.
      format: "csv", "tsv" or "jsonl" of files whose suffix says something else.
      repair: of CSV and TSV rows with a wrong number of fields: "drop_rows" leaves them out, "drop_fields" what is
        beyond the last column; counted and logged.
    """

    name: str = "custom"
    data: str = ""
    kind: str = "classification"
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    fields: dict[str, str] = dataclasses.field(default_factory=_no_columns)
    label: str = "label"
    labels: tuple[str, ...] = ()
    score_range: tuple[float, ...] = ()
    score_loss: str = "soft"
    score_points: int | None = None
    metrics: tuple[str, ...] = ()
    unlabelled: tuple[str, ...] = ()
    validation_fraction: float | None = None
    test_fraction: float = 0.0
    split_seed: int = 0
    id: str | None = None
    drop_labels: tuple[str, ...] = ()
    allow_empty: bool = False
    header: tuple[str, ...] = ()
    quoting: str | None = None
    format: str | None = None
    repair: str | None = None

    def __post_init__(self) -> None:
        """Checks the types; the values are checked with the task that it becomes."""
        check_fields(self, "task")


def _custom(config: TaskConfig) -> TaskSpec:
    """A task made of the user's own files."""
    if config.data:
        raise InputError(
            f"task.data={config.data!r} is where a named data set is; task.name='custom' has its files in task.train"
        )
    if not (config.train or config.validation or config.test):
        raise InputError("task.train is empty; name the CSV, TSV or JSONL files of the training examples")
    kind = as_kind(config.kind)
    files = {split: getattr(config, split) for split in ("train", "validation", "test") if getattr(config, split)}
    for split in config.unlabelled:
        check_choice("unlabelled", split, files)
    for one, other in itertools.combinations(files, 2):
        if both := set(files[one]) & set(files[other]):
            logging.warning("task: %s is in %s and in %s: the metrics of one are then no test", min(both), one, other)
    validation_fraction = config.validation_fraction
    if validation_fraction is None:
        can_split = "train" in files and "validation" not in files and "train" not in config.unlabelled
        validation_fraction = DEFAULT_VALIDATION_FRACTION if can_split else 0.0
    held_out = {"validation": validation_fraction, "test": config.test_fraction}
    for split, fraction in held_out.items():
        if not 0 <= fraction < 1:
            raise InputError(f"{split}_fraction={fraction} must be at least 0 and below 1")
    options = _reading(config)
    return TaskSpec(
        name=config.name,
        kind=kind,
        sources={
            split: Source(paths, labelled=split not in config.unlabelled, options=options)
            for split, paths in files.items()
        },
        fields=_columns(config),
        label=config.label,
        labels=config.labels or None,
        score_range=_score_range(config),
        score_loss=config.score_loss,
        score_points=config.score_points,
        metrics=config.metrics or (DEFAULT_SCORE_METRICS if config.score_range else DEFAULT_METRICS[config.kind]),
        held_out={split: fraction for split, fraction in held_out.items() if fraction != 0},
        split_seed=config.split_seed,
        drop_labels=config.drop_labels,
        id=config.id,
        allow_empty=config.allow_empty,
    )


def _score_range(config: TaskConfig) -> tuple[float, float] | None:
    if not config.score_range:
        return None
    if len(config.score_range) != 2:
        raise InputError(f"score_range={config.score_range}: two numbers, the lowest score and the highest")
    low, high = config.score_range
    return low, high


def _reading(config: TaskConfig) -> dict[str, Any]:
    """What `data.tables.read_rows` is told beside the files."""
    options: dict[str, Any] = {}
    if config.header:
        options["header"] = list(config.header)
    for name in ("quoting", "format", "repair"):
        if getattr(config, name) is not None:
            options[name] = getattr(config, name)
    return options


def _columns(config: TaskConfig) -> dict[str, str | tuple[str, ...]]:
    """`config.fields` as `TaskSpec.fields`."""
    named: dict[str, str | tuple[str, ...]] = {}
    for field, text in config.fields.items():
        columns = tuple(column.strip() for column in text.split(","))
        if len(columns) > 1 and not all(columns):
            raise InputError(f"task.fields.{field}={text!r}: a column between two commas has no name")
        if text:
            named[field] = columns if len(columns) > 1 else text
    own = {field: field for field in FIELDS[config.kind]}
    if set(OPTIONAL_FIELDS) & set(named):
        own = {field: column for field, column in own.items() if field not in OPTIONAL_FIELDS}
    return {**own, **named}


_FREE = ("metrics", "score_loss", "score_points")
"""What may be said of a named data set, beside where it is."""


def _named(make: Callable[[str], TaskSpec]) -> Callable[[TaskConfig], TaskSpec]:
    """A data set that is defined by where it is."""

    def build(config: TaskConfig) -> TaskSpec:
        given = TaskConfig(**{name: getattr(config, name) for name in ("name", "data", *_FREE)})
        for field in dataclasses.fields(config):
            if (value := getattr(config, field.name)) != getattr(given, field.name):
                if field.name == "fields":
                    value = {name: column for name, column in value.items() if column}
                raise InputError(
                    f"task.{field.name}={value!r}: task.name={config.name!r} says this itself; leave it out, or "
                    "describe the files yourself with task.name='custom'"
                )
        default = TaskConfig()
        changes = {name: getattr(config, name) for name in _FREE if getattr(config, name) != getattr(default, name)}
        return dataclasses.replace(make(config.data), **changes)

    return build


DATA_SETS: tuple[official.DataSet, ...] = (
    *(nli.SNLI, nli.MNLI, nli.QNLI, nli.RTE, nli.SCITAIL),
    *(glue.MRPC, glue.QQP, glue.STSB, glue.SST2, glue.COLA),
    *(race.RACE, race.RACE_MIDDLE, race.RACE_HIGH, story_cloze.STORY_CLOZE),
)
"""The paper's data sets; a further one is one more `DataSet`."""

TASKS: dict[str, Callable[[TaskConfig], TaskSpec]] = {
    "custom": _custom,
    **{data_set.name: _named(functools.partial(official.make_spec, data_set)) for data_set in DATA_SETS},
}
"""Name -> how its config becomes a spec. A new task is one entry."""


def make_spec(config: TaskConfig) -> TaskSpec:
    """The spec of a task.

    Raises:
      InputError: the name is unknown, or its parts do not fit together.
    """
    check_name(config.name)
    return TASKS[config.name](config)


def check_name(name: str) -> None:
    """Refuses what is no key of `TASKS`.

    Raises:
      InputError: with the names there are.
    """
    if name not in TASKS:
        raise InputError(
            f"task.name={name!r} is unknown; use one of {quoted(sorted(TASKS))}{did_you_mean(name, TASKS)}"
        )
