"""The examples of a task: rows are read, picked out and checked, and splits are held out of the training rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from gpt1_jax.data.tables import Row, read_rows
from gpt1_jax.errors import InputError, MissingColumn, counted, quoted
from gpt1_jax.tasks.datasets import glue, official, race, story_cloze
from gpt1_jax.tasks.held_out import hold_out
from gpt1_jax.tasks.rows import Example, has_empty_text, read_fields, read_label, read_name
from gpt1_jax.tasks.spec import FIELDS, OPTIONAL_FIELDS, Source, TaskSpec

__all__ = ["READERS", "Example", "label_index", "label_names", "load_examples", "make_examples"]

_TABLE_OPTIONS = ("header", "quoting", "format", "repair")


def _read_table(source: Source, columns: tuple[str, ...]) -> Iterator[Row]:
    for option in source.options:
        if option not in _TABLE_OPTIONS:
            raise InputError(f"options: {option!r} is not one of {quoted(_TABLE_OPTIONS)}, which tables have")
    return read_rows(source.paths, columns=columns, **source.options)


# Name of a reader -> function(source, required columns) -> rows. A new file format is one more entry.
READERS: dict[str, Callable[[Source, tuple[str, ...]], Iterator[Row]]] = {
    "table": _read_table,
    "tfds": official.read_tfds,
    "mrpc": glue.read_mrpc,
    "race": race.read_files,
    "race_tfds": race.read_from_tfds,
    "story_cloze": story_cloze.read_part,
}


def load_examples(spec: TaskSpec, splits: Sequence[str] | None = None) -> dict[str, list[Example]]:
    """Reads the examples of some splits, by default of all.

    Raises:
      InputError: for a split the task does not have, a damaged file, an empty or non-text field, a missing or unknown
        label, an id that occurs twice or a split without examples.
    """
    splits = spec.splits if splits is None else tuple(splits)
    for split in splits:
        spec.is_labelled(split)  # checks the name
    result = {split: _read_split(spec, split) for split in splits if split in spec.sources and split != "train"}
    if any(split == "train" or split in spec.held_out for split in splits):
        train = _read_split(spec, "train")
        parts = hold_out(spec, train) if spec.held_out else {"train": train}
        result |= {split: part for split, part in parts.items() if split in splits}
    return {split: result[split] for split in splits}


def label_names(spec: TaskSpec, train: Sequence[Example] | None = None) -> tuple[str, ...]:
    """The label names in class order: the spec's own, or those in `train`, sorted (as numbers if all are integers).

    A task of scores has none.

    Raises:
      InputError: if they have to be learned and cannot be.
    """
    if spec.score_range is not None:
        return ()
    counts = Counter(example.label for example in train or () if example.label is not None)
    if spec.labels is not None:
        absent = [label for label in spec.labels if counts and label not in counts]
        if absent:
            logging.warning("task %s: no training example has the label %s", spec.name, quoted(absent))
        return spec.labels
    if not counts:
        raise InputError(
            f"labels: task {spec.name!r} learns them from its training split, and none was read; name them"
        )
    if len(counts) == 1:
        raise InputError(
            f"labels: all training examples of task {spec.name!r} have the label {next(iter(counts))!r}; "
            "at least two labels are needed"
        )
    names = tuple(sorted(counts, key=_natural(counts)))
    logging.info("task %s: labels learned from train: %s", spec.name, ", ".join(f"{n!r} ({counts[n]})" for n in names))
    return names


def label_index(example: Example, labels: Sequence[str]) -> int:
    """The class of an example, -1 if its label is not known.

    Raises:
      InputError: for a label that is not in `labels` or names an answer that the example does not have, and for more
        answers than there are labels.
    """
    answers = example.fields.get("answers")
    if answers is not None and labels and len(answers) > len(labels):
        raise InputError(
            f"{example.where}: {len(answers)} answers, and labels for {len(labels)}; name one label for each"
        )
    if example.label is None:
        return -1
    allowed = labels if answers is None else labels[: len(answers)]
    if example.label not in allowed:
        raise InputError(
            f"{example.where}: label {example.label!r} is not one of {quoted(allowed)}; "
            "correct the row, or give all label names in `labels`"
        )
    return list(labels).index(example.label)


def make_examples(kind: str, values: Sequence[object]) -> list[Example]:
    """Unlabelled examples from Python values: a mapping of the kind's fields each; for classification also the text.

    Raises:
      InputError: that names the item and the field.
    """
    examples = []
    for i, value in enumerate(values):
        if isinstance(value, str) and len(FIELDS[kind]) == 1:
            value = {FIELDS[kind][0]: value}
        if not isinstance(value, Mapping):
            raise InputError(f"examples[{i}]: kind {kind!r} takes a mapping with {quoted(FIELDS[kind])}, got {value!r}")
        for field in FIELDS[kind]:
            if field not in value and field not in OPTIONAL_FIELDS:
                raise InputError(f"examples[{i}]: no field {field!r}; kind {kind!r} has {quoted(FIELDS[kind])}")
        fields = {field: field for field in FIELDS[kind] if field in value}
        examples.append(Example(str(i), read_fields(kind, fields, value, f"examples[{i}]"), where=f"examples[{i}]"))
    return examples


def _read_split(spec: TaskSpec, split: str) -> list[Example]:
    source = spec.sources[split]
    if source.reader not in READERS:
        raise InputError(f"sources[{split!r}].reader: {source.reader!r} is not one of {quoted(READERS)}")
    # File names make readable ids; paths are needed only where two files of a split have the same name.
    same_names = len({Path(path).name for path in source.paths}) < len(source.paths)
    examples: list[Example] = []
    first_use: dict[str, str] = {}
    dropped: Counter[str] = Counter()
    for row in _rows(spec, split):
        label, score = read_label(spec, source, row)
        if label is not None and label in spec.drop_labels:
            dropped[label] += 1
            continue
        if (column := spec.id_column(split)) is None:
            id_ = f"{row.path if same_names else Path(row.path).name}:{row.line}"
        else:
            id_ = read_name(row, column, "identifier")
        if id_ in first_use:
            raise InputError(
                f"{row.where}: identifier {id_!r} was used at {first_use[id_]}; make it unique in the split"
            )
        first_use[id_] = row.where
        fields = read_fields(spec.kind, spec.fields, row.values, row.where, allow_empty=spec.allow_empty)
        example = Example(id_, fields, label, row.where, score)
        if spec.labels is not None:
            label_index(example, spec.labels)  # an unknown label is named before anything else is done
        examples.append(example)
    for label, count in dropped.items():
        logging.info("task %s: split %s: %s with label %r dropped", spec.name, split, counted(count, "row"), label)
    if not examples:
        why = ": every label is in drop_labels" if dropped else ""
        raise InputError(f"sources[{split!r}]: no examples left in {', '.join(source.paths)}{why}")
    empty = sum(has_empty_text(spec.kind, example) for example in examples)
    if empty:
        kept = counted(empty, "example")
        logging.warning("task %s: split %s: %s with an empty text kept", spec.name, split, kept)
    _log_size(spec, split, len(examples))
    return examples


def _rows(spec: TaskSpec, split: str) -> Iterator[Row]:
    """What the reader of a split gives; a column that is missing is explained in terms of the task."""
    source = spec.sources[split]
    try:
        yield from READERS[source.reader](source, spec.columns(split))
    except MissingColumn as error:
        said, remedy = str(error), _column_remedy(spec, error.column)
        between = "" if not remedy else " " if said.endswith("?") else "; "
        raise InputError(f"{said}{between}{remedy}") from None


def _column_remedy(spec: TaskSpec, column: str) -> str:
    """What to say or to do where a file of the user's lacks a column."""
    if spec.homepage:  # official files have the columns that they have
        return ""
    if column == spec.label:
        name = "name the label's column in task.label (launch/evaluate.py: --label=COLUMN, with every --field)"
        return f"{name}, or declare a split without labels in task.unlabelled (--unlabelled)"
    field = next((name for name, named in spec.fields.items() if named == column), None)
    if field is None:
        return ""
    if field != column:
        return f"task.fields.{field} says so: correct it (launch/evaluate.py: --field={field}=COLUMN, with --label)"
    remedy = f"name the column of {column!r} in task.fields.{column} (launch/evaluate.py: --field={column}=COLUMN)"
    others = [field for field in OPTIONAL_FIELDS if field != column]
    return remedy + (f", or that of {others[0]!r} alone to do without" if column in OPTIONAL_FIELDS else "")


def _log_size(spec: TaskSpec, split: str, n: int) -> None:
    """Says how many examples a split has; a warning where that is no size that was published."""
    published = {variant: sizes[split] for variant, sizes in spec.sizes.items() if split in sizes}
    same = [variant for variant, size in published.items() if size == n]
    if same:
        note = f", as published ({' or '.join(same)})"
    elif published:
        note = "; published are " + " or ".join(f"{size} ({variant})" for variant, size in published.items())
    else:
        note = ""
    logging.log(
        logging.WARNING if published and not same else logging.INFO,
        "task %s: split %s has %s%s%s",
        *(spec.name, split, counted(n, "example"), "" if spec.is_labelled(split) else " without labels", note),
    )


def _natural(names: Mapping[str, int]) -> Callable[[str], Any] | None:
    """Sort key: by value if all names are plain integers (so "10" follows "9"), else alphabetically."""
    try:
        return int if len({int(name) for name in names}) == len(names) else None
    except ValueError:
        return None
