"""Splits held out of the training rows: stratified by label, equal texts on the same side, the same again by seed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from absl import logging

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.rows import Example
from gpt1_jax.tasks.spec import TaskSpec


def hold_out(spec: TaskSpec, train: list[Example]) -> dict[str, list[Example]]:
    """Parts `train` into the splits of `spec.held_out` and "train", and logs how.

    Raises:
      InputError: a split would be empty.
    """
    texts = [tuple(example.fields.values()) for example in train]
    parts = stratified_split(_strata(spec, train), texts, spec.held_out, spec.split_seed)
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
                f"held_out={dict(spec.held_out)!r}: split {name!r} would be empty with {len(train)} training rows of "
                f"{len(set(texts))} different texts, equal ones of which stay together; give more rows, another "
                "validation_fraction or test_fraction, or files of its own"
            )
    return {name: [train[row] for row in rows] for name, rows in parts.items()}


def stratified_split(
    strata: Sequence[Hashable], groups: Sequence[Hashable], fractions: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Sets parts of N rows aside.

    Every part gets its fraction of each stratum, and whole groups only, so that equal rows never end up on two sides; a
    group that would exceed the fraction is left for another part. What rounding takes from one stratum it gives to the
    next, so that also of many small strata the parts get their fraction. A group counts for the stratum of its first
    row. The assignment depends on the order of the rows and the seed.

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
    owed = dict.fromkeys(fractions, 0.0)
    for stratum in by_stratum.values():
        n_rows = sum(map(len, stratum))
        left = [stratum[group] for group in rng.permutation(len(stratum))]
        for name, fraction in fractions.items():
            owed[name] += fraction * n_rows
            room, rest = round(owed[name]), []
            owed[name] -= room
            for rows in left:
                if len(rows) <= room:
                    parts[name] += rows
                    room -= len(rows)
                else:
                    rest.append(rows)
            left = rest
        parts["train"] += [row for rows in left for row in rows]
    return {name: np.array(sorted(rows), np.int64) for name, rows in parts.items()}


def _strata(spec: TaskSpec, examples: Sequence[Example]) -> list[Hashable]:
    """What is held out in proportion: the labels, or fifths of the range of scores."""
    if spec.score_range is None:
        return [example.label for example in examples]
    low, high = spec.score_range
    scores = [example.score for example in examples]
    return [None if score is None else round(5 * (score - low) / (high - low)) for score in scores]
