"""Fine-tuning (paper, sections 3.2-3.3): a pre-trained model and labelled examples in, a model of the task out.

    rows -> examples -> token streams -> L3 = L2 + lambda L1 -> the best checkpoint on the validation split

`run(config, workdir, init_from)` is the whole of it; started again on the same workdir it continues where it was. The
paper's recipe is the default; what `FinetuneConfig` has beside it are the variants of the paper (n_transfer, lm_coef=0)
and of the work after it (schedules of lambda, adapting to a domain, several seeds).
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optax
from absl import logging
from jax.sharding import Mesh

from gpt1_jax import agreement, repeats
from gpt1_jax.adapt import adapt, check_adapt
from gpt1_jax.config import from_config, to_dict
from gpt1_jax.data.class_weights import check_class_weights, with_class_weights
from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.labelled import TrainBatches, train_batches
from gpt1_jax.data.original import max_text_tokens, original_batches, shrunken_n_ctx
from gpt1_jax.errors import InputError
from gpt1_jax.finetune_config import AdaptConfig, FinetuneConfig, SweepConfig
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.frozen import frozen_objective, frozen_optimizer
from gpt1_jax.losses import LossConfig, Objective, task_batch_shapes, task_objective
from gpt1_jax.memory_estimate import MemoryEstimate, estimate_memory
from gpt1_jax.mirror import mirror, share
from gpt1_jax.model import GPT1, count_parameters
from gpt1_jax.optim import OptimizerConfig, make_lm_schedule, make_optimizer, make_schedule
from gpt1_jax.outcome import PartialPredictions, write_outcome
from gpt1_jax.plots.workdir import try_run_plots
from gpt1_jax.pretrained import Params, load_pretrained, model_record
from gpt1_jax.repeats import Repeats
from gpt1_jax.runs import check_sizes, describe_run, open_run, train
from gpt1_jax.sharding import check_mesh, make_mesh, row_blocks
from gpt1_jax.stop import stopping_at
from gpt1_jax.task_data import TaskData, shared_buckets
from gpt1_jax.task_evaluator import TaskEvaluator, task_metrics
from gpt1_jax.tasks.config import make_spec
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.tokenizers.protocol import find_marker
from gpt1_jax.train import JittedStep, LoopConfig, jit_train_step, make_train_step, state_shardings
from gpt1_jax.warm_start import StartingPoint, starting_point
from gpt1_jax.workdir import has_checkpoint
from gpt1_jax.zero import ShardedOverData, data_layout, is_sharded, sharded_over_data

__all__ = ["AdaptConfig", "FinetuneConfig", "FinetuneResult", "SweepConfig", "run"]


@dataclasses.dataclass(frozen=True)
class FinetuneResult:
    """What a finished run gives.

    Attributes:
      model: the model of the task.
      params: its parameters at the best epoch.
      tokenizer: its tokenizer.
      metrics: {split: {metric: value}} of the labelled splits at the best epoch; of the training split only with
        `predict_train`.
      repeats: with several seeds or a sweep, all runs; everything else here is then of the best of them by the first
        metric of the validation split.
    """

    model: GPT1
    params: Params
    tokenizer: Tokenizer
    metrics: dict[str, dict[str, float]]
    repeats: Repeats | None = None


@agreement.together()
def run(config: Any, workdir: str | Path, init_from: str | Path | None = None) -> FinetuneResult:
    """Fine-tunes, or goes on with the run that `workdir` holds.

    The labelled validation splits are evaluated after every epoch; the first metric of the first of them chooses the
    checkpoint that is kept as the best, the earliest on a tie. All other splits are looked at once, with that
    checkpoint: the test splits, those without labels and, with `predict_train`, the training split. A config that asks
    for several seeds or a sweep has a workdir for each run in this one, see `repeats`.

    Args:
      config: a `FinetuneConfig`, a mapping or a `ConfigDict`.
      workdir: gets config.json, tokenizer/, checkpoints/, metrics.jsonl, tensorboard/, plots/ and what `outcome` lists;
        with `config.adapt` also adapt/, the workdir of a pre-training run. It may be in a bucket, see `mirror`.
      init_from: what `load_pretrained` reads; None trains from scratch.

    Raises:
      InputError: something in the config, the data or the workdir cannot be used; before training starts.
      gpt1_jax.train.Interrupted: SIGTERM or Ctrl-C; saved.
      gpt1_jax.train.Diverged: the loss is not a number any more.
    """
    config = from_config(FinetuneConfig, config)
    agreement.check_equal(config)
    workdir = mirror(workdir)
    data, adapted_in = TaskData(make_spec(config.task)), workdir / "adapt"
    if not config.is_repeated:
        return _run(config, workdir, init_from, data, adapted_in)
    mesh, spec = make_mesh(config.mesh), data.spec
    for point in config.grid():  # before the first of many is begun
        check_mesh(mesh, batch_size=point.batch_size, accumulation_steps=point.accumulation_steps)

    def run_one(one: FinetuneConfig, workdir_of_one: Path) -> dict[str, dict[str, float]]:
        return _run(one, workdir_of_one, init_from, data, adapted_in).metrics

    metric = (spec.selection_split, spec.metrics[0]) if spec.selection_split else None
    repeated = repeats.run(run_one, config, workdir, init_from=init_from, metric=metric)
    metrics = repeated.best.metrics
    assert metrics is not None, "repeats.run refuses what diverged in all runs"
    return FinetuneResult(*load_pretrained(workdir / repeated.best.workdir), metrics, repeated)


@agreement.together()
def _run(
    config: FinetuneConfig, workdir: Path, init_from: str | Path | None, data: TaskData, adapted_in: Path
) -> FinetuneResult:
    """`run` of a single one; of several, all have the same `data`, and the model is adapted once, in `adapted_in`."""
    spec = data.spec
    if config.early_stopping and not spec.selection_split:
        raise InputError(
            f"early_stopping={config.early_stopping}: task {spec.name!r} has no labelled validation split to judge by; "
            "give one, or leave it out"
        )
    if config.adapt.source and init_from is None:
        raise InputError(
            f"adapt.source={config.adapt.source!r}: there is no model to adapt; give init_from, or pre-train on that "
            "text first"
        )
    check_adapt(config, adapted_in)
    mesh = make_mesh(config.mesh)
    start = _starting_point(config, init_from)
    drawn = [name for name in start.config.trunk_names if name not in (start.params or {})]
    if config.freeze != "none" and drawn:
        what = "the LSTM was not trained and stays as it is drawn"
        if start.config.trunk != "lstm":
            what = f"{len(drawn)} blocks were not trained and stay as they are drawn"
        logging.warning("freeze=%r: %s", config.freeze, what)
    check_sizes(config, start.config, mesh)
    readout = data.readout
    start, tokenizer = start.for_task(readout), start.tokenizer
    assert tokenizer is not None, "a task takes over the tokenizer of its model, or is given one"
    check_class_weights(config.class_weights, readout)
    splits, reading = None, {}
    if config.original_batches:  # the examples decide n_ctx, which config.json has to tell
        reading = {"max_text_tokens": max_text_tokens(start.config.n_ctx)}
        splits, start = _shrunken(data.encoded(GPT1(start.config, readout), tokenizer, **reading), start)
    model = GPT1(start.config, readout)
    best = {"best_metric": f"{spec.selection_split}_{spec.metrics[0]}"} if spec.selection_split else {}
    record = {
        "program": "finetune",
        **model_record(model),
        **reading,
        "best": best,
        "init_from": None if init_from is None else str(init_from),
        "config": to_dict(config),
    }
    with open_run(
        workdir,
        record,
        config_type=FinetuneConfig,
        made_from={"tokenizer": ("init_from", "config.tokenizer")},
        n_parameters=count_parameters(model.config, model.readout),
        n_checkpoints=3,
        require_accelerator=config.require_accelerator,
    ):
        if splits is None:
            splits = data.encoded(model, tokenizer)
        fixed = (model.config.n_ctx,) if config.original_batches else config.buckets
        buckets = shared_buckets(splits.values(), fixed, count=config.n_buckets, trained=True)
        weighted = with_class_weights(splits["train"], config.class_weights, readout)
        batches = _train_batches(config, weighted, model.config.n_embd, buckets, mesh)
        validations = [name for name in spec.validation_splits if name in splits]
        evaluators = {
            name: TaskEvaluator(model, mesh, split, batch_size=config.batch_size, buckets=buckets)
            for name, split in splits.items()
            if (config.predict_train if name == "train" else name in validations or config.predict_test)
        }

        def evaluate(params: Params) -> dict[str, float]:
            values = {name: task_metrics(spec, splits[name], *evaluators[name](params)) for name in validations}
            return {f"{name}_{metric}": value for name in validations for metric, value in values[name].items()}

        n_steps = config.epochs * batches.steps_per_epoch
        schedules = {
            "learning_rate": make_schedule(config.optimizer, n_steps),
            "lm_coef": make_lm_schedule(config.lm_coef, config.lm_coef_schedule, n_steps, config.lm_coef_drop),
        }
        agreement.on_first(lambda: _keep_tokenizer(tokenizer, workdir, init_from))  # after all that may be refused
        share(workdir)
        optimizer, train_step = jit_step(config, model, mesh)
        n_streams = int(splits["train"].n_streams.max())
        memory = _memory(config, model, mesh, n_streams, max(buckets))
        describe_run(
            workdir,
            mesh,
            model,
            memory=memory,
            shard_optimizer=isinstance(optimizer, ShardedOverData),
            n_steps=n_steps,
            learning_rate=schedules["learning_rate"],
            **{f"{name}_examples": len(split) for name, split in splits.items()},
        )
        if config.adapt.source and init_from is not None and not agreement.on_first(lambda: has_checkpoint(workdir)):
            start = start._replace(params=None)  # they would only take memory
            adapt(config, data.examples["train"], adapted_in, init_from)
            adapted = _starting_point(config, adapted_in).for_task(readout)
            start = start._replace(params=adapted.with_n_ctx(model.config.n_ctx).params)
        trained = train(
            workdir,
            model,
            optimizer,
            train_step,
            batches,
            schedules=schedules,
            n_steps=n_steps,
            mesh=mesh,
            loop=LoopConfig(
                log_every=config.log_every,
                eval_every=batches.steps_per_epoch,
                save_every=batches.steps_per_epoch,
                keep_latest=1,
            ),
            seed=config.seed,
            evaluate=evaluate if best else None,
            params=start.params,
            best=best,
            patience=config.early_stopping * batches.steps_per_epoch,
            flops_per_token=functools.partial(
                train_flops_per_token,
                model.config,
                with_lm=config.lm_coef > 0,
                frozen_trunk=config.freeze != "none",
            ),
        )
        if best:
            by = best["best_metric"].replace("_", " ")
            logging.info("what follows is of update %s of %s, the best by %s", f"{trained.step:,}", f"{n_steps:,}", by)
        with stopping_at(trained.last_step):
            predicted = {
                name: evaluator(trained.params, PartialPredictions(workdir, readout, splits[name]))
                for name, evaluator in evaluators.items()
            }
        metrics = write_outcome(
            workdir,
            spec,
            readout,
            splits,
            predicted,
            warned=validations,
            best_step=trained.step,
            last_step=trained.last_step,
            n_steps=n_steps,
            stopped_early=trained.last_step < n_steps,
        )
        if config.plots:
            try_run_plots(workdir)
        return FinetuneResult(model, trained.params, tokenizer, metrics)


def _starting_point(config: FinetuneConfig, init_from: str | Path | None) -> StartingPoint:
    return starting_point(
        config.model,
        init_from=init_from,
        tokenizer=config.tokenizer,
        seed=config.seed,
        n_transfer=config.n_transfer,
    )


def _keep_tokenizer(tokenizer: Tokenizer, workdir: Path, init_from: str | Path | None) -> None:
    """Saves it, or finds that it is the one that the checkpoints were trained with.

    Raises:
      InputError: it is another one, as the model that the run began with was trained again.
    """
    directory = workdir / "tokenizer"
    marked = find_marker(directory)
    if marked is None or not has_checkpoint(workdir):
        shutil.rmtree(directory, ignore_errors=True)
        tokenizer.save(directory)
    elif (kept := marked[1].get("fingerprint")) != tokenizer.fingerprint:
        where = "tokenizer" if init_from is None else f"init_from={str(init_from)!r}"
        raise InputError(
            f"{where}: its tokenizer is not the one that the checkpoints in {workdir} were "
            f"trained with (fingerprint {tokenizer.fingerprint[:12]}, was {str(kept)[:12]}), so that they would read "
            "other tokens; choose another workdir, or give back the model that this run began with"
        )


def _shrunken(
    splits: Mapping[str, EncodedSplit], start: StartingPoint
) -> tuple[dict[str, EncodedSplit], StartingPoint]:
    """The same for the n_ctx of the original program, see `data.original`."""
    n_ctx = shrunken_n_ctx(splits.values())
    logging.info(
        "original batches: n_ctx is %d, the length of the longest example, and not %d", n_ctx, start.config.n_ctx
    )
    return {name: dataclasses.replace(split, n_ctx=n_ctx) for name, split in splits.items()}, start.with_n_ctx(n_ctx)


def _train_batches(
    config: FinetuneConfig, split: EncodedSplit, n_embd: int, buckets: tuple[int, ...], mesh: Mesh
) -> TrainBatches:
    common = {"batch_size": config.batch_size, "seed": config.seed, **row_blocks(mesh)}
    if config.original_batches:
        return original_batches(split, n_embd=n_embd, **common)
    return train_batches(split, buckets=buckets, **common)


def jit_step(
    config: FinetuneConfig, model: GPT1, mesh: Mesh
) -> tuple[optax.GradientTransformationExtraArgs, JittedStep]:
    """The optimizer and the update over the mesh: what `run` trains with and launch/compile.py compiles.

    Runs that differ only in their rates, in lambda or in their length get the very same.
    """
    optimizer = (_without_schedule(config.optimizer), config.freeze, model, _is_sharded(config, model, mesh))
    how = (config.loss, config.accumulation_steps, config.mesh.gradient_dtype)
    step = _compiled_train_step(*optimizer, *how, mesh, config.lm_coef > 0)
    return _optimizer(*optimizer), step


def _memory(config: FinetuneConfig, model: GPT1, mesh: Mesh, n_streams: int, length: int) -> MemoryEstimate:
    """Of an update with batches of the longest length; runs that differ only in their rates share it."""
    optimizer = (_without_schedule(config.optimizer), config.freeze, model, _is_sharded(config, model, mesh))
    shape = (config.batch_size, n_streams, length)
    return _estimated(*optimizer, config.loss, config.accumulation_steps, mesh, config.lm_coef > 0, shape)


@functools.lru_cache(maxsize=8)
def _estimated(
    optimizer: OptimizerConfig,
    freeze: str,
    model: GPT1,
    sharded: bool,
    loss: LossConfig,
    accumulation_steps: int,
    mesh: Mesh,
    with_lm: bool,
    shape: tuple[int, int, int],
) -> MemoryEstimate:
    return estimate_memory(
        model,
        _optimizer(optimizer, freeze, model, sharded),
        lambda model: _objective(model, loss, with_lm, freeze),
        task_batch_shapes(*shape, scores=model.task_readout.score_range is not None),
        mesh,
        accumulation_steps=accumulation_steps,
        chunk=loss.chunk,
    )


def _is_sharded(config: FinetuneConfig, model: GPT1, mesh: Mesh) -> bool:
    return is_sharded(config.mesh, mesh, model.config.shared_width, few_moments=config.freeze != "none")


def _without_schedule(config: OptimizerConfig) -> OptimizerConfig:
    """What is compiled in; the rest is an input of the step."""
    return dataclasses.replace(config, learning_rate=0.0, schedule="constant", warmup_steps=None, warmup_fraction=0.0)


@functools.lru_cache(maxsize=8)
def _optimizer(
    config: OptimizerConfig, freeze: str, model: GPT1, sharded: bool
) -> optax.GradientTransformationExtraArgs:
    optimizer = make_optimizer(config)
    optimizer = optimizer if freeze == "none" else frozen_optimizer(optimizer, model.config)
    return sharded_over_data(optimizer) if sharded else optimizer


def _objective(model: GPT1, loss: LossConfig, with_lm: bool, freeze: str) -> Objective:
    objective = task_objective(model, loss, with_lm=with_lm)
    return objective if freeze == "none" else frozen_objective(objective, model.config)


@functools.lru_cache(maxsize=8)
def _compiled_train_step(
    optimizer: OptimizerConfig,
    freeze: str,
    model: GPT1,
    sharded: bool,
    loss: LossConfig,
    accumulation_steps: int,
    gradient_dtype: str,
    mesh: Mesh,
    with_lm: bool,
) -> JittedStep:
    # Rates, lambda and the number of steps are inputs of the step, so that all runs of a search share one compilation.
    transformation = _optimizer(optimizer, freeze, model, sharded)
    layout = data_layout(model) if sharded else None
    step = make_train_step(
        _objective(model, loss, with_lm, freeze),
        transformation,
        accumulation_steps=accumulation_steps,
        layout=layout,
        gradient_dtype=gradient_dtype,
    )
    return jit_train_step(step, mesh, state_shardings(model, transformation, mesh))
