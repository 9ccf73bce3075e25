"""A reproduction as one HTML page, with a PNG for each figure and a CSV file for each table beside it."""

from __future__ import annotations

import base64
import csv
import io
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt1_jax.errors import counted
from gpt1_jax.files import make_directory, write_atomically
from gpt1_jax.report import page
from gpt1_jax.reproduce import paper
from gpt1_jax.reproduce.claims import FAILS, HOLDS, UNKNOWN, Claim, claims
from gpt1_jax.reproduce.config import ReproduceConfig
from gpt1_jax.reproduce.figures import figures
from gpt1_jax.reproduce.plan import Cell
from gpt1_jax.reproduce.scores import Scores, Spread, as_rows
from gpt1_jax.reproduce.tables import Table, Value, as_csv, cell, tables
from gpt1_jax.version import __version__

FOLDER, PAGE = "report", "index.html"

CAPTIONS = {
    "table5": "Each dot is a run; none is left out. The bar, and the number, is the median.",
    "figure2_left": "The median over the seeds, and their range as a band. Without any layer there are still the "
    "embeddings, and left of them nothing at all: the same model from scratch.",
    "figure2_right": "Normalised as in the paper: 0 is a random guess, 1 the best that single models reached. Solid: "
    "Transformer; dashed, hollow marks: LSTM. One run of pre-training each, so that there is no range.",
}
_ABOUT = {
    "table5": "The same recipe for all rows: only what a row says is different. In the last, one LSTM layer stands in "
    "the place of the Transformer’s.",
    "figure2_left": "",
    "figure2_right": "No training: the language model is asked, as section 5 of the paper describes.",
}


def write_report(
    config: ReproduceConfig, scores: Scores, folder: Path, *, left: Sequence[Cell], failed: dict[str, str]
) -> tuple[list[Table], list[Claim]]:
    """Writes index.html, the PNGs and the CSV files.

    Args:
      config: what was asked for.
      scores: what was found.
      folder: where; it is made.
      left: cells that are still to be run.
      failed: cells that could not be run, with the reason.

    Returns:
      the tables and the claims, as they are on the page.

    Raises:
      InputError: the folder cannot be made.
    """
    make_directory(folder, "workdir")
    from gpt1_jax.plots.style import png

    found, said = tables(config, scores), claims(config, scores)
    pictures = {name: png(figure) for name, figure in figures(config, scores).items()}
    for name, data in pictures.items():
        write_atomically(folder / f"{name}.png", data)
    for table in found:
        write_atomically(folder / f"{table.name}.csv", as_csv(table).encode("utf-8"))
    write_atomically(folder / "scores.csv", _csv(as_rows(scores.done)).encode("utf-8"))
    write_atomically(folder / "claims.csv", _csv([vars(claim) for claim in said]).encode("utf-8"))
    sections = [page.Section("claims", "Does the paper’s order hold?", _claims(said))]
    sections += [page.Section(t.name, t.title, _table(t, pictures.get(t.name))) for t in found]
    sections += [
        page.Section("missing", "What is not here", _missing(config, scores, left, failed)),
        page.Section("runs", "Every run", _runs(scores)),
        page.Section("setup", "Set-up and time", _setup(config, scores)),
    ]
    title = headline(scores, said)
    page.write_page(folder / PAGE, title, sections, about="reproduction", lead=_lead(config, scores, left))
    return found, said


def headline(scores: Scores, said: Sequence[Claim]) -> str:
    """The outcome in a sentence."""
    known = [claim for claim in said if claim.verdict != UNKNOWN]
    if not known:
        done = sum(done.cell.kind == "finetune" for done in scores.done)
        return f"{counted(done, 'fine-tuning run')} so far: there is nothing to compare yet."
    holds = sum(claim.verdict != FAILS for claim in known)
    firmly = sum(claim.verdict == HOLDS for claim in known)
    return (
        f"The paper’s order holds in {holds} of {counted(len(known), 'comparison')}, in {firmly} of them in every run."
    )


def _lead(config: ReproduceConfig, scores: Scores, left: Sequence[Cell]) -> str:
    tasks = [config.title(name) for name in scores.plan.scored]
    text = (
        f"GPT-1’s tables and figures, made again on {', '.join(tasks)}, with {counted(config.seeds, 'seed')} for every "
        "fine-tuning. Scores are in percent: the median, and in brackets the lowest and the highest run."
    )
    rest = f"<p><strong>Not finished: {counted(len(left), 'run')} to go.</strong></p>" if left else ""
    return f"<p>{page.text(text)}</p>{rest}"


def _claims(said: Sequence[Claim]) -> str:
    if not said:
        return page.note("Nothing was asked for that could be compared.")
    names = {"table5": "Table 5", "figure2_left": "Figure 2, left", "figure2_right": "Figure 2, right"}
    rows = []
    for claim in said:
        mark = "✓" if claim.verdict not in (FAILS, UNKNOWN) else "✗" if claim.verdict == FAILS else "?"
        verdict = f"{mark}{page.NBSP}{page.text(claim.verdict)}"
        rows.append([names[claim.part], page.text(claim.text), verdict, page.text(claim.detail)])
    about = (
        "Computed from the runs: “holds” where the lowest run of the upper side is above the highest of the lower; "
        "“holds by the medians” where single runs overlap. With three seeds on a side, two sides that do not differ "
        "would seem to hold in one of twenty cases. What cannot be told from guessing is not known."
    )
    head = ["Where", "What the paper finds", "Here", "Numbers"]
    return page.note(about) + page.table(head, rows, kind="claims", words=(0, 1, 2, 3))


def _table(table: Table, picture: bytes | None) -> str:
    rows = [[_cell(value) for value in row] for row in table.rows]
    words = [i for i in range(len(table.head)) if i == 0 or all(isinstance(row[i], str) for row in table.rows)]
    shown = page.table([page.text(name) for name in table.head], rows, kind="scores", words=words)
    image = ""
    if picture is not None:
        source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        image = page.figure(f'<img src="{source}" alt="{page.text(table.title)}">', page.text(CAPTIONS[table.name]))
    notes = "".join(page.note(page.text(note)) for note in (_ABOUT.get(table.name, ""), *table.notes) if note)
    return f"{shown}{image}{notes}{page.note(f'<code>{table.name}.csv</code>')}"


def _cell(value: Value) -> str:
    if isinstance(value, Spread):
        first, _, rest = cell(value).partition(" (")
        return f"<strong>{first}</strong>" + (f" <small>{rest.rstrip(')')}</small>" if rest else "")
    return page.text(cell(value))


def _missing(config: ReproduceConfig, scores: Scores, left: Sequence[Cell], failed: dict[str, str]) -> str:
    titles = {"lstm": "LSTM"} | {name: entry.title or name for name, entry in config.tasks.items()}
    rows = [[page.text(titles.get(n, n)), page.text(why)] for n, why in scores.plan.missing.items()]
    rows += [[page.text(name), page.text(reason)] for name, reason in failed.items()]
    rows += [[page.text(d.cell.name), page.text(f"diverged: {d.diverged}")] for d in scores.done if d.diverged]
    rows += [[page.text(c.name), "still to be run: start the same command again"] for c in left if c.name not in failed]
    if not rows:
        return page.note("Everything that was asked for was run.")
    return page.table(["What", "Why, and what to do"], rows, kind="missing", words=(0, 1))


def _runs(scores: Scores) -> str:
    rows = []
    for done in scores.done:
        values = [f"{s.title} {s.split} {s.metric} {s.value:.1f}" for s in done.scores[:4]]
        if done.cell.kind == "zero_shot":
            values = [f"{counted(len(done.scores), 'checkpoint')}"]
        rows.append(
            [
                f"<code>{page.text(done.cell.name)}</code>",
                page.text("; ".join(values) or done.diverged or page.DASH),
                page.duration(done.seconds),
            ]
        )
    return page.table(["Folder", "Score, %", "Time"], rows, kind="runs", words=(0, 1)) + page.note(
        "<code>scores.csv</code> has every number; a folder’s <code>config.json</code> its whole configuration."
    )


def _setup(config: ReproduceConfig, scores: Scores) -> str:
    import jax

    kinds = {"pretrain": "Pre-training", "finetune": "Fine-tuning", "zero_shot": "Zero-shot"}
    seconds = {title: sum(d.seconds for d in scores.done if d.cell.kind == kind) for kind, title in kinds.items()}
    rows = [(title, page.duration(value)) for title, value in seconds.items() if value]
    given = config.lstm.pretrained
    rows += [
        ("Together", page.duration(sum(seconds.values()))),
        ("Layers of the Transformer", str(scores.plan.n_layer)),
        ("Units of the LSTM", page.text(f"those of {given}" if given else config.lstm.units)),
        ("Seeds of a fine-tuning", str(config.seeds)),
        ("gpt1-jax", page.text(__version__)),
        ("JAX", page.text(jax.__version__)),
        ("Python", page.text(platform.python_version())),
        ("Devices", page.text(f"{jax.device_count()} x {jax.devices()[0].device_kind}")),
    ]
    return page.facts(rows)


def next_program(scores: Scores, root: Path) -> tuple[str, dict[str, str]] | None:
    """What may come after a finished reproduction: a program and its flags, as `cli.command` takes them."""
    kept = [d.cell for d in scores.done if d.cell.kind == "finetune" and (root / d.cell.name / "checkpoints").is_dir()]
    full = next((each for each in kept if each.variant == next(iter(paper.VARIANTS))), None)
    if full is not None:
        return "evaluate", {"checkpoint": str(root / full.name), "data": "OTHER.csv"}
    models = [d.cell for d in scores.done if d.cell.kind == "pretrain"]
    if models:
        return "generate", {"checkpoint": str(root / models[0].name), "prompt": "it was"}
    return None


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    if rows:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file.getvalue()
