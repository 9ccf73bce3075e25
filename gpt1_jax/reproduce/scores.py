"""The scores of finished cells, gathered: over the seeds of a column, of a task, of an average of tasks."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.reproduce import paper
from gpt1_jax.reproduce.cells import Done, Score
from gpt1_jax.reproduce.plan import Plan

ByRun = dict[int, float]
"""Run, counted from 0, to its score in percent: that of seed s has the number s - the first seed."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """The scores of several runs, in percent; at least one."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of an even number, the mean of the two in the middle."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The lowest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The highest."""
        return max(self.values)

    @classmethod
    def of(cls, runs: ByRun) -> Spread | None:
        """Those of all runs; None of none, and numbers that are not finite are none."""
        values = tuple(value for value in runs.values() if math.isfinite(value))
        return cls(values) if values else None


@dataclasses.dataclass(frozen=True)
class Scores:
    """All that was found.

    Attributes:
      plan: what was to be run.
      done: the cells that are.
    """

    plan: Plan
    done: tuple[Done, ...]

    def column(self, task: str, variant: str, title: str) -> ByRun:
        """A column of tables 2 to 4, by its first metric."""
        metric = next((s.metric for s in self.plan.scored.get(task, ()) if s.title == title), None)
        return self._runs(task, variant, lambda s: s.title == title and s.metric == metric and s.split != "train")

    def second(self, task: str, variant: str, metric: str) -> ByRun:
        """A further metric of a task, the mean over its columns."""
        return self._runs(task, variant, lambda s: s.metric == metric and s.split != "train")

    def task(self, task: str, variant: str) -> ByRun:
        """A task's score: the mean over its columns, such as MNLI's two, without those of parts of another one."""
        scored = self.plan.scored.get(task, ())
        wanted = {(s.title, s.split, s.metric) for s in scored if not s.ids}
        return self._runs(task, variant, lambda s: (s.title, s.split, s.metric) in wanted, n=len(wanted))

    def train(self, task: str, variant: str) -> ByRun:
        """A task's score on its own training split."""
        return self._runs(task, variant, lambda s: s.split == "train")

    def average(self, tasks: Sequence[str], variant: str) -> ByRun:
        """The unweighted mean over tasks, of the runs that all of them have."""
        runs = [self.task(task, variant) for task in tasks]
        numbers = set.intersection(*map(set, runs)) if runs else set()
        return {run: statistics.fmean(each[run] for each in runs) for run in sorted(numbers)}

    def glue(self, tasks: Mapping[str, str], wnli: float | None) -> ByRun:
        """GLUE's average by run, see `paper.glue_score`; `tasks` are the data sets' names to those in the plan."""
        if set(tasks) != set(paper.GLUE):
            return {}
        scores: dict[int, dict[str, float]] = {}
        for name, task in tasks.items():
            runs = self.task(task, "full")
            if name in paper.GLUE_SECOND:
                second = self.second(task, "full", paper.GLUE_SECOND[name][0])
                runs = {run: (runs[run] + second[run]) / 2 for run in runs.keys() & second.keys()}
            for run, value in runs.items():
                scores.setdefault(run, {})[name] = value
        found = {run: paper.glue_score(values, wnli=wnli) for run, values in sorted(scores.items())}
        return {run: value for run, value in found.items() if value is not None}

    def chance(self, task: str) -> float | None:
        """What a random guess scores on a task, in percent; None where nothing tells of how many classes."""
        if (known := self.plan.chance[task]) is not None:
            return known
        found = (s.classes for done in self.done if done.cell.task == task for s in done.scores if s.classes)
        return next((100.0 / n_classes for n_classes in found), None)

    def curve(self, trunk: str, task: str) -> list[Score]:
        """The zero-shot scores of a model, in the order of the updates; the last one of weights without a history."""
        for done in self.done:
            if done.cell.kind == "zero_shot" and (done.cell.variant, done.cell.task) == (trunk, task):
                return sorted(done.scores, key=lambda score: score.step or 0)
        return []

    def _runs(self, task: str, variant: str, wanted: Callable[[Score], bool], n: int | None = None) -> ByRun:
        runs = {}
        for done in self.done:
            cell = done.cell
            if cell.kind == "finetune" and (cell.task, cell.variant) == (task, variant):
                values = [score.value for score in done.scores if wanted(score)]
                if values and (n is None or len(values) == n):
                    runs[cell.run] = statistics.fmean(values)
        return dict(sorted(runs.items()))


def as_rows(done: Iterable[Done]) -> list[dict[str, object]]:
    """Every score as a row of a table: what scores.csv has."""
    rows: list[dict[str, object]] = []
    for each in done:
        cell = each.cell
        seed = cell.config.seed if isinstance(cell.config, FinetuneConfig) else ""
        about: dict[str, object] = {
            "cell": cell.name,
            "kind": cell.kind,
            "task": cell.task,
            "variant": cell.variant,
            "seed": seed,
        }
        if each.diverged:
            rows.append({**about, "column": "", "split": "", "metric": "", "percent": "diverged", "updates": ""})
        for score in each.scores:
            value = score.value
            rows.append(
                {
                    **about,
                    "column": score.title,
                    "split": score.split,
                    "metric": score.metric,
                    "percent": value,
                    "updates": "" if score.step is None else score.step,
                }
            )
    return rows
