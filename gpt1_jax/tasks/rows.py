"""What the cells of a row mean: the texts of an example, its label or score, its identifier."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from gpt1_jax.data.tables import Row
from gpt1_jax.errors import InputError
from gpt1_jax.tasks.spec import FIELDS, OPTIONAL_FIELDS, Source, TaskSpec

Field = str | tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One example in words.

    Attributes:
      id: unique within its split.
      fields: all of `FIELDS[kind]`; "answers" is a tuple of strings, the others are strings.
      label: its label's name; None where it is not known, or is a score.
      where: `file:line`, for messages.
      score: the label of a task with a `score_range`; None where it is not known.
    """

    id: str
    fields: Mapping[str, Field]
    label: str | None = None
    where: str = ""
    score: float | None = None

    @property
    def texts(self) -> dict[str, str]:
        """The fields that are texts."""
        return {name: value for name, value in self.fields.items() if isinstance(value, str)}

    @property
    def answers(self) -> tuple[str, ...]:
        """Of multiple choice."""
        return tuple(self.fields["answers"])


def read_label(spec: TaskSpec, source: Source, row: Row) -> tuple[str | None, float | None]:
    """The label of a row, or its score; nothing where it is not known.

    Raises:
      InputError: it is empty, or no number in the range of the scores.
    """
    if not source.labelled or spec.label is None:
        return None, None
    if spec.score_range is not None:
        return None, _score(row, spec.label, *spec.score_range)
    label = read_name(row, spec.label, "label")
    return source.renames.get(label, label), None


def has_empty_text(kind: str, example: Example) -> bool:
    """Whether a text that the kind cannot do without is blank, as `allow_empty` lets through."""
    values = [example.fields[field] for field in FIELDS[kind] if field not in OPTIONAL_FIELDS]
    return not all(all(text.strip() for text in ((value,) if isinstance(value, str) else value)) for value in values)


def read_name(row: Row, column: str, what: str) -> str:
    """A label or an identifier as a string; JSON's integers and booleans are spelt as in JSON.

    Raises:
      InputError: it is empty, or something else.
    """
    value = row.values[column]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value.strip()  # `good, 1` and `good,1` have the same label
    problem = "is empty" if value is None or isinstance(value, str) else f"is {value!r:.80}, not a string or an integer"
    remedy = "write it as one" if isinstance(value, float) else "fill it in or remove the row"
    hint = ", or declare the split unlabelled" if what == "label" else ""
    raise InputError(f"{row.where}: column {column!r}: the {what} {problem}; {remedy}{hint}")


def read_fields(
    kind: str, columns: Mapping[str, Field], values: Mapping[str, Any], where: str, *, allow_empty: bool = False
) -> dict[str, Field]:
    """The texts of a row for all of `FIELDS[kind]`; a field without a column is empty.

    Raises:
      InputError: a text is empty or no text, or there are fewer than two answers.
    """
    fields: dict[str, Field] = {}
    for field in FIELDS[kind]:
        column = columns.get(field)
        if column is None:
            fields[field] = ""
            continue
        if field == "answers":
            fields[field] = _answers(column, values, where, allow_empty=allow_empty)
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


def _score(row: Row, column: str, low: float, high: float) -> float:
    value = row.values[column]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            score = float(value)
        except (ValueError, OverflowError):
            score = math.nan
        if low <= score <= high:
            return score
    raise InputError(
        f"{row.where}: column {column!r}: the score is {value!r:.80}, not a number from {low:g} to {high:g}; correct "
        "it or remove the row, or declare the split unlabelled"
    )


def _answers(column: Field, values: Mapping[str, Any], where: str, *, allow_empty: bool) -> tuple[str, ...]:
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
        if not text.strip() and not allow_empty:
            fewer = "leave it out" if isinstance(column, str) else "give rows with fewer answers as JSONL with a list"
            raise InputError(f"{where}: {names!r}: answer {i + 1} of {len(texts)} is empty; fill it in, or {fewer}")
    return texts


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: column {column!r}: a text is expected, got {value!r:.80} ({type(value).__name__})")
    return value
