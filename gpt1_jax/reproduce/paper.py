"""What the paper reports (Radford et al., 2018): tables 2 to 5, in percent, and how its averages are made.

The scores of tables 2 to 4 belong to the data sets, see `paper` of `gpt1_jax.tasks.spec.TaskSpec`; here is which table
each of them stands in, in the paper's order, and the ablations of table 5. GLUE's server reports more metrics than the
paper prints; those beside it are in `GLUE_SECOND`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Column(NamedTuple):
    """A figure of tables 2 to 4.

    Attributes:
      title: as the paper calls it.
      task: a name in `gpt1_jax.tasks.config.TASKS`.
      split: that the paper's score is of.
      metric: the paper's.
      score: the paper's, in percent.
      ids: how the identifiers of the examples begin that count; empty: all count.
    """

    title: str
    task: str
    split: str
    metric: str
    score: float
    ids: str = ""


TABLES: Mapping[str, tuple[Column, ...]] = {
    "table2": (
        Column("MNLI-m", "mnli", "test_matched", "accuracy", 82.1),
        Column("MNLI-mm", "mnli", "test_mismatched", "accuracy", 81.4),
        Column("SNLI", "snli", "test", "accuracy", 89.9),
        Column("SciTail", "scitail", "test", "accuracy", 88.3),
        Column("QNLI", "qnli", "test", "accuracy", 88.1),
        Column("RTE", "rte", "test", "accuracy", 56.0),
    ),
    "table3": (
        Column("Story Cloze", "story_cloze", "test", "accuracy", 86.5),
        Column("RACE-m", "race", "test", "accuracy", 62.9, "middle"),
        Column("RACE-h", "race", "test", "accuracy", 57.4, "high"),
        Column("RACE", "race", "test", "accuracy", 59.0),
    ),
    "table4": (
        Column("CoLA", "cola", "test", "matthews", 45.4),
        Column("SST-2", "sst2", "test", "accuracy", 91.3),
        Column("MRPC", "mrpc", "test", "f1", 82.3),
        Column("STS-B", "stsb", "test", "pearson", 82.0),
        Column("QQP", "qqp", "test", "f1", 70.3),
    ),
}
"""Table -> its columns, in the paper's order. RACE is one run, and its two schools are parts of its test set."""

TITLES = {
    "table2": "Table 2: natural language inference",
    "table3": "Table 3: question answering and commonsense reasoning",
    "table4": "Table 4: semantic similarity and classification",
}

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
"""The tasks of table 5, in its order. GLUE itself has a ninth, WNLI, which the paper does not report by itself."""

GLUE_SCORE, GLUE_WNLI = 72.8, 53.4
"""Table 4's average over GLUE's nine tasks, and the entry's score on WNLI on the benchmark's board, which is in it."""

GLUE_SECOND = {"mrpc": ("accuracy", 75.7), "stsb": ("spearman", 80.0), "qqp": ("accuracy", 88.5)}
"""The second metric of a task, whose mean with the first one is what counts in GLUE's average: name, the paper's entry
on the board."""

VARIANTS: Mapping[str, str] = {
    "full": "Transformer, pre-trained",
    "no_pretraining": "Transformer, no pre-training",
    "no_aux_lm": "Transformer, no auxiliary LM",
    "lstm": "LSTM, pre-trained",
}
"""The rows of table 5, in the paper's order. All but the third have the auxiliary LM objective."""

TABLE5: Mapping[str, Mapping[str, float]] = {
    "full": dict(zip(GLUE, (45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0), strict=True)),
    "no_pretraining": dict(zip(GLUE, (18.9, 84.0, 79.4, 30.9, 65.5, 75.7, 71.2, 53.8), strict=True)),
    "no_aux_lm": dict(zip(GLUE, (47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4), strict=True)),
    "lstm": dict(zip(GLUE, (30.3, 90.5, 83.2, 71.8, 68.1, 73.7, 81.1, 54.6), strict=True)),
}
"""Row -> task -> score. MNLI's is the mean of its two test sets."""

TABLE5_AVERAGE = {"full": 74.7, "no_pretraining": 59.9, "no_aux_lm": 75.0, "lstm": 69.1}
"""The unweighted mean of a row's eight scores, as printed."""


def mean(values: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """The unweighted mean of some values; None where one of them is missing."""
    if not names or not all(name in values for name in names):
        return None
    return sum(values[name] for name in names) / len(names)


def glue_score(scores: Mapping[str, float], *, wnli: float | None) -> float | None:
    """GLUE's average: of nine tasks, each of which counts once, however many metrics and test sets it has.

    Args:
      scores: in percent, by `cola`, `sst2`, `mrpc`, `stsb`, `qqp`, `mnli`, `qnli` and `rte`: each the mean of the
        task's metrics (`GLUE_SECOND`) and test sets.
      wnli: accuracy on WNLI in percent; None leaves it out, and takes the mean of eight.

    Returns:
      None where a task is missing.
    """
    names = GLUE if wnli is None else (*GLUE, "wnli")
    return mean({**scores, "wnli": wnli} if wnli is not None else scores, names)
