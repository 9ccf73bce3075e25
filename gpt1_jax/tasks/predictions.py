"""Predictions as JSON lines, one example each, in the order of the split.

::

    {"id": "dev.tsv:2", "label": "good", "gold": "bad", "probabilities": {"bad": 0.25, "good": 0.75}}
    {"id": "17", "score": 3.81, "gold": 4.0}

The first form is that of classes, the second that of scores (STS-B). "gold", the true label, is there where it is
known. An example of ragged multiple choice has the probabilities of its own answers only.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.data.tables import Row, read_rows
from gpt1_jax.errors import InputError
from gpt1_jax.files import atomic_file, make_directory


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What was predicted for an example.

    Attributes:
      id: the example's identifier, unique in its split.
      label: the most probable label; None for a score.
      probabilities: of each label; empty for a score.
      score: the predicted score; None for a label.
      gold: the true label or score; None where it is not known.
    """

    id: str
    label: str | None = None
    probabilities: Mapping[str, float] = dataclasses.field(default_factory=dict)
    score: float | None = None
    gold: str | float | None = None


Line = dict[str, Any]


def prediction_lines(
    ids: Sequence[str],
    labels: Sequence[str],
    probabilities: np.ndarray,
    n_choices: np.ndarray | None = None,
    gold: np.ndarray | None = None,
) -> Iterator[Line]:
    """One line per example, in the order given.

    Args:
      ids: N identifiers.
      labels: K label names in class order.
      probabilities: float [N, K].
      n_choices: int [N], the answers of each example where they are ragged; only these are told.
      gold: int [N], the true classes, -1 where they are not known.

    Raises:
      InputError: at once, for shapes that do not fit, or values that are not finite or no class.
    """
    probabilities = np.asarray(probabilities)
    if probabilities.shape != (len(ids), len(labels)):
        raise InputError(f"probabilities {probabilities.shape}: {len(ids)} ids and {len(labels)} labels are given")
    if not np.isfinite(probabilities).all():
        raise InputError("probabilities: not all are finite; take an earlier checkpoint")
    n_choices = _classes("n_choices", n_choices, len(ids), len(labels), low=1, high=len(labels))
    gold = _classes("gold", gold, len(ids), -1, low=-1, high=n_choices - 1)

    def line(id_: str, row: list[float], true: int) -> Line:
        known = {"gold": labels[true]} if true >= 0 else {}
        probability = dict(zip(labels, row, strict=False))
        return {"id": id_, "label": labels[int(np.argmax(row))], **known, "probabilities": probability}

    return (line(id_, probabilities[i, : n_choices[i]].tolist(), int(gold[i])) for i, id_ in enumerate(ids))


def score_lines(ids: Sequence[str], scores: np.ndarray, gold: np.ndarray | None = None) -> Iterator[Line]:
    """`prediction_lines` for a task of scores.

    Args:
      ids: N identifiers.
      scores: float [N].
      gold: float [N], the true scores, NaN where they are not known.

    Raises:
      InputError: at once, for shapes that do not fit, or scores that are not finite.
    """
    scores = np.asarray(scores)
    gold = np.full(len(ids), np.nan) if gold is None else np.asarray(gold)
    if scores.shape != (len(ids),) or gold.shape != (len(ids),):
        raise InputError(f"scores {scores.shape} and gold {gold.shape}: {len(ids)} ids are given")
    if not np.isfinite(scores).all() or np.isinf(gold).any():
        raise InputError("scores: not all are finite; take an earlier checkpoint")

    def line(id_: str, score: float, true: float) -> Line:
        return {"id": id_, "score": score, **({} if math.isnan(true) else {"gold": true})}

    return (line(id_, float(scores[i]), float(gold[i])) for i, id_ in enumerate(ids))


def write_lines(path: str | os.PathLike[str], lines: Iterable[Line]) -> None:
    """Writes the lines of a split; the file appears complete or not at all.

    Args:
      path: ends in `.jsonl`; its folder is made if needed.
      lines: of `prediction_lines` or `score_lines`.

    Raises:
      InputError: for another suffix, or an identifier that occurs twice.
    """
    path = _checked(path)
    seen = set()
    with atomic_file(path) as file:
        for n, line in enumerate(lines):
            seen.add(line["id"])
            if len(seen) == n:
                raise InputError(f"id {line['id']!r} occurs twice; ids have to be unique, and nothing was written")
            file.write(_encoded(line))


def append_lines(path: str | os.PathLike[str], lines: Iterable[Line]) -> None:
    """Adds lines to a file that is not yet whole; they are there even if the program is killed then."""
    with open(_checked(path), "ab") as file:
        file.write(b"".join(map(_encoded, lines)))


def read_predictions(path: str | os.PathLike[str]) -> list[Prediction]:
    """Reads what `write_lines` or `append_lines` wrote.

    Raises:
      InputError: for a missing or damaged file, with the line.
    """
    predictions = []
    for row in read_rows(path, columns=("id",)):
        if not isinstance(row.values["id"], str):
            raise InputError(f"{row.where}: id: {row.values['id']!r:.80} is not a string")
        predictions.append(_read_score(row) if "score" in row.values else _read_label(row))
    return predictions


def _read_label(row: Row) -> Prediction:
    for column in ("label", "probabilities"):
        if column not in row.values:
            raise InputError(f"{row.where}: no column {column!r}; a line has a label and probabilities, or a score")
    id_, label, probabilities = (row.values[column] for column in ("id", "label", "probabilities"))
    gold = row.values.get("gold")
    if not isinstance(probabilities, dict) or not isinstance(label, str) or label not in probabilities:
        raise InputError(f"{row.where}: probabilities: an object with the label {label!r} in it is expected")
    if not all(map(_is_number, probabilities.values())):
        raise InputError(f"{row.where}: probabilities: {probabilities!r:.80} has a value that is not a number")
    if not isinstance(gold, str | None):
        raise InputError(f"{row.where}: gold: {gold!r:.80} is not a label")
    return Prediction(id_, label, probabilities, gold=gold)


def _read_score(row: Row) -> Prediction:
    score, gold = row.values["score"], row.values.get("gold")
    for name, value in (("score", score), ("gold", gold)):
        if not _is_number(value) and not (name == "gold" and value is None):
            raise InputError(f"{row.where}: {name}: {value!r:.80} is not a number")
    return Prediction(row.values["id"], score=score, gold=gold)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _classes(name: str, values: np.ndarray | None, n: int, default: int, low: int, high: int | np.ndarray) -> Any:
    """The values, int [N], after a check of their range, or the default."""
    values = np.full(n, default) if values is None else np.asarray(values)
    if values.shape != (n,):
        raise InputError(f"{name} {values.shape}: {n} ids are given")
    bad = np.flatnonzero((values < low) | (values > high))
    if len(bad):
        allowed = np.broadcast_to(high, values.shape)[bad[0]]
        raise InputError(f"{name}[{bad[0]}]={values[bad[0]]}: the labels allow {low} to {allowed}")
    return values


def _checked(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: predictions are written as .jsonl; change the suffix")
    make_directory(path.parent, "path")
    return path


def _encoded(line: Line) -> bytes:
    return (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8")
