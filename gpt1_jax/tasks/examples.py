"""Rows to examples: fields and labels are picked out and checked, and splits are held out of the training rows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from gpt1_jax.data.tables import Row, read_rows
from gpt1_jax.errors import InputError, quoted
from gpt1_jax.tasks.datasets import story_cloze
from gpt1_jax.tasks.spec import FIELDS, OPTIONAL_FIELDS, Source, TaskSpec

Field = str | tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One example in words.

    Attributes:
      id: unique within its split.
      fields: all of `FIELDS[kind]`; "answers" is a tuple of strings, the others are strings.
      label: its label's name; None where it is not known.
      where: `file:line`, for messages.
    """

    id: str
    fields: Mapping[str, Field]
    label: str | None = None
    where: str = ""


def _read_table(source: Source, columns: tuple[str, ...]) -> Iterator[Row]:
    for option in source.options:
        if option not in ("header", "quoting"):
            raise InputError(f"options: {option!r} is not one of 'header', 'quoting', which tables have")
    return read_rows(source.paths, columns=columns, **source.options)


# Name of a reader -> function(source, required columns) -> rows. A new file format is one more entry.
READERS: dict[str, Callable[[Source, tuple[str, ...]], Iterator[Row]]] = {
    "table": _read_table,
    "story_cloze": story_cloze.read_part,
}


def load_examples(spec: TaskSpec, splits: Sequence[str] | None = None) -> dict[str, list[Example]]:
    """Reads the examples of some splits, by default of all.

    Raises:
      InputError: for a split the task does not have, a damaged file, an empty or non-text field, a missing label,
        an id that occurs twice or a split without examples.
    """
    splits = spec.splits if splits is None else tuple(splits)
    labelled = {split: spec.is_labelled(split) for split in splits}  # also checks the names
    result = {split: _read_split(spec, split) for split in splits if split in spec.sources and split != "train"}
    if "train" in labelled or any(split in spec.held_out for split in labelled):
        train = _read_split(spec, "train")
        parts = _hold_out(spec, train) if spec.held_out else {"train": train}
        result |= {split: part for split, part in parts.items() if split in labelled}
    for split in splits:
        logging.info(
            "task %s: split %s has %d examples%s",
            spec.name,
            split,
            len(result[split]),
            "" if labelled[split] else " without labels",
        )
    return {split: result[split] for split in splits}


def label_names(spec: TaskSpec, train: Sequence[Example] | None = None) -> tuple[str, ...]:
    """The label names in class order: the spec's own, or those in `train`, sorted (as numbers if all are integers).

    Raises:
      InputError: if they have to be learned and cannot be.
    """
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


def make_examples(kind: str, values: Sequence[str | Mapping[str, Any]]) -> list[Example]:
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
        examples.append(Example(str(i), _fields(kind, fields, value, f"examples[{i}]"), where=f"examples[{i}]"))
    return examples


def stratified_split(
    strata: Sequence[Hashable], groups: Sequence[Hashable], fractions: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Sets parts of N rows aside.

    Every part gets its fraction of each stratum, rounded, and whole groups only, so that equal rows never end up on
    two sides; a group that would exceed the fraction is left for another part. A group counts for the stratum of its
    first row. The assignment depends on the order of the rows and the seed.

    Returns:
      name to sorted row indices, for every name in `fractions`, and "train" for the rest.
    """
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    by_stratum: dict[Hashable, list[list[int]]] = {}
    for rows in members.values():
        by_stratum.setdefault(strata[rows[0]], []).append(rows)
    rng = np.random.default_rng(seed)
    parts: dict[str, list[int]] = {name: [] for name in (*fractions, "train")}
    for stratum in by_stratum.values():
        n_rows = sum(map(len, stratum))
        left = [stratum[group] for group in rng.permutation(len(stratum))]
        for name, fraction in fractions.items():
            room, rest = round(fraction * n_rows), []
            for rows in left:
                if len(rows) <= room:
                    parts[name] += rows
                    room -= len(rows)
                else:
                    rest.append(rows)
            left = rest
        parts["train"] += [row for rows in left for row in rows]
    return {name: np.array(sorted(rows), np.int64) for name, rows in parts.items()}


def _hold_out(spec: TaskSpec, train: list[Example]) -> dict[str, list[Example]]:
    texts = [tuple(example.fields.values()) for example in train]
    parts = stratified_split([example.label for example in train], texts, spec.held_out, spec.split_seed)
    for name, fraction in spec.held_out.items():
        logging.info(
            "task %s: split %s is %d of the %d training rows (fraction %g asked, stratified by label, equal texts kept "
            "together, seed %d)",
            spec.name,
            name,
            len(parts[name]),
            len(train),
            fraction,
            spec.split_seed,
        )
    for name, rows in parts.items():
        if not len(rows):
            raise InputError(
                f"held_out={dict(spec.held_out)!r}: split {name!r} would be empty with {len(train)} training rows; "
                "give more rows, other fractions or files of its own"
            )
    return {name: [train[row] for row in rows] for name, rows in parts.items()}


def _read_split(spec: TaskSpec, split: str) -> list[Example]:
    source = spec.sources[split]
    if source.reader not in READERS:
        raise InputError(f"sources[{split!r}].reader: {source.reader!r} is not one of {quoted(READERS)}")
    # File names make readable ids; paths are needed only where two files of a split have the same name.
    same_names = len({Path(path).name for path in source.paths}) < len(source.paths)
    examples: list[Example] = []
    first_use: dict[str, str] = {}
    dropped: Counter[str] = Counter()
    for row in READERS[source.reader](source, spec.columns(split)):
        label = _name(row, spec.label, "label") if source.labelled and spec.label is not None else None
        if label is not None and label in spec.drop_labels:
            dropped[label] += 1
            continue
        if spec.id is None:
            id_ = f"{row.path if same_names else Path(row.path).name}:{row.line}"
        else:
            id_ = _name(row, spec.id, "identifier")
        if id_ in first_use:
            raise InputError(
                f"{row.where}: identifier {id_!r} was used at {first_use[id_]}; make it unique in the split"
            )
        first_use[id_] = row.where
        fields = _fields(spec.kind, spec.fields, row.values, row.where, allow_empty=spec.allow_empty)
        examples.append(Example(id_, fields, label, row.where))
    for label, count in dropped.items():
        logging.info("task %s: split %s: %d rows with label %r dropped", spec.name, split, count, label)
    if not examples:
        raise InputError(
            f"sources[{split!r}]: no examples left in {', '.join(source.paths)}: every label is in drop_labels"
        )
    required = [field for field in FIELDS[spec.kind] if field not in OPTIONAL_FIELDS]
    empty = sum(not all(example.fields[field] for field in required) for example in examples)
    if empty:
        logging.warning("task %s: split %s: %d examples with an empty text kept", spec.name, split, empty)
    return examples


def _name(row: Row, column: str, what: str) -> str:
    """A label or an identifier as a string; JSON's integers and booleans are spelt as in JSON."""
    value = row.values[column]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value.strip()  # `good, 1` and `good,1` have the same label
    problem = "is empty" if value is None or isinstance(value, str) else f"is {value!r:.80}, not a string or an integer"
    hint = ", or declare the split unlabelled" if what == "label" else ""
    raise InputError(f"{row.where}: column {column!r}: the {what} {problem}; fill it in or remove the row{hint}")


def _fields(
    kind: str, columns: Mapping[str, Field], values: Mapping[str, Any], where: str, *, allow_empty: bool = False
) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for field in FIELDS[kind]:
        column = columns.get(field)
        if column is None:
            fields[field] = ""
            continue
        if field == "answers":
            fields[field] = _answers(column, values, where)
            continue
        names = (column,) if isinstance(column, str) else column
        texts = [_text(values[name], name, where) for name in names]
        fields[field] = " ".join(text for text in texts if text.strip())
        if not fields[field] and not allow_empty and (field not in OPTIONAL_FIELDS):
            raise InputError(
                f"{where}: column {' + '.join(names)!r}: the text is empty; fill it in or remove the row (a task with "
                "allow_empty=True takes it as it is)"
            )
    if kind == "multiple_choice" and not any(fields[field] for field in OPTIONAL_FIELDS) and not allow_empty:
        raise InputError(f"{where}: context and question are both empty; fill one in, or remove the row")
    return fields


def _answers(column: Field, values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if isinstance(column, str):
        answers, names = values[column], column
        if not isinstance(answers, list | tuple):
            raise InputError(
                f"{where}: column {column!r}: answers are a JSON list of strings, got {answers!r:.80}; in a table give "
                "one column per answer"
            )
    else:
        answers, names = [values[name] for name in column], ", ".join(column)
    if len(answers) < 2:
        raise InputError(f"{where}: {names!r}: {len(answers)} answer given; a choice needs at least two")
    texts = tuple(_text(answer, names, where) for answer in answers)
    for i, text in enumerate(texts):
        if not text.strip():
            raise InputError(
                f"{where}: {names!r}: answer {i + 1} of {len(texts)} is empty; fill it in, or leave it out of a list"
            )
    return texts


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: column {column!r}: a text is expected, got {value!r:.80} ({type(value).__name__})")
    return value


def _natural(names: Mapping[str, int]) -> Callable[[str], Any] | None:
    """Sort key: by value if all names are plain integers (so "10" follows "9"), else alphabetically."""
    try:
        return int if len({int(name) for name in names}) == len(names) else None
    except ValueError:
        return None
