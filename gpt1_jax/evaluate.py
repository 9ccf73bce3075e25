"""Evaluation: perplexity and bits per byte of text, predictions and metrics of a task.

`run(checkpoint)` does what `launch/evaluate.py` does; `predict` labels Python values with a fine-tuned model.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jax.sharding import Mesh

from gpt1_jax import agreement
from gpt1_jax.config import check_fields, from_config
from gpt1_jax.data.encode import EncodedSplit, encode_split
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.shards import TokenShards
from gpt1_jax.data.split import Split
from gpt1_jax.data.windows import heldout_windows
from gpt1_jax.errors import InputError, counted, quoted
from gpt1_jax.files import make_directory
from gpt1_jax.losses import LossConfig
from gpt1_jax.mirror import copy_of
from gpt1_jax.model import GPT1, ReadOut
from gpt1_jax.outcome import PartialPredictions, write_outcome, write_zero_shot
from gpt1_jax.pretrained import Params, format_of, load_pretrained
from gpt1_jax.sharding import MeshConfig, check_mesh, make_mesh, one_device_mesh, param_shardings, place, row_blocks
from gpt1_jax.task_data import encode_task_split, shared_buckets
from gpt1_jax.task_evaluator import TaskEvaluator, task_metrics
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.examples import load_examples, make_examples
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.tasks.zero_shot import make_heuristic
from gpt1_jax.tasks.zero_shot_predict import zero_shot_task
from gpt1_jax.tasks.zero_shot_spec import zero_shot_spec
from gpt1_jax.text_evaluator import TextEvaluator
from gpt1_jax.text_table import aligned
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.tokenizers.protocol import check_tokenizer
from gpt1_jax.workdir import read_config


def predict(
    model: GPT1,
    params: Params,
    tokenizer: Tokenizer,
    examples: Sequence[str | Mapping[str, Any]],
    *,
    batch_size: int = 32,
) -> tuple[list[str] | list[float], np.ndarray]:
    """Labels examples with a fine-tuned model, or gives them scores.

    Args:
      model: a model with a readout, as `load_pretrained` gives it for a fine-tuning workdir.
      params: its parameters.
      tokenizer: its tokenizer.
      examples: texts (classification), or mappings of the kind's fields: {"premise", "hypothesis"}, {"text_a",
        "text_b"}, {"context", "question", "answers"}.
      batch_size: examples worked off at a time.

    What does not fit into n_ctx is cut as in training (see `tasks.transforms`), with a warning.

    Returns:
      the label names (for multiple choice without names: the answer's number), and probabilities float64 [N, K]. Of a
      task of scores: the scores, floats, and an array [N, 0], since there are no classes.

    Raises:
      InputError: the model has no task head, a field is missing, or an example does not fit the model.
    """
    split = encode_examples(model, tokenizer, examples)
    if split.n_truncated:
        logging.warning(
            "%d of %s did not fit into n_ctx=%d: cut, %s lost",
            split.n_truncated,
            counted(len(split), "example"),
            split.n_ctx,
            counted(split.n_cut, "token"),
        )
    mesh = one_device_mesh()
    predicted, _ = TaskEvaluator(model, mesh, split, batch_size=batch_size)(params)
    if split.has_scores:
        return predicted.tolist(), np.zeros((len(predicted), 0))
    labels = model.task_readout.labels
    best = predicted.argmax(axis=1)
    return [labels[i] if labels else str(i) for i in best], predicted


def encode_examples(model: GPT1, tokenizer: Tokenizer, examples: Sequence[str | Mapping[str, Any]]) -> EncodedSplit:
    """Encodes Python values for a fine-tuned model, as `predict` does.

    Raises:
      InputError: as `predict`.
    """
    if model.readout is None:
        raise InputError("this model has no task head; fine-tune it first, or load a fine-tuning workdir")
    if isinstance(examples, str | Mapping):
        raise InputError(f"examples={examples!r:.80} is a single example; give a list of them, such as [example]")
    if not hasattr(examples, "__len__"):
        raise InputError(f"examples={examples!r:.80} is a {type(examples).__name__}; give a list of examples")
    if len(examples) == 0:
        raise InputError("examples is empty; give at least one")
    check_tokenizer(tokenizer, model.config.vocab_size, "predict")
    kind = model.readout.kind
    return encode_split(
        make_examples(kind, examples),
        kind=kind,
        labels=model.readout.labels,
        scores=model.readout.score_range is not None,
        tokenizer=tokenizer,
        n_ctx=model.config.n_ctx,
        special_tokens=model.readout.read_at == "extract",
        name="examples",
    )


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """What to evaluate.

    Attributes:
      source: a text as in `PretrainConfig.source`; gives perplexity and bits per byte of any model. Empty: the run's
        own held-out text for a pre-trained model, its task for a fine-tuned one.
      splits: of the task; empty: its labelled validation splits.
      data: labelled files to evaluate instead of the task's splits; columns as in the run's own, or called like the
        kind's fields and "label" where the run was on a named data set. `task` names other columns.
      unlabelled: `data` has no labels: there are predictions, and no metrics.
      predictions: folder that gets the predictions of the task's splits or of `data`, and what else `outcome` lists;
        those of a task head batch by batch.
      zero_shot: asks the language model instead of a task head: a name in `tasks.zero_shot.ZERO_SHOT`, or a template
        such as "{text} It was {label}". Works with any checkpoint.
      task: zero-shot: the task, where it is not the run's own. What a custom task leaves out (fields, labels, metrics)
        and its kind are the heuristic's. Of a fine-tuned model: a custom task that says how `data` are read (fields,
        label and the like), in place of the run's own; kind, labels and metrics are the run's.
      label_words: zero-shot only: label name to the words that stand for it in the template.
      score: zero-shot only: "mean" or "total" log-probability, in place of the heuristic's own.
      step: checkpoint; None the best by the run's metric where it keeps one, else the latest.
      batch_size: rows worked off at a time.
      mesh: device mesh.
    """

    source: str = ""
    splits: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    unlabelled: bool = False
    predictions: str = ""
    zero_shot: str = ""
    task: TaskConfig | None = None
    label_words: dict[str, str] = dataclasses.field(default_factory=dict)
    score: str | None = None
    step: int | None = None
    batch_size: int = 32
    mesh: MeshConfig = MeshConfig()

    def __post_init__(self) -> None:
        """Checks the types; the ranges depend on the model."""
        check_fields(self)


@agreement.together()
def run(checkpoint: str | Path, config: Any = None) -> dict[str, Any]:
    """Evaluates the model in `checkpoint`.

    Returns:
      {"loss", "perplexity", "bits_per_byte"} for text; {split: {metric: value}} for the labelled splits of a task, and
      "threshold" beside the metrics where a zero-shot heuristic has one.

    Raises:
      InputError: something in the config, the files or the checkpoint cannot be used.
    """
    config = from_config(EvaluateConfig, config)
    agreement.check_equal(config)
    _check(config)
    given, checkpoint = str(checkpoint), copy_of(checkpoint)
    stored = read_config(checkpoint) if format_of(checkpoint) == "gpt1_jax" else {}
    if config.zero_shot:
        heuristic = make_heuristic(config.zero_shot, config.label_words, config.score)
        spec = zero_shot_spec(
            heuristic, task=config.task, own=_own_task(stored), data=config.data, unlabelled=config.unlabelled
        )
        names = _splits(config, spec)
    model, params, tokenizer = load_pretrained(checkpoint, step=config.step)
    if model.readout is None and not config.zero_shot:
        for field in ("splits", "predictions"):
            if value := getattr(config, field):
                raise InputError(
                    f"{field}={value!r}: {checkpoint} is a language model without a task head, of which a text is "
                    "evaluated; leave it out, or give zero_shot"
                )
    mesh = make_mesh(config.mesh)
    check_mesh(mesh, batch_size=config.batch_size, **model.config.mesh_sizes)
    params = place(params, param_shardings(model, mesh))
    if config.predictions:
        agreement.on_first(lambda: make_directory(Path(config.predictions), "predictions"))
    if config.zero_shot:
        found = zero_shot_task(
            model, params, tokenizer, spec, heuristic, names, batch_size=config.batch_size, mesh=mesh
        )
        if config.predictions:
            folder = Path(config.predictions)
            return write_zero_shot(folder, spec, found, checkpoint=given, zero_shot=config.zero_shot)
        return {split: result.summary for split, result in found.items()}
    if config.source or (model.readout is None and not config.data):
        return _evaluate_text(config, checkpoint, stored, model, params, tokenizer, mesh)
    if model.readout is None:
        raise InputError(
            f"{checkpoint} is a language model without a task head; give source=text:books/*.txt, or fine-tune it"
        )
    spec = _spec_for_head(config, checkpoint, stored, model.readout)
    names = _splits(config, spec)
    splits, predicted = {}, {}
    for name, examples in load_examples(spec, names).items():
        splits[name] = encode_task_split(
            spec, name, examples, model, tokenizer, max_text_tokens=stored.get("max_text_tokens")
        )
    buckets = shared_buckets(splits.values())
    agreement.ready()
    for name, split in splits.items():
        evaluator = TaskEvaluator(model, mesh, split, batch_size=config.batch_size, buckets=buckets)
        keep = PartialPredictions(Path(config.predictions), model.readout, split) if config.predictions else None
        predicted[name] = evaluator(params, keep)
    if config.predictions:
        folder = Path(config.predictions)
        return write_outcome(folder, spec, model.readout, splits, predicted, checkpoint=given)
    return {name: task_metrics(spec, splits[name], *predicted[name]) for name in predicted}


def _check(config: EvaluateConfig) -> None:
    """Refuses what does not go together."""
    if config.source and config.data:
        raise InputError(
            f"source={config.source!r} and data={list(config.data)}: give a text or labelled files, not both"
        )
    if config.source and config.zero_shot:
        raise InputError(f"source={config.source!r} and zero_shot={config.zero_shot!r}: one of the two is evaluated")
    if config.splits and (config.source or config.data):
        raise InputError(f"splits={list(config.splits)} are the task's, and source and data have none; leave one out")
    if not config.zero_shot and (config.label_words or config.score):
        raise InputError("label_words and score are for zero_shot, which is empty; give it, or leave them out")
    if not config.zero_shot and config.task and (not config.data or config.task.name != "custom"):
        raise InputError(
            f"task.name={config.task.name!r}: without zero_shot a task says how data are read, and is custom: give its "
            "data and columns, or zero_shot, or leave it out"
        )
    if config.unlabelled and not (config.data and config.predictions):
        raise InputError("unlabelled says that data has no labels, and predictions where they go; give both")
    if not config.predictions:
        return
    if config.source:
        raise InputError(
            f"predictions={config.predictions!r} are of labels, and source is a text; leave one of them out"
        )
    if (Path(config.predictions) / "config.json").exists():
        raise InputError(f"predictions={config.predictions!r} is the workdir of a run; name a folder of its own")


def _evaluate_text(
    config: EvaluateConfig,
    checkpoint: Path,
    stored: Mapping[str, Any],
    model: GPT1,
    params: Params,
    tokenizer: Tokenizer,
    mesh: Mesh,
) -> dict[str, float]:
    """The metrics of a text, or of the held-out part of the run's own."""
    if not config.source and not stored.get("config", {}).get("heldout_fraction"):
        raise InputError(f"{checkpoint} has no held-out text of its own; name one, such as source=text:books/*.txt")
    with tempfile.TemporaryDirectory() as scratch:
        if config.source:
            prepare_shards(config.source, tokenizer, scratch, split=Split(heldout_fraction=0.0))
            shards = TokenShards.open(scratch, "train")
        else:
            shards = TokenShards.open(stored["config"].get("shards") or checkpoint / "shards", "heldout")
        windows = heldout_windows(
            shards,
            n_ctx=model.config.n_ctx,
            batch_size=config.batch_size,
            **row_blocks(mesh),
        )
        loss = from_config(LossConfig, stored.get("config", {}).get("loss"))
        agreement.ready()
        return TextEvaluator(model, mesh, windows, loss=loss)(params)


def _own_task(stored: Mapping[str, Any]) -> TaskConfig | None:
    """The task that the run was on, with the labels that it learned; None of a run that had none."""
    record = stored.get("config", {}).get("task")
    if not record:
        return None
    task = from_config(TaskConfig, record, where="task")
    if task.name != "custom" or task.labels:
        return task
    return dataclasses.replace(task, labels=tuple(stored["readout"]["labels"]))


_READING = ("fields", "label", "id", "drop_labels", "allow_empty", "header", "quoting", "format", "repair")
"""Of a task: how files are read."""


def _spec_for_head(config: EvaluateConfig, checkpoint: Path, stored: Mapping[str, Any], readout: ReadOut) -> TaskSpec:
    """The task that the run was on, with other data where they are given."""
    task = _own_task(stored)
    if task is None:
        raise InputError(f"{checkpoint} says nothing of its task: give the workdir of the fine-tuning run itself")
    if config.data:
        if config.task:
            task = dataclasses.replace(task, **{name: getattr(config.task, name) for name in _READING})
        task = dataclasses.replace(
            task,
            name="custom",
            data="",
            kind=readout.kind,
            labels=readout.labels,
            score_range=readout.score_range or (),
            train=(),
            validation=(),
            test=config.data,
            unlabelled=("test",) if config.unlabelled else (),
            validation_fraction=0.0,
            test_fraction=0.0,
        )
    return make_spec(task)


def _splits(config: EvaluateConfig, spec: TaskSpec) -> tuple[str, ...]:
    """What is evaluated; refuses splits of which there would be no result."""
    names = ("test",) if config.data else config.splits or spec.validation_splits
    if not names:
        raise InputError(
            f"splits is empty, and the task has no validation split with labels; name some of {quoted(spec.splits)}, "
            "or give data"
        )
    unlabelled = [name for name in names if not spec.is_labelled(name)]
    if unlabelled and not config.predictions:
        raise InputError(
            f"splits: {unlabelled[0]!r} has no labels, so there are no metrics; give a folder for its predictions, "
            "such as predictions=out, or name another split"
        )
    return names


def results_table(results: Mapping[str, Any]) -> str:
    """Results as a text table."""
    rows = []
    for key, value in results.items():
        if isinstance(value, Mapping):
            rows += [(f"{key} {name}", number) for name, number in value.items()]
        else:
            rows.append((key, value))
    return "\n".join(aligned([(name, f"{value:.4f}") for name, value in rows], n_left=2))
