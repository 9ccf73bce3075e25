"""Predictions as JSON lines: `{"id": ..., "label": ..., "probabilities": {name: probability}}`, one example each."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gpt1_jax.data.tables import read_rows
from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory, write_atomically


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The most probable label of an example, and the probability of each."""

    id: str
    label: str
    probabilities: Mapping[str, float]


def write_predictions(
    path: str | os.PathLike[str],
    ids: Sequence[str],
    labels: Sequence[str],
    probabilities: np.ndarray,
    n_choices: np.ndarray | None = None,
) -> None:
    """Writes one line per example, in the order given; the file appears complete or not at all.

    Args:
      path: ends in `.jsonl`; its folder is made if needed.
      ids: N identifiers.
      labels: K label names in class order.
      probabilities: float [N, K].
      n_choices: int [N], the answers of each example where they are ragged; only these are written.

    Raises:
      InputError: for shapes that do not fit, values that are not finite, or an identifier that occurs twice.
    """
    path = Path(path)
    probabilities = np.asarray(probabilities)
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: predictions are written as .jsonl; change the suffix")
    if probabilities.shape != (len(ids), len(labels)):
        raise InputError(f"probabilities {probabilities.shape}: {len(ids)} ids and {len(labels)} labels are given")
    if len(set(ids)) != len(ids):
        raise InputError(f"ids: {len(ids) - len(set(ids))} of {len(ids)} occur twice; they have to be unique")
    if not np.isfinite(probabilities).all():
        raise InputError(f"probabilities: not all are finite; nothing was written to {path}")
    lines = []
    for i, (id_, row) in enumerate(zip(ids, probabilities.tolist(), strict=True)):
        row = row if n_choices is None else row[: n_choices[i]]
        by_name = dict(zip(labels, row, strict=False))
        lines.append(
            json.dumps({"id": id_, "label": labels[int(np.argmax(row))], "probabilities": by_name}, ensure_ascii=False)
        )
    make_directory(path.parent, "path")
    write_atomically(path, "".join(line + "\n" for line in lines).encode("utf-8"))


def read_predictions(path: str | os.PathLike[str]) -> list[Prediction]:
    """Reads what `write_predictions` wrote.

    Raises:
      InputError: for a missing or damaged file, with the line.
    """
    result = []
    for row in read_rows(path, columns=("id", "label", "probabilities")):
        values = row.values
        if not isinstance(values["probabilities"], dict) or values["label"] not in values["probabilities"]:
            raise InputError(
                f"{row.where}: probabilities: an object with the label {values['label']!r} in it is expected"
            )
        result.append(Prediction(values["id"], values["label"], values["probabilities"]))
    return result
