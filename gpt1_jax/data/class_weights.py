"""Weights of classes in the loss, so that rare ones are not drowned by common ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from absl import logging

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.errors import InputError, counted, did_you_mean, quoted
from gpt1_jax.model_config import ReadOut

BALANCED = "balanced"


def check_class_weights(class_weights: Sequence[str], readout: ReadOut) -> None:
    """Refuses weights that `with_class_weights` would refuse, without the examples.

    Raises:
      InputError: likewise.
    """
    if not class_weights:
        return
    if readout.kind == "multiple_choice" or readout.score_range is not None:
        what = "answers" if readout.score_range is None else "scores"
        raise InputError(f"class_weights={list(class_weights)}: the task has {what}, not classes; leave them out")
    if tuple(class_weights) != (BALANCED,):
        _given(class_weights, readout.labels)


def with_class_weights(split: EncodedSplit, class_weights: Sequence[str], readout: ReadOut) -> EncodedSplit:
    """The split with a weight for each example, that of its class.

    The loss of a batch is sum_i w_i l_i / sum_i w_i, so only the ratio of two weights matters.

    Args:
      split: labelled examples.
      class_weights: ("balanced",), or "label=weight" for each label, or nothing. Balanced is N / (K n_c) for a class
        with n_c of the N examples, where K classes occur: the weights of all examples have the mean 1, and those of
        each class the same sum.
      readout: of the task: the label names in class order.

    Raises:
      InputError: the task has no classes, a label is missing or unknown, or a weight is not a number above 0.
    """
    if not class_weights:
        return split
    check_class_weights(class_weights, readout)
    labels = readout.labels
    counts = np.bincount(split.labels, minlength=len(labels))
    if tuple(class_weights) == (BALANCED,):
        weights = len(split) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    else:
        weights = _given(class_weights, labels)
    logging.info(
        "class weights: %s",
        ", ".join(
            f"{name!r} {w:g} ({counted(n, 'example')})" for name, w, n in zip(labels, weights, counts, strict=True)
        ),
    )
    return dataclasses.replace(split, weights=weights[split.labels].astype(np.float32))


def _given(class_weights: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """The weights [K] that "label=weight" say."""
    weights: dict[str, float] = {}
    for item in class_weights:
        label, equals, number = item.rpartition("=")
        if not equals:
            raise InputError(f"class_weights: {item!r} is neither {BALANCED!r} nor label=weight, such as {labels[0]}=2")
        if label not in labels:
            raise InputError(f"class_weights: {label!r} is not one of {quoted(labels)}{did_you_mean(label, labels)}")
        try:
            weights[label] = float(number)
        except ValueError:
            weights[label] = math.nan
        if not (math.isfinite(weights[label]) and weights[label] > 0):
            raise InputError(f"class_weights: {item!r}: a weight is a number above 0")
    if missing := [label for label in labels if label not in weights]:
        raise InputError(f"class_weights={list(class_weights)}: {quoted(missing)} has none; give one for each label")
    return np.array([weights[label] for label in labels])
