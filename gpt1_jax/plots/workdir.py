"""The pictures of a run, from what is in its workdir.

::

    plots/loss.png            training loss; held-out loss, or the losses of the task and of the language model
    plots/perplexity.png      perplexity of training, of the held-out text, and bits per byte (pre-training)
    plots/validation.png      the validation metrics after every epoch (fine-tuning), of all seeds
    plots/confusion_<split>.png   of all seeds together; of one run it is in reports/
    plots/gradient_norm.png   before clipping
    plots/speed.png           tokens per second and MFU

A run writes them at its end; `write_run_plots` does at any time, also of a run that is still going.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from absl import logging

from gpt1_jax.errors import InputError
from gpt1_jax.files import read_json
from gpt1_jax.metrics import FILE, read_metrics
from gpt1_jax.workdir import read_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = "plots"
"""The folder of a workdir."""


def try_run_plots(workdir: Path) -> None:
    """`write_run_plots` that does not end a run where it fails, but says so (process 0 only; all may call it)."""
    if jax.process_index() != 0:
        return
    try:
        write_run_plots(workdir)
    except Exception as error:
        logging.warning(
            "no plots of %s: %s: %s. The run itself is whole; python launch/plot.py --checkpoint=%s draws them again",
            workdir,
            type(error).__name__,
            error,
            workdir,
        )


def write_run_plots(workdir: Path, folder: Path | None = None) -> list[Path]:
    """Draws everything that a run has logged.

    Args:
      workdir: of a run, or of several runs of one config.
      folder: where to; default `plots/` in the workdir.

    Returns:
      the files.

    Raises:
      InputError: the folder is no workdir, one of its files is damaged, or nothing is there to draw.
    """
    from gpt1_jax.plots import style

    figures = run_figures(workdir)
    if not figures:
        raise InputError(f"{workdir} has nothing to draw yet: there is no line with numbers in its {FILE}")
    written = []
    for name, figure in figures.items():
        path = (folder or workdir / PLOTS) / f"{name}.png"
        style.save(path, figure)
        written.append(path)
    return written


def run_figures(workdir: Path) -> dict[str, Figure]:
    """The figures of `write_run_plots` by the names of their files.

    Raises:
      InputError: as there.
    """
    from gpt1_jax.plots import classes, curves, finetuning

    config = read_config(workdir)
    program, results = config.get("program", ""), _results(workdir)
    if program == "finetune, repeated":
        runs = {f"seed {run['seed']}": workdir / run["workdir"] for run in results.get("runs") or ()}
        by_run = {name: read_metrics(path) for name, path in runs.items() if (path / FILE).exists()}
        finished = [report for path in runs.values() if (report := _results(path).get("reports"))]
        figures = {"loss": finetuning.loss_figure(by_run), "validation": finetuning.validation_figure(by_run)}
        for split, report in _summed(finished).items():
            figures[f"confusion_{split}"] = classes.confusion_figure(report, f"{split}, {len(finished)} seeds")
        return _drawn(figures)
    records = read_metrics(workdir)
    points = {
        name: curves.points_of(records, name)
        for name in ("loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu")
    }
    figures = {
        "gradient_norm": curves.gradient_norm_figure(points["grad_norm"]),
        "speed": curves.speed_figure(points["tokens_per_second"], points["mfu"]),
    }
    if program == "finetune":
        best = results.get("best_step")
        figures["loss"] = finetuning.loss_figure({"": records})
        figures["validation"] = finetuning.validation_figure({"": records}, best_step=best)
        for split, report in (results.get("reports") or {}).items():
            figures[f"confusion_{split}"] = classes.confusion_figure(report, split)
    else:
        heldout, perplexity, bits = (
            curves.points_of(records, f"heldout_{name}") for name in ("loss", "perplexity", "bits_per_byte")
        )
        figures["loss"] = curves.loss_figure(points["loss"], heldout, points["learning_rate"])
        figures["perplexity"] = curves.perplexity_figure(perplexity, bits, curves.exponentials(points["loss"]))
    return _drawn(figures)


def _drawn(figures: Mapping[str, Figure | None]) -> dict[str, Figure]:
    return {name: figure for name, figure in sorted(figures.items()) if figure is not None}


def _results(workdir: Path) -> dict[str, Any]:
    path = workdir / "results.json"
    return read_json(path, "the results of a run") if path.exists() else {}


def _summed(reports: list[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The confusion matrices of several runs added up, of those splits that all runs have with the same labels."""
    summed = {}
    for split in set.intersection(*map(set, reports)) if reports else ():
        labels = reports[0][split]["labels"]
        if all(report[split]["labels"] == labels for report in reports):
            columns = [report[split]["confusion"] for report in reports]
            counts = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*columns, strict=True)]
            summed[split] = {"labels": labels, "confusion": counts}
    return summed
