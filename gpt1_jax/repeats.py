"""Many runs of one config: a small grid first, then several seeds with what it chose. Every run is kept and listed.

::

    config.json                      what was asked for
    results.json                     all runs so far, written after each
    plots/                           the curves of all seeds, and their confusion matrices added up
    seed_<s>/                        the workdir of a run; with a sweep:
    sweep/<values>/seed_<s>/         <values> such as lr6.25e-05_batch32_epochs3_lambda0.5

The grid is run with the first seed and judged by the first metric of the validation split; the test split is not looked
at (`predict_test=False`) until a setting is chosen. The other seeds are run with that setting, and of the first seed's
run, which is there already, only the test split is missing. Median, minimum and maximum are over all seeds.

The same command again goes on: finished runs are not repeated, one that was stopped is resumed. Seeds and values may be
added then. Runs of one process share their compiled steps, as rates and lambda are inputs of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import logging

from gpt1_jax import agreement
from gpt1_jax.config import to_dict
from gpt1_jax.errors import InputError
from gpt1_jax.files import read_json
from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.plots.workdir import try_run_plots
from gpt1_jax.runs import MUTABLE, write_results
from gpt1_jax.text_table import aligned
from gpt1_jax.train import Diverged
from gpt1_jax.version import __version__
from gpt1_jax.workdir import has_checkpoint, open_workdir

Metrics = dict[str, dict[str, float]]
RunOne = Callable[[FinetuneConfig, Path], Metrics]

RESULTS = "results.json"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
      workdir: its folder, below that of all.
      seed: its seed.
      point: its values on the axes of a sweep.
      metrics: {split: {metric: value}} of its best checkpoint; None if it diverged.
      predict_train: whether the training split is among them.
      predict_test: whether the test splits are, as far as they have labels.
    """

    workdir: str
    seed: int
    point: dict[str, float]
    metrics: Metrics | None
    predict_train: bool
    predict_test: bool

    def covers(self, config: FinetuneConfig) -> bool:
        """Whether all that is asked for now was looked at."""
        return self.metrics is None or (
            self.predict_train >= config.predict_train and self.predict_test >= config.predict_test
        )

    def value(self, metric: tuple[str, str] | None) -> float:
        """What it is judged by; -inf where there is nothing."""
        split, name = metric or ("", "")
        value = (self.metrics or {}).get(split, {}).get(name, math.nan)
        return value if math.isfinite(value) else -math.inf


@dataclasses.dataclass(frozen=True)
class Repeats:
    """What came of all runs.

    Attributes:
      metric: (split, metric) that chooses; None without a validation split.
      sweep: the runs of the grid, the best first and on a tie in the order they were run; empty without a sweep.
      runs: the runs of the seeds.
    """

    metric: tuple[str, str] | None
    sweep: tuple[Run, ...]
    runs: tuple[Run, ...]

    @property
    def best(self) -> Run:
        """The best of `runs` by the metric; the first of those that are equal, or that did not diverge."""
        return max(self.runs, key=lambda run: (run.metrics is not None, run.value(self.metric)))

    @property
    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """{split: {metric: {"median", "min", "max"}}} over the seeds that did not diverge."""
        finished = [run.metrics for run in self.runs if run.metrics is not None]
        return {
            split: {name: _statistics([m[split][name] for m in finished]) for name in names}
            for split, names in (finished[0] if finished else {}).items()
            if all(split in metrics for metrics in finished)  # some were run when less was asked for
        }


def run(
    run_one: RunOne,
    config: FinetuneConfig,
    workdir: Path,
    *,
    init_from: str | Path | None,
    metric: tuple[str, str] | None,
) -> Repeats:
    """Does all runs that are not done yet.

    Args:
      run_one: (config, workdir) -> metrics of its labelled splits; it resumes what it finds in the workdir.
      config: asks for several seeds, a sweep, or both.
      workdir: of all of them.
      init_from: what they start from, for the record.
      metric: (split, metric) that chooses, larger is better; None if there is no labelled validation split.

    Raises:
      InputError: a sweep without a validation split, a workdir that cannot be used, or what a run raises.
      gpt1_jax.train.Diverged: all runs of the grid, or of the seeds, did. If only some did, they are listed so.
    """
    if config.is_swept and metric is None:
        raise InputError("sweep: a labelled validation split has to choose, and the task has none; name its files")
    record = {
        "version": __version__,
        "program": "finetune, repeated",
        "init_from": None if init_from is None else str(init_from),
        "config": to_dict(config),
    }
    begun = any(has_checkpoint(path.parent) for path in workdir.glob("**/config.json"))
    with open_workdir(
        workdir,
        record,
        mutable=(*MUTABLE, "config.seeds", "config.sweep"),
        made_from=None if begun else {},
        defaults={"config": to_dict(FinetuneConfig())},
    ) as opened:
        try:
            result = _run_all(run_one, config, workdir, metric)
        except InputError:
            opened.forget()
            raise
        if config.plots:
            try_run_plots(workdir)
        return result


def _run_all(run_one: RunOne, config: FinetuneConfig, workdir: Path, metric: tuple[str, str] | None) -> Repeats:
    known = _read(workdir / RESULTS)
    points = config.grid() if config.is_swept else []
    numbers = itertools.count(1)

    def done(stage: str, config: FinetuneConfig, name: str) -> Run:
        place = f"{next(numbers)} of {n_runs}"

        def is_known() -> bool:
            run = known.get((stage, name))
            return run is not None and run.covers(config) and (workdir / name).is_dir()

        if not all(agreement.on_each(is_known)):
            logging.info("%s", f" {place}: {name} ".center(80, "-"))
            metrics = _metrics_or_none(run_one, config, workdir / name)
            asked = {"predict_train": config.predict_train, "predict_test": config.predict_test}
            known[stage, name] = Run(name, config.seed, config.point(), metrics, **asked)
            stages = {s: tuple(run for (of, _), run in known.items() if of == s) for s in ("sweep", "runs")}
            _write(workdir, Repeats(metric, **stages), finished=False)
        return known[stage, name]

    n_runs = len(points) + config.seeds
    chosen, parent, sweep = config.single(config.seed), "", []
    if config.is_swept:
        grid = {f"sweep/{_name(point)}/": dataclasses.replace(point, predict_test=False) for point in points}
        sweep = [done("sweep", point, f"{folder}seed_{config.seed}") for folder, point in grid.items()]
        sweep.sort(key=lambda run: -run.value(metric))
        _refuse_if_all_diverged(sweep)
        parent = sweep[0].workdir.removesuffix(f"seed_{config.seed}")
        chosen = dataclasses.replace(grid[parent], predict_test=config.predict_test)
        logging.info("the best of the sweep is %s", parent)
    seeds = range(config.seed, config.seed + config.seeds)
    runs = [done("runs", dataclasses.replace(chosen, seed=seed), f"{parent}seed_{seed}") for seed in seeds]
    _refuse_if_all_diverged(runs)
    result = Repeats(metric, tuple(sweep), tuple(runs))
    _write(workdir, result, finished=True)
    return result


def table(repeats: Repeats) -> str:
    """The runs as text: the sweep, the best first; then every metric over the seeds."""
    parts = []
    if repeats.sweep and repeats.metric:
        split, name = repeats.metric
        rows: list[tuple[str, ...]] = [(*repeats.sweep[0].point, f"{split} {name}")]
        for run in repeats.sweep:
            value = "diverged" if run.metrics is None else f"{run.metrics[split][name]:.4f}"
            rows.append((*map(repr, run.point.values()), value))
        parts.append(f"sweep, seed {repeats.sweep[0].seed}; the best is first\n" + "\n".join(aligned(rows)))
    diverged = [run.seed for run in repeats.runs if run.metrics is None]
    of_seed = {run.seed: run.metrics for run in repeats.runs if run.metrics is not None}
    rows = [("", "median", "min", "max", *(f"seed {seed}" for seed in of_seed))]
    for split, summary in repeats.summary.items():
        for name, numbers in summary.items():
            values = (*numbers.values(), *(metrics[split][name] for metrics in of_seed.values()))
            rows.append((f"{split} {name}", *(f"{value:.4f}" for value in values)))
    parts.append("\n".join(aligned(rows)) + (f"\ndiverged: seeds {diverged}" if diverged else ""))
    return "\n\n".join(parts)


def _metrics_or_none(run_one: RunOne, config: FinetuneConfig, workdir: Path) -> Metrics | None:
    try:
        return run_one(config, workdir)
    except Diverged as error:
        logging.error("%s: %s", workdir, error)
        return None


def _refuse_if_all_diverged(runs: Sequence[Run]) -> None:
    if all(run.metrics is None for run in runs):
        raise Diverged(f"all of {[run.workdir for run in runs]} diverged; lower optimizer.learning_rate")


def _name(config: FinetuneConfig) -> str:
    point = config.point()
    return "lr{learning_rate!r}_batch{batch_size}_epochs{epochs}_lambda{lm_coef!r}".format(**point)


def _statistics(values: Sequence[float]) -> dict[str, float]:
    finite = [value for value in values if math.isfinite(value)] or [math.nan]
    return {"median": statistics.median(finite), "min": min(finite), "max": max(finite)}


def _write(workdir: Path, repeats: Repeats, *, finished: bool) -> None:
    facts = {"finished": finished, **to_dict(repeats), "summary": repeats.summary}
    write_results(workdir, {**facts, "best": repeats.best.workdir if repeats.runs else None})


def _read(path: Path) -> dict[tuple[str, str], Run]:
    """The runs that results.json knows, by stage and workdir."""
    if not path.exists():
        return {}
    try:
        stored = read_json(path, "the results of several runs")
        runs = [(stage, _with_nan(Run(**entry))) for stage in ("sweep", "runs") for entry in stored[stage]]
    except (InputError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} does not list runs ({error!r}): delete it; what is finished is then evaluated again, not trained"
        ) from error
    return {(stage, run.workdir): run for stage, run in runs}


def _with_nan(run: Run) -> Run:
    """JSON has null for what is no number."""
    if run.metrics is None:
        return run
    metrics = {
        split: {name: math.nan if value is None else value for name, value in values.items()}
        for split, values in run.metrics.items()
    }
    return dataclasses.replace(run, metrics=metrics)
