"""The paper's tables, made of scores: for a terminal, for a page and as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence

from gpt1_jax.reproduce import paper
from gpt1_jax.reproduce.claims import shown
from gpt1_jax.reproduce.config import ReproduceConfig
from gpt1_jax.reproduce.scores import Scores, Spread
from gpt1_jax.reproduce.series import curves, layer_points
from gpt1_jax.reproduce.tasks import Scored
from gpt1_jax.text_table import aligned

Value = str | int | float | Spread | None
DASH = "–"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
      name: of its CSV file.
      title: text.
      head: the columns' names.
      rows: the values; a number is a score in percent, None one that is not there.
      notes: what has to be known to read it.
    """

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()


def tables(config: ReproduceConfig, scores: Scores) -> list[Table]:
    """All tables of the parts that were asked for."""
    found = []
    if "tables" in config.parts:
        found += [table for name in paper.TABLES if (table := _of_paper(name, config, scores)) is not None]
        if (own := _own(config, scores)) is not None:
            found.append(own)
    if "table5" in config.parts and (table5 := _table5(config, scores)) is not None:
        found.append(table5)
    if "figure2_left" in config.parts and (left := _layers(config, scores)) is not None:
        found.append(left)
    if "figure2_right" in config.parts and (right := _zero_shot(config, scores)) is not None:
        found.append(right)
    return found


def as_text(table: Table) -> str:
    """A table for a terminal."""
    lines = aligned([table.head, *([cell(value) for value in row] for row in table.rows)], n_left=1)
    return "\n".join([table.title, "", lines[0], "-" * len(lines[0]), *lines[1:]])


def cell(value: Value) -> str:
    """A value on one line."""
    if value is None:
        return DASH
    if isinstance(value, Spread):
        return shown(value)
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def as_csv(table: Table) -> str:
    """A table with four columns for each of several runs: median, lowest, highest and number of runs."""
    spread = [any(isinstance(row[i], Spread) for row in table.rows) for i in range(len(table.head))]
    head: list[str] = []
    for name, wide in zip(table.head, spread, strict=True):
        head += [f"{name} {part}" for part in ("median", "min", "max", "runs")] if wide else [name]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        line: list[object] = []
        for value, wide in zip(row, spread, strict=True):
            if isinstance(value, Spread):
                line += [value.median, value.low, value.high, len(value.values)]
            elif wide:
                line += ["" if value is None else value, "", "", ""]
            else:
                line.append("" if value is None else value)
        writer.writerow(line)
    return file.getvalue()


def _names(config: ReproduceConfig) -> dict[str, str]:
    """Data set of the paper to the name of its task in the config, of those that are fine-tuned."""
    entries = config.tasks.items()
    return {e.task.name: name for name, e in entries if e.task.name != "custom" and e.finetuned}


def _of_paper(name: str, config: ReproduceConfig, scores: Scores) -> Table | None:
    """One of tables 2 to 4; None if none of its tasks was asked for."""
    names = _names(config)
    columns = [column for column in paper.TABLES[name] if column.task in names]
    if not columns:
        return None
    rows: list[tuple[Value, ...]] = []
    notes = []
    for column in columns:
        task = names[column.task]
        ours = Spread.of(scores.column(task, "full", column.title))
        split = next((s.split for s in scores.plan.scored.get(task, ()) if s.title == column.title), DASH)
        rows.append((column.title, column.metric, split, column.score, ours, _difference(ours, column.score)))
        if task in scores.plan.missing:
            notes.append(f"{column.title} was not run: {scores.plan.missing[task]}")
    if any(str(row[2]).startswith("validation") for row in rows):
        notes.append(
            "The labels of some test sets are secret. In their place is the validation split, which also chose the "
            "checkpoint; the run's submission/ folder has what the server takes."
        )
    if name == "table4":
        rows.append(_glue(config, scores))
        notes.append(
            "GLUE's average counts each task once, by the mean of its metrics and test sets. The paper's 72.8 has a "
            f"ninth task in it, WNLI (its entry has {paper.GLUE_WNLI}); without it, it is {_paper_glue(None):.1f}."
        )
    head = ("Data set", "Metric", "Split", "Paper", "Ours", "Difference")
    return Table(name, paper.TITLES[name], head, tuple(rows), tuple(dict.fromkeys(notes)))


def _difference(ours: Spread | None, theirs: float) -> str | None:
    return None if ours is None else f"{ours.median - theirs:+.1f}"


def _glue(config: ReproduceConfig, scores: Scores) -> tuple[Value, ...]:
    names = {name: task for name, task in _names(config).items() if name in paper.GLUE}
    ours = Spread.of(scores.glue(names, config.wnli))
    title = "GLUE" if config.wnli is not None else "GLUE without WNLI"
    theirs = _paper_glue(config.wnli)
    return (title, "average", "", theirs, ours, _difference(ours, theirs))


def _paper_glue(wnli: float | None) -> float:
    """The paper's average of nine tasks, as printed, or that of eight."""
    if wnli is not None:
        return paper.GLUE_SCORE
    scores = dict(paper.TABLE5["full"]) | {"mnli": (82.1 + 81.4) / 2}
    for task, (_, second) in paper.GLUE_SECOND.items():
        scores[task] = (scores[task] + second) / 2
    return paper.glue_score(scores, wnli=None) or 0.0


def _own(config: ReproduceConfig, scores: Scores) -> Table | None:
    """The user's own tasks, as tables 2 to 4 have the paper's."""
    entries = [(n, e) for n, e in config.tasks.items() if e.task.name == "custom" and e.finetuned]
    rows: list[tuple[Value, ...]] = []
    notes = []
    for name, _ in entries:
        if name in scores.plan.missing:
            notes.append(f"{config.title(name)} was not run: {scores.plan.missing[name]}")
        for column in scores.plan.scored.get(name, ()):
            ours = Spread.of(scores.column(name, "full", column.title))
            rows.append((column.title, column.metric, column.split, scores.chance(name), ours))
    if not entries:
        return None
    head = ("Data set", "Metric", "Split", "Random guess", "Ours")
    return Table("own_tasks", "Your own data, as tables 2 to 4", head, tuple(rows), tuple(notes))


def _table5(config: ReproduceConfig, scores: Scores) -> Table | None:
    names = [name for name, entry in config.tasks.items() if entry.ablated and entry.finetuned]
    names.sort(key=lambda name: [*paper.GLUE, config.tasks[name].task.name].index(config.tasks[name].task.name))
    there = [name for name in names if name in scores.plan.scored]
    if not names:
        return None
    in_paper = {name: config.tasks[name].task.name for name in names if config.tasks[name].task.name in paper.GLUE}
    rows: list[tuple[Value, ...]] = []
    for variant, title in paper.VARIANTS.items():
        average = Spread.of(scores.average(there, variant))
        own = [Spread.of(scores.task(name, variant)) for name in names]
        rows.append((title, average, *own))
    for variant, title in paper.VARIANTS.items():
        theirs = [paper.TABLE5[variant].get(in_paper[name]) if name in in_paper else None for name in names]
        rows.append((f"Paper: {title}", paper.TABLE5_AVERAGE[variant], *theirs))
    notes = [
        "All rows but the third have the auxiliary LM objective, also that without pre-training. Averages are of the "
        "runs of one seed after another, over the tasks that are there."
    ]
    if set(in_paper.values()) != set(paper.GLUE):
        notes.append("The paper's averages are over its eight tasks, which are not these: only their order compares.")
    notes += [f"{config.title(n)} was not run: {scores.plan.missing[n]}" for n in names if n in scores.plan.missing]
    if "lstm" in scores.plan.missing:
        notes.append(f"The LSTM was not run: {scores.plan.missing['lstm']}")
    head = ("", "Average", *(_column_title(config, scores, name) for name in names))
    return Table("table5", "Table 5: ablations", head, tuple(rows), tuple(notes))


def _column_title(config: ReproduceConfig, scores: Scores, name: str) -> str:
    scored: Sequence[Scored] = scores.plan.scored.get(name, ())
    return f"{config.title(name)} ({scored[0].metric})" if scored else config.title(name)


def _layers(config: ReproduceConfig, scores: Scores) -> Table | None:
    names = [n for n, entry in config.tasks.items() if entry.layers and n in scores.plan.scored]
    held_out: Mapping[str, dict[int, Spread]] = {name: layer_points(scores, name) for name in names}
    train: Mapping[str, dict[int, Spread]] = {name: layer_points(scores, name, train=True) for name in names}
    layers = sorted({k for points in held_out.values() for k in points})
    if not layers:
        return None
    rows = []
    for k in layers:
        what = {-1: "nothing (no pre-training)", 0: "embeddings"}.get(k, f"embeddings and {k} of {scores.plan.n_layer}")
        values = [points[name].get(k) for name in names for points in (held_out, train)]
        rows.append((what, *values))
    head = ["Layers transferred"]
    for name in names:
        split = scores.plan.scored[name][0].split
        head += [f"{config.title(name)}, {split}", f"{config.title(name)}, train"]
    return Table("figure2_left", "Figure 2, left: layers transferred", tuple(head), tuple(rows))


def _zero_shot(config: ReproduceConfig, scores: Scores) -> Table | None:
    drawn = curves(config, scores)
    steps = sorted({step or 0 for curve in drawn for step, _ in curve.points})
    if not drawn:
        return None
    trunks = {"transformer": "Transformer", "lstm": "LSTM"}
    head = ["Updates"]
    for curve in drawn:
        name = f"{trunks[curve.trunk]}, {curve.title}"
        head += [name, f"{name}, relative"]
    rows = []
    for at in steps:
        row: list[Value] = [str(at) if at else "the last"]
        for curve in drawn:
            value = next((value for step, value in curve.points if (step or 0) == at), None)
            relative = None if value is None else curve.relative(value)
            row += [value, None if relative is None else f"{relative:.3f}"]
        rows.append(tuple(row))
    return Table("figure2_right", "Figure 2, right: zero-shot performance", tuple(head), tuple(rows))
