"""The quick start's report: what was done and what came of it, as one HTML file that needs nothing else.

It is written for someone who sees the project for the first time. The sentences about the outcome are computed from
the numbers, and say so when pre-training did not help. The page loads nothing from anywhere and runs no script.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plots
from outcome import NAMES, accuracies, comparisons, headline, summary, summary_table

from gpt1_jax.plots.curves import points_of
from gpt1_jax.report.page import (
    DASH,
    Section,
    count,
    decimal,
    duration,
    facts,
    figure,
    key,
    large,
    note,
    number,
    percent,
    points,
    table,
    text,
    write_page,
)

__all__ = ["headline", "summary", "summary_table", "write_report"]

STAGES = {
    "data": "Preparing the data",
    "pretrain": "Tokenizer and pre-training",
    "finetune": "Fine-tuning: choosing learning rate and epochs, then all seeds and their test",
    "generate": "Generating text",
}
ENVIRONMENT = {"gpt1_jax": "gpt1-jax", "jax": "JAX", "python": "Python", "backend": "Backend", "devices": "Devices"}


def write_report(results: Mapping[str, Any], curves: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes the page.

    Args:
      results: what `launch/quickstart` gathers: `data`, `pretrain`, `grid`, `runs`, `samples`, `seconds` and
        `environment`. A measurement that is missing, null or not a number shows as a dash.
      curves: the lines of the pre-training run's `metrics.jsonl`.
      path: the file; it is replaced as a whole or not at all.

    Raises:
      gpt1_jax.errors.InputError: the folder of `path` cannot be made.
    """
    sections = (
        Section("result", "The result", _result(results)),
        Section("pretraining", "Pre-training", _pretraining(results, curves)),
        Section("samples", "What it writes", _samples(results)),
        Section("next", "Go on from here", _next(results)),
        Section("settings", "How the settings were chosen", _grid(results)),
        Section("runs", "Every run", _runs(results)),
        Section("data", "The data", _data(results)),
        Section("time", "Time", _time(results)),
        Section("setup", "Set-up", _setup(results)),
    )
    write_page(path, headline(results), sections, about="quick start", lead=_lead(results))


def _lead(results: Mapping[str, Any]) -> str:
    """The outcome in full, and what was done in three sentences."""
    data, parameters = _part(results, "data"), _part(results, "pretrain").get("parameters")
    n_test = count(data.get("test"))
    pairs = [pair for pair in comparisons(results) if pair.gain is not None]
    outcome = ""
    if pairs:
        outcome = f"That is the median of {_seeds(results)}, with {_labels(results, pairs[-1].n_labels)}."
        for pair in reversed(pairs[:-1]):
            outcome += (
                f" With {_labels(results, pair.n_labels)} it is {percent(pair.pretrained['median'])} with "
                f"pre-training and {percent(pair.scratch['median'])} without ({points(pair.gain, sign=True)})."
            )
        outcome = f'<p class="lead">{text(outcome)}</p>\n'
    done = (
        f"A small GPT-1 ({large(parameters)} parameters) first learned to predict the next token, a word or a piece of "
        f"one, in {count(data.get('pretraining_documents'))} movie reviews and sentences, without seeing any label. "
        "It was then fine-tuned to tell positive from negative Rotten Tomatoes sentences, and so was a twin that "
        f"started from random numbers. Both were tested on {n_test} sentences that were used for nothing else: not to "
        "pre-train, not to build the tokenizer, not to choose a setting."
    )
    return f"{outcome}<p>{text(done)}</p>"


def _result(results: Mapping[str, Any]) -> str:
    pairs = comparisons(results)
    if not pairs:
        return note("No final run was recorded.")
    n_test = number(_part(results, "data").get("test"))
    rows = [[count(pair.n_labels), _side(pair.scratch), _side(pair.pretrained), _gain(pair.gain)] for pair in pairs]
    result = table(
        ["Labels", *(key(start, name) for start, name in NAMES.items()), "Gain, points"],
        rows,
        kind="result",
        caption=f"Accuracy on the {count(n_test)} test sentences in percent: the median of {text(_seeds(results))}; "
        "below it the lowest and the highest.",
    )
    groups = [
        (
            _labels(results, pair.n_labels),
            "" if pair.gain is None else points(pair.gain, sign=True),
            {start: [100 * x for x in accuracies(results, pair.n_labels, start)] for start in NAMES},
        )
        for pair in pairs
    ]
    dots = plots.accuracy_plot(groups, f"accuracy on {count(n_test)} test sentences (%)")
    certainty = "Gains are computed before rounding."
    if n_test:
        accuracy = (pairs[-1].pretrained or pairs[-1].scratch)["median"]
        error = 100 * math.sqrt(accuracy * (1 - accuracy) / n_test)
        certainty = (
            f"How sure is this? One test sentence is worth {100 / n_test:.2f} points. {count(n_test)} other sentences "
            f"would move an accuracy by {error:.1f} points or so (one standard error); in part they would move both "
            f"sides together. {certainty}"
        )
    caption = "Each dot is a run; none is left out. The bar, and the number, is the median."
    return f'<div class="pair">{result}{figure(dots, caption)}</div>{note(certainty)}'


def _pretraining(results: Mapping[str, Any], curves: Sequence[Mapping[str, Any]]) -> str:
    pretrain = _part(results, "pretrain")
    metrics = _part(pretrain, "metrics")
    tiles = (
        (large(pretrain.get("parameters")), "parameters"),
        (large(pretrain.get("tokens")), "tokens read"),
        (duration(pretrain.get("seconds")), "tokenizer and training"),
        (decimal(metrics.get("loss"), 2), "held-out loss"),
        (decimal(metrics.get("perplexity"), 1), "held-out perplexity"),
        (decimal(metrics.get("bits_per_byte"), 2), "held-out bits per byte"),
    )
    listed = "".join(f"<li><strong>{value}</strong><span>{name}</span></li>" for value, name in tiles)
    names = ("loss", "heldout_loss", "learning_rate", "heldout_perplexity", "heldout_bits_per_byte")
    of = {name: points_of(curves, name) for name in names}
    loss = plots.loss_plot(of["loss"], of["heldout_loss"], of["learning_rate"])
    perplexity = plots.perplexity_plot(of["heldout_perplexity"], of["heldout_bits_per_byte"])
    figures = figure(
        loss,
        "Loss is how surprised the model is by the next token. Held-out documents are never trained on.",
    ) + figure(
        perplexity,
        "A perplexity of 50 means: as unsure as between 50 equally likely tokens. Bits per byte does not depend on the "
        "tokenizer: knowing nothing is 8, and less is better.",
    )
    return f'<ul class="tiles">{listed}</ul>\n<div class="pair">{figures or note("No curve was recorded.")}</div>'


def _samples(results: Mapping[str, Any]) -> str:
    samples = results.get("samples") or ()
    if not samples:
        return note("No text was generated.")
    shown = []
    for sample in samples:
        prompt, written = str(sample.get("prompt") or ""), str(sample.get("text") or "")
        if written.casefold().startswith(prompt.casefold()):  # the tokenizer may have folded its case
            written = written[len(prompt) :]
        begin = f'<b class="prompt">{text(prompt)}</b>' if prompt else ""
        shown.append(f'<p class="sample">{begin}{text(written) or "<i>(ended here)</i>"}</p>')
    about = (
        "Written by the pre-trained model, before any fine-tuning. The marked beginning was given to it; the rest is "
        "its own. It is tiny and has read for minutes: expect the sound of a review, not the sense."
    )
    return f"{note(about)}\n" + "\n".join(shown)


def _next(results: Mapping[str, Any]) -> str:
    """Commands to try; run from the repository."""
    model = str(_part(results, "pretrain").get("workdir") or "quickstart/pretrain")
    runs = [run for run in results.get("runs") or () if run["start"] == "pretrained" and run.get("workdir")]
    tuned = max(runs, key=lambda run: run["n_labels"], default=None)
    commands = [("Let it write more", _command("generate", checkpoint=model, prompt="the plot", samples=3, top_k=40))]
    if tuned:
        commands.append(
            (
                "Test a fine-tuned model on your own sentences: a CSV with columns text and label (negative, positive)",
                _command("evaluate", checkpoint=tuned["workdir"], data="mine.csv"),
            )
        )
    config = {"train": "mine.csv", "fields.text": "text", "label": "label"}
    commands += [
        (
            "Fine-tune the pre-trained model on your own labels",
            _command(
                "finetune",
                config="configs/finetune.py:custom",
                **{f"config.task.{name}": value for name, value in config.items()},
                **{"config.optimizer.learning_rate": tuned["learning_rate"] if tuned else 5e-4},
                init_from=model,
                workdir="runs/mine",
            ),
        ),
        (
            "Pre-train a larger model on your own text, on a GPU or TPU",
            _command(
                "pretrain",
                config="configs/pretrain.py:small",
                **{"config.source": "text:books/**/*.txt"},
                workdir="runs/books",
            ),
        ),
    ]
    parts = [f"<h3>{text(purpose)}</h3>\n<pre><code>{text(command)}</code></pre>" for purpose, command in commands]
    return note("In the repository, after <code>source .venv/bin/activate</code>:") + "\n".join(parts)


def _grid(results: Mapping[str, Any]) -> str:
    cells = {(p["n_labels"], p["learning_rate"], p["epochs"], p["start"]): p for p in results.get("grid") or ()}
    if not cells:
        return note("No grid was recorded.")
    n_validation = count(_part(results, "data").get("validation"))
    rows = []
    for n_labels, learning_rate, epochs in sorted({cell[:3] for cell in cells}):
        row = [count(n_labels), f"{learning_rate:g}", count(epochs)]
        for start in NAMES:
            cell = cells.get((n_labels, learning_rate, epochs, start), {})
            value = decimal(cell.get("validation_accuracy"), 1, scale=100)
            row.append(f'<mark title="chosen">✓ {value}</mark>' if cell.get("chosen") else value)
        rows.append(row)
    about = (
        "Both sides tried the same values, and each kept those that did best on the validation sentences (✓). The test "
        "sentences had no say. Where the best is at the edge of what was tried, a wider search may do better still: "
        "the grid is as long as a few minutes allow, and a model from scratch needs more epochs than a pre-trained one."
    )
    head = ["Labels", "Learning rate", "Epochs", *(key(start, name) for start, name in NAMES.items())]
    caption = f"Accuracy on the {n_validation} validation sentences in percent."
    return note(about) + table(head, rows, kind="grid", caption=caption)


def _runs(results: Mapping[str, Any]) -> str:
    sides = list(NAMES)
    runs = sorted(results.get("runs") or (), key=lambda run: (run["n_labels"], sides.index(run["start"]), run["seed"]))
    if not runs:
        return note("No final run was recorded.")
    rows = [
        [
            key(run["start"], NAMES[run["start"]]),
            count(run["n_labels"]),
            count(run["seed"]),
            decimal(run.get("test_accuracy"), 1, scale=100),
            decimal(run.get("test_f1"), 1, scale=100),
            f"{run['learning_rate']:g}",
            count(run["epochs"]),
            f"<code>{text(run.get('workdir') or DASH)}</code>",
        ]
        for run in runs
    ]
    head = ["Side", "Labels", "Seed", "Accuracy, %", "F1, %", "Learning rate", "Epochs", "Folder"]
    return table(head, rows, kind="runs", caption="Accuracy and F1 on the test sentences.", words=(0, 7))


def _data(results: Mapping[str, Any]) -> str:
    data = _part(results, "data")
    return facts(
        [
            ("Documents for pre-training, without labels", count(data.get("pretraining_documents"))),
            ("Left out of them because they contain a test sentence", count(data.get("excluded_documents"))),
            ("Labelled sentences for training", count(data.get("train"))),
            ("Validation sentences, which choose settings and checkpoints", count(data.get("validation"))),
            ("Test sentences: the held-out tenth", count(data.get("test"))),
            ("Source", text(data.get("source") or DASH)),
        ]
    )


def _time(results: Mapping[str, Any]) -> str:
    seconds = {name: number(value) for name, value in _part(results, "seconds").items()}
    total = sum(value or 0 for value in seconds.values())
    if not total:
        return note("No time was recorded.")
    rows = [
        [
            text(STAGES.get(name, name)),
            duration(value),
            f'<span class="bar" style="width:{100 * (value or 0) / total:.1f}%"></span>',
        ]
        for name, value in seconds.items()
    ]
    rows.append(["Together", f"<strong>{duration(total)}</strong>", ""])
    return table((), rows, kind="time", words=(0, 2))


def _setup(results: Mapping[str, Any]) -> str:
    environment, pretrain = _part(results, "environment"), _part(results, "pretrain")
    rows = [(text(ENVIRONMENT.get(name, name)), text(environment[name])) for name in environment]
    rows += [
        ("Parameters of the model", count(pretrain.get("parameters"))),
        ("Tokens read in pre-training", count(pretrain.get("tokens"))),
        ("Pre-trained model", f"<code>{text(pretrain.get('workdir') or DASH)}</code>"),
    ]
    used = {(run["n_labels"], run["start"], run["learning_rate"], run["epochs"]) for run in results.get("runs") or ()}
    for n_labels, start, learning_rate, epochs in sorted(used):
        rows.append(
            (
                text(f"Fine-tuned {NAMES[start]}, {_labels(results, n_labels)}"),
                f"learning rate {learning_rate:g}, {count(epochs)} epochs",
            )
        )
    seeds = sorted({run["seed"] for run in results.get("runs") or ()})
    rows.append(("Seeds", text(", ".join(map(str, seeds)) or DASH)))
    about = "Each run's folder holds its whole configuration in <code>config.json</code>."
    return facts(rows) + note(about)


def _command(program: str, **flags: Any) -> str:
    """A command line, a flag a line."""
    lines = [f"python launch/{program}.py", *(f"--{name}={shlex.quote(str(value))}" for name, value in flags.items())]
    return " \\\n  ".join(lines)


def _part(results: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return results.get(name) or {}


def _side(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return DASH
    low, high = (decimal(row[name], 1, scale=100) for name in ("min", "max"))
    return f"<strong>{decimal(row['median'], 1, scale=100)}</strong><small>{low}–{high}</small>"


def _gain(gain: float | None) -> str:
    return DASH if gain is None else f"<strong>{text(points(gain, sign=True).split()[0])}</strong>"


def _labels(results: Mapping[str, Any], n_labels: int) -> str:
    """`500 labels`, `all 6,908 labels`."""
    return f"{'all ' if n_labels == _part(results, 'data').get('train') else ''}{count(n_labels)} labels"


def _seeds(results: Mapping[str, Any]) -> str:
    """`3 seeds`, `2–3 seeds`: how many runs a median is of."""
    sizes = [len(accuracies(results, row["n_labels"], row["start"])) for row in summary(results)]
    low, high = min(sizes), max(sizes)
    return f"{low if low == high else f'{low}{DASH}{high}'} {'seed' if high == 1 else 'seeds'}"
