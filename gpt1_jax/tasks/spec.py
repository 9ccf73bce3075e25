"""`TaskSpec`: everything there is to say about a task, as one frozen value.

A task is a kind (section 3.3 of the paper: how an example becomes token sequences), the files of its splits, which
columns are its fields and its label, its label names and its metrics. A new task is one more `TaskSpec`; a user's own
is made of a `gpt1_jax.tasks.config.TaskConfig`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from gpt1_jax.errors import InputError, did_you_mean, quoted
from gpt1_jax.tasks.metrics import LOWER_IS_BETTER, METRICS, SCORE_METRICS

Kind = Literal["classification", "entailment", "similarity", "multiple_choice"]
KINDS: tuple[Kind, ...] = get_args(Kind)

FIELDS: Mapping[str, tuple[str, ...]] = {
    "classification": ("text",),
    "entailment": ("premise", "hypothesis"),
    "similarity": ("text_a", "text_b"),
    "multiple_choice": ("context", "question", "answers"),
}
"""Task kind -> canonical fields: texts, but for "answers", a list of texts."""

OPTIONAL_FIELDS = ("context", "question")
"""Multiple choice needs one of the two."""

SCORE_LOSSES = ("soft", "squared")


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the rows of one split come from.

    Attributes:
      paths: files (or whatever else the reader understands).
      labelled: False for a split whose labels are not known: it gives predictions, not metrics.
      reader: a name in `gpt1_jax.tasks.examples.READERS`; "table" reads CSV, TSV and JSONL.
      options: keyword arguments for the reader; for "table" those of `gpt1_jax.data.tables.read_rows`.
      id: column with the row's identifier, where this split has one; None: the task's.
      renames: label as it is written in these files to its name in `TaskSpec.labels`, where the two differ.
    """

    paths: tuple[str, ...]
    labelled: bool = True
    reader: str = "table"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    id: str | None = None
    renames: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Submission:
    """What a benchmark's server takes: per split a TSV, see `gpt1_jax.tasks.submission`.

    Attributes:
      files: split name to file name.
      labels: the words for the classes, in the order of `TaskSpec.labels`; empty: a score is written.
      index: the first column: the example's "id" (a number in the official files), or its "row", counted from 0.
    """

    files: Mapping[str, str]
    labels: tuple[str, ...] = ()
    index: Literal["id", "row"] = "id"


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """Everything about a task, of the paper's or of the user's own.

    Attributes:
      name: shown in logs and results.
      kind: decides the input transformation, see `gpt1_jax.tasks.transforms`.
      sources: split name to `Source`; "train" is the one that is learned from.
      fields: canonical field (`FIELDS[kind]`) to column. Several columns for a text are joined with a space; for
        "answers" they are the answers in order, while a single column holds a JSON list of any length.
      label: the label's column; None if no split is labelled.
      labels: the label names in class order. None: learned from the training split, sorted. For multiple choice they
        name the answers in order, such as ("A", "B", "C", "D"), and have to be given.
      score_range: (lowest, highest) where the label is a number, such as STS-B's (0.0, 5.0); then there are no labels.
      score_loss: how a score is learned, see `gpt1_jax.scores`: "soft" shares it between points of the range, "squared"
        takes the squared error.
      score_points: number of the points; None: the whole numbers of the range where it has 3 to 21 of them, such as 6
        for 0 to 5, else 6.
      metrics: names in `gpt1_jax.tasks.metrics.METRICS`, the task's own first; it chooses the best checkpoint.
      held_out: split name to the fraction of the training rows set aside for it: stratified by label, rows with the
        same text on the same side, seeded by `split_seed`.
      drop_labels: label values whose rows are left out, counted and logged (SNLI's "-1").
      id: column with the row's identifier; None: `file:line`.
      allow_empty: takes empty texts, counted and logged, instead of refusing them.
      sizes: variant to split to the number of its examples as published, after `drop_labels`; a split of another size
        is logged as a warning.
      submission: files for the benchmark's server; None: there is none.
      paper: split to metric to the score in the paper, in percent (tables 2 to 4).
      homepage: where the official files are to be had.

    Raises:
      InputError: if the parts do not fit together.
    """

    name: str
    kind: Kind
    sources: Mapping[str, Source]
    fields: Mapping[str, str | tuple[str, ...]]
    label: str | None = "label"
    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ("accuracy",)
    held_out: Mapping[str, float] = dataclasses.field(default_factory=dict)
    split_seed: int = 0
    drop_labels: tuple[str, ...] = ()
    id: str | None = None
    allow_empty: bool = False
    score_range: tuple[float, float] | None = None
    score_loss: str = "soft"
    score_points: int | None = None
    sizes: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    submission: Submission | None = None
    paper: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    homepage: str = ""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        self._check_fields()
        self._check_labels()
        self._check_splits()
        self._check_metrics(METRICS if self.score_range is None else SCORE_METRICS)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of all splits, those held out from "train" included."""
        return (*self.sources, *self.held_out)

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """The labelled splits called "validation" or "validation_..." (MultiNLI's matched and mismatched ones)."""
        return tuple(split for split in self.splits if split.startswith("validation") and self.is_labelled(split))

    @property
    def selection_split(self) -> str | None:
        """The split whose first metric chooses the best checkpoint: "validation", else the first of
        `validation_splits`; None if there is none.
        """
        splits = self.validation_splits
        return "validation" if "validation" in splits else next(iter(splits), None)

    def is_labelled(self, split: str) -> bool:
        """Whether the labels of `split` are known.

        Raises:
          InputError: for a split the task does not have.
        """
        check_choice("split", split, self.splits)
        return self.sources["train" if split in self.held_out else split].labelled

    def id_column(self, split: str) -> str | None:
        """The column with the identifiers of `split`."""
        return self.sources["train" if split in self.held_out else split].id or self.id

    def columns(self, split: str) -> tuple[str, ...]:
        """The columns that have to be in the rows of `split`."""
        columns = [c for field in self.fields.values() for c in ((field,) if isinstance(field, str) else field)]
        if self.label is not None and self.is_labelled(split):
            columns.append(self.label)
        if (id_ := self.id_column(split)) is not None:
            columns.append(id_)
        return tuple(dict.fromkeys(columns))

    def _check_fields(self) -> None:
        known = FIELDS[self.kind]
        for field in self.fields:
            check_choice(f"fields of kind {self.kind!r}", field, known)
        missing = [field for field in known if field not in self.fields and field not in OPTIONAL_FIELDS]
        if self.kind == "multiple_choice" and not set(OPTIONAL_FIELDS) & set(self.fields):
            missing = [" or ".join(OPTIONAL_FIELDS), *missing]
        if missing:
            raise InputError(
                f"fields: kind {self.kind!r} needs {', '.join(missing)}; have {quoted(self.fields) or 'none'}; "
                'map each to its column, as in fields={"text": "review"}'
            )

    def _check_labels(self) -> None:
        if self.label is None and any(source.labelled for source in self.sources.values()):
            raise InputError(
                "label: no column given, yet a split is labelled; name the column, or declare the splits unlabelled"
            )
        if self.score_range is not None:
            self._check_scores(self.score_range)
        elif self.score_loss != "soft" or self.score_points is not None:
            raise InputError(
                f"score_loss={self.score_loss!r}, score_points={self.score_points}: the task has classes; give its "
                "score_range too, or leave both out"
            )
        elif self.labels is None:
            if self.kind == "multiple_choice":
                raise InputError(
                    'labels: multiple choice needs the answers\' names in order, such as ("A", "B", "C", "D")'
                )
        elif len(self.labels) < 2 or len(set(self.labels)) != len(self.labels):
            raise InputError(f"labels={self.labels!r}: at least two names, each once")
        for label in self.labels or ():
            if not isinstance(label, str) or not label:
                raise InputError(
                    f"labels: {label!r} is not a non-empty string; numbers are written as strings, such as '1'"
                )
        words = self.submission.labels if self.submission is not None else ()
        if words and len(words) != len(self.labels or ()):
            raise InputError(f"submission.labels={words!r}: one word for each of the labels {self.labels!r}")

    def _check_scores(self, score_range: tuple[float, ...]) -> None:
        if len(score_range) != 2 or not (all(map(math.isfinite, score_range)) and score_range[0] < score_range[1]):
            raise InputError(f"score_range={score_range}: two numbers, the lowest score and the highest")
        if self.kind == "multiple_choice":
            raise InputError("score_range: multiple choice has answers, not scores; use another kind")
        if self.labels is not None:
            raise InputError(f"score_range={score_range} and labels={self.labels!r}: a label is a number or a name")
        check_choice("score_loss", self.score_loss, SCORE_LOSSES)
        if self.score_points is not None and (self.score_points < 2 or self.score_loss != "soft"):
            raise InputError(
                f"score_points={self.score_points} with score_loss={self.score_loss!r}: at least 2 points, and none "
                "where the loss is 'squared'"
            )

    def _check_metrics(self, known: Mapping[str, Any]) -> None:
        if not self.metrics:
            raise InputError(f"metrics: none given; the first chooses the best checkpoint; allowed are {quoted(known)}")
        for metric in self.metrics:
            check_choice("metrics" if self.score_range is None else "metrics of scores", metric, known)
        if self.metrics[0] in LOWER_IS_BETTER:
            raise InputError(
                f"metrics: {self.metrics[0]!r} is smaller the better it is, and cannot choose the best checkpoint; put "
                "another one first"
            )

    def _check_splits(self) -> None:
        if not self.sources:
            raise InputError("sources: no split given; give at least the files of one")
        for name, source in self.sources.items():
            if not source.paths:
                raise InputError(f"sources[{name!r}]: no file given")
        if not self.held_out:
            return
        if "train" not in self.sources or not self.sources["train"].labelled:
            raise InputError("held_out: splits are set aside from a labelled 'train' split, and there is none")
        for name, fraction in self.held_out.items():
            if name in self.sources:
                raise InputError(
                    f"{name}: the split has files of its own, and {name}_fraction={fraction!r} would set aside rows "
                    "for it; leave out one of the two"
                )
            if not 0 < fraction < 1:
                raise InputError(f"{name}_fraction={fraction!r}: a fraction of the training rows, above 0 and below 1")
        if sum(self.held_out.values()) >= 1:
            raise InputError(f"held_out={dict(self.held_out)!r}: the fractions leave nothing to train on")


def as_kind(name: str) -> Kind:
    """The kind of that name.

    Raises:
      InputError: there is none.
    """
    check_choice("kind", name, KINDS)
    return next(kind for kind in KINDS if kind == name)


def check_choice(what: str, value: object, allowed: Sequence[str] | Mapping[str, Any]) -> None:
    """Refuses a `value` that is not allowed; `what` names it.

    Raises:
      InputError: with what is allowed.
    """
    if value not in allowed:
        raise InputError(f"{what}: {value!r} is not one of {quoted(allowed)}{did_you_mean(str(value), allowed)}")
