"""What came of the quick start: its test accuracies summed up, and said in a sentence."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

from gpt1_jax.report.page import number, percent, points
from gpt1_jax.text_table import aligned

NAMES = {"scratch": "from scratch", "pretrained": "pre-trained"}  # the two sides, in the order they are shown
SMALL_GAIN = 1.0  # points; less is called little


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The two sides for one number of labels, each a row of `summary`, or None where nothing was run."""

    n_labels: int
    scratch: Mapping[str, Any] | None
    pretrained: Mapping[str, Any] | None

    @property
    def gain(self) -> float | None:
        """Median with pre-training less median from scratch, in percentage points."""
        if self.scratch is None or self.pretrained is None:
            return None
        return 100 * (self.pretrained["median"] - self.scratch["median"])

    @property
    def overlap(self) -> bool:
        """Whether the ranges of the two sides meet."""
        if self.scratch is None or self.pretrained is None:
            return False
        return self.scratch["min"] <= self.pretrained["max"] and self.pretrained["min"] <= self.scratch["max"]


def accuracies(results: Mapping[str, Any], n_labels: int, start: str) -> list[float]:
    """Test accuracies (0 to 1) of one side, in the order of the runs."""
    return [
        run["test_accuracy"]
        for run in results.get("runs") or ()
        if run["n_labels"] == n_labels and run["start"] == start and number(run.get("test_accuracy")) is not None
    ]


def summary(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Test accuracy over the seeds: rows of n_labels, start, median, min and max (0 to 1), few labels first."""
    rows = []
    for n_labels in sorted({run["n_labels"] for run in results.get("runs") or ()}):
        for start in NAMES:
            if values := accuracies(results, n_labels, start):
                median = statistics.median(values)
                rows.append(
                    {"n_labels": n_labels, "start": start, "median": median, "min": min(values), "max": max(values)}
                )
    return rows


def comparisons(results: Mapping[str, Any]) -> list[Comparison]:
    """`summary`, the two sides together."""
    rows = {(row["n_labels"], row["start"]): row for row in summary(results)}
    return [
        Comparison(n_labels, rows.get((n_labels, "scratch")), rows.get((n_labels, "pretrained")))
        for n_labels in sorted({n_labels for n_labels, _ in rows})
    ]


def summary_table(results: Mapping[str, Any]) -> str:
    """The comparison for a terminal: median (lowest-highest) of the test accuracy in percent, and the gain."""
    lines = [("labels", *NAMES.values(), "gain")]
    for pair in comparisons(results):
        sides = [
            f"{100 * row['median']:.1f} % ({100 * row['min']:.1f}-{100 * row['max']:.1f})" if row else "-"
            for row in (pair.scratch, pair.pretrained)
        ]
        lines.append((f"{pair.n_labels:,}", *sides, "-" if pair.gain is None else f"{pair.gain:+.1f} points"))
    table = aligned(lines)
    return "\n".join([table[0], "-" * len(table[0]), *table[1:]])


def headline(results: Mapping[str, Any]) -> str:
    """The outcome with the most labels, in one sentence."""
    pairs = [pair for pair in comparisons(results) if pair.gain is not None]
    if not pairs:
        return "There is nothing to compare yet: at least one of the two sides has no finished run."
    pair = pairs[-1]
    with_it, without, gain = percent(pair.pretrained["median"]), percent(pair.scratch["median"]), pair.gain
    if gain >= SMALL_GAIN:
        caution = ", though single runs of the two sides overlap" if pair.overlap else ""
        outcome = f"raised accuracy by {points(gain)}, from {without} to {with_it}{caution}"
        return f"Pre-training on unlabelled reviews {outcome}."
    if gain <= -SMALL_GAIN:
        return (
            f"Pre-training did not help here: accuracy was {points(-gain)} lower with it, {with_it} against {without}."
        )
    return (
        f"Pre-training made little difference here: accuracy was {with_it} with it and {without} without "
        f"({points(gain, sign=True)})."
    )
