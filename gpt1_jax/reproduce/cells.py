"""One cell of a reproduction: whether it is done, how it is run, and what is kept of it.

A cell's folder is the workdir of its run, or has the points of a zero-shot curve. `cell.json` in it says what the cell
is and, once it is done, its scores::

    {"config": ..., "init_from": ..., "finished": true, "seconds": ..., "diverged": null, "scores": [...]}

A cell that is done is not run again; one that was stopped goes on where its workflow was; one whose settings have
changed is refused once there is a checkpoint, or a point of a curve.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from gpt1_jax import agreement, evaluate, finetune, pretrain
from gpt1_jax.config import to_dict
from gpt1_jax.files import read_json, write_json
from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.pretrain import PretrainConfig
from gpt1_jax.pretrained import format_of
from gpt1_jax.reproduce.plan import Cell, ZeroShotConfig
from gpt1_jax.reproduce.tasks import Scored
from gpt1_jax.runs import MUTABLE
from gpt1_jax.tasks.examples import load_examples
from gpt1_jax.tasks.predictions import read_predictions
from gpt1_jax.tasks.zero_shot import make_heuristic
from gpt1_jax.tasks.zero_shot_spec import zero_shot_spec
from gpt1_jax.train import Diverged
from gpt1_jax.workdir import check_same_run, finished_steps, has_checkpoint, read_config, with_defaults

RECORD = "cell.json"
POINTS = "points.json"
MUTABLE_CELL = tuple(name for name in MUTABLE if not name.startswith("config.predict"))
"""What may differ when a cell is gone on with, or kept; whether a split is predicted changes what there is of it."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A number that a cell came to.

    Attributes:
      title: of the column it belongs to.
      split: of the examples.
      metric: a name of `gpt1_jax.tasks.metrics`.
      value: in percent.
      examples: how many it is of; 0 where that is not told.
      step: updates of pre-training before it, for zero-shot; else None.
      classes: of which one is right; 0 where that is not told, or it is no question of classes.
    """

    title: str
    split: str
    metric: str
    value: float
    examples: int = 0
    step: int | None = None
    classes: int = 0


@dataclasses.dataclass(frozen=True)
class Done:
    """A cell that was run.

    Attributes:
      cell: which.
      seconds: what it took.
      scores: what it came to.
      diverged: the message, if its loss was no number any more; there are no scores then.
    """

    cell: Cell
    seconds: float
    scores: tuple[Score, ...]
    diverged: str | None = None


def read_done(cell: Cell, root: Path) -> Done | None:
    """What is kept of a cell; None where it is not done. Only process 0 reads.

    Raises:
      InputError: the cell was begun with other settings; they are named.
    """
    stored = agreement.on_first(lambda: _read(cell, root))
    if not stored or not stored["finished"]:
        return None
    scores = tuple(Score(**score) for score in stored["scores"])
    return Done(cell, stored["seconds"], scores, stored["diverged"])


def run_cell(cell: Cell, root: Path, wanted: Sequence[Scored], *, keep_checkpoints: bool) -> Done:
    """Runs a cell, or goes on with it.

    Args:
      cell: which.
      root: the folder of all cells.
      wanted: what a fine-tuning run is scored by.
      keep_checkpoints: of a finished fine-tuning run.

    Raises:
      InputError: something about it cannot be used.
      gpt1_jax.train.Interrupted: SIGTERM or Ctrl-C; saved.
    """
    folder = root / cell.name
    record = _record(cell)
    agreement.on_first(lambda: _begin(folder, record))
    start = time.monotonic()
    diverged: str | None = None
    scores: Sequence[Score] = ()
    try:
        scores = _RUN[cell.kind](cell, root, wanted)
    except Diverged as error:
        logging.error("%s: %s", cell.name, error)
        diverged = str(error)
    done = Done(cell, time.monotonic() - start, tuple(scores), diverged)
    ended = {"finished": True, "seconds": done.seconds, "diverged": diverged, "scores": [*map(to_dict, done.scores)]}
    agreement.on_first(lambda: write_json(folder / RECORD, {**record, **ended}))
    if cell.kind == "finetune" and not keep_checkpoints:
        agreement.on_first(lambda: shutil.rmtree(folder / "checkpoints", ignore_errors=True))
    return done


def model_of(cell: Cell, root: Path) -> str | None:
    """Where the model is that a cell starts from."""
    return str(root / cell.init_from) if cell.needs and cell.init_from else cell.init_from


def _record(cell: Cell) -> dict[str, Any]:
    return json.loads(json.dumps({"config": to_dict(cell.config), "init_from": cell.init_from}))


def _read(cell: Cell, root: Path) -> dict[str, Any] | None:
    path = root / cell.name / RECORD
    if not path.exists():
        return None
    stored, record = read_json(path, "the record of a cell"), _record(cell)
    if not stored["finished"] and not has_checkpoint(path.parent) and not (path.parent / POINTS).exists():
        return None  # nothing has come of these settings: others may replace them
    defaults = {} if isinstance(cell.config, ZeroShotConfig) else {"config": to_dict(type(cell.config)())}
    check_same_run(path.parent, with_defaults(stored, record, defaults), {**stored, **record}, MUTABLE_CELL)
    return stored


def _begin(folder: Path, record: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, {**record, "finished": False})


def _pretrain(cell: Cell, root: Path, wanted: Sequence[Scored]) -> list[Score]:
    del wanted
    config = cell.config
    assert isinstance(config, PretrainConfig)
    if cell.needs and config.tokenizer.path == cell.init_from:
        tokenizer = dataclasses.replace(config.tokenizer, path=model_of(cell, root))
        config = dataclasses.replace(config, tokenizer=tokenizer)
    result = pretrain.run(config, root / cell.name)
    perplexity = result.metrics.get("heldout_perplexity")
    return [] if perplexity is None else [Score("pre-training", "heldout", "perplexity", perplexity)]


def _finetune(cell: Cell, root: Path, wanted: Sequence[Scored]) -> list[Score]:
    config = cell.config
    assert isinstance(config, FinetuneConfig)
    workdir = root / cell.name
    metrics = finetune.run(config, workdir, model_of(cell, root)).metrics
    found = agreement.on_first(lambda: [to_dict(s) for s in _scores(workdir, metrics, wanted, config.predict_train)])
    return [Score(**score) for score in found]


def _scores(
    workdir: Path, metrics: Mapping[str, Mapping[str, float]], wanted: Sequence[Scored], with_train: bool
) -> list[Score]:
    """What is wanted of a run's splits; of the training split the same."""
    sizes = read_json(workdir / "results.json", "the results of a run")["splits"]
    n_classes = len(read_config(workdir)["readout"]["labels"])
    wanted = list(wanted)
    if with_train:
        wanted += [Scored(each.title, "train", each.metric) for each in wanted if not each.ids][:1]
    scores = []
    for each in wanted:
        if each.ids:
            lines = read_predictions(workdir / "predictions" / f"{each.split}.jsonl")
            right = [line.label == line.gold for line in lines if line.id.startswith(each.ids)]
            value, n = (sum(right) / len(right) if right else None), len(right)
        else:
            value, n = metrics[each.split].get(each.metric), sizes[each.split]["examples"]
        if value is not None:
            scores.append(Score(each.title, each.split, each.metric, 100 * value, n, classes=n_classes))
    return scores


def _zero_shot(cell: Cell, root: Path, wanted: Sequence[Scored]) -> list[Score]:
    """A point for every checkpoint that is kept; those that are there already are not made again."""
    del wanted
    config, checkpoint = cell.config, model_of(cell, root)
    assert isinstance(config, ZeroShotConfig)
    assert checkpoint is not None, "a curve is of a model"
    path = root / cell.name / POINTS
    points = agreement.on_first(lambda: read_json(path, "the points of a curve") if path.exists() else {})
    for step in agreement.on_first(lambda: kept_steps(checkpoint, config.every)):
        if str(step) in points:
            continue
        asked = evaluate.EvaluateConfig(
            zero_shot=config.heuristic,
            task=config.task,
            label_words=config.label_words,
            splits=(config.scored.split,),
            step=step,
            batch_size=config.batch_size,
            mesh=config.mesh,
        )
        logging.info("%s, step %s", cell.name, "the last" if step is None else step)
        metrics = evaluate.run(checkpoint, asked)[config.scored.split]
        points[str(step)] = metrics
        agreement.on_first(lambda: write_json(path, points))
    metric, split = config.scored.metric, config.scored.split
    spec = zero_shot_spec(make_heuristic(config.heuristic, config.label_words), task=config.task, own=None)
    n_examples = agreement.on_first(lambda: len(load_examples(spec, [split])[split]))
    return [
        Score(
            config.scored.title,
            split,
            metric,
            100 * metrics[metric],
            n_examples,
            step=None if step == "None" else int(step),
        )
        for step, metrics in points.items()
        if metrics.get(metric) is not None
    ]


def kept_steps(checkpoint: str, every: int) -> list[int | None]:
    """The checkpoints of a model that a curve has points of: those whose step divides by `every`, and the last; None
    alone for weights without a history.
    """
    if format_of(checkpoint) != "gpt1_jax":
        return [None]
    steps = finished_steps(Path(checkpoint))
    if not steps:
        return [None]
    return [step for step in steps if step == steps[-1] or (every and step % every == 0)]


_RUN = {"pretrain": _pretrain, "finetune": _finetune, "zero_shot": _zero_shot}
