"""Fine-tuning (paper, sections 3.2-3.3): a pre-trained model and labelled examples in, a model of the task out.

    rows -> examples -> token streams -> L3 = L2 + lambda L1 -> the best checkpoint on the validation split

`run(config, workdir, init_from)` is the whole of it; started again on the same workdir it continues where it was.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from gpt1_jax import tokenizers
from gpt1_jax.config import from_config, to_dict
from gpt1_jax.data.buckets import choose_buckets
from gpt1_jax.data.labelled import EncodedSplit, train_batches
from gpt1_jax.errors import InputError
from gpt1_jax.evaluate import TaskEvaluator, encode_task_split, task_metrics
from gpt1_jax.losses import LossConfig, task_objective
from gpt1_jax.model import GPT1, GPT1Config, ReadOut, count_parameters
from gpt1_jax.model_config import N_SPECIAL
from gpt1_jax.optim import OptimizerConfig, Schedule, make_optimizer, make_schedule
from gpt1_jax.pretrained import (
    ARCHITECTURE,
    Params,
    add_special_rows,
    check_tokenizer,
    load_pretrained,
    model_record,
    slice_positions,
)
from gpt1_jax.runs import check_seed, describe_run, open_run, train, write_results
from gpt1_jax.sharding import MeshConfig, check_mesh, make_mesh
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.examples import label_names, load_examples
from gpt1_jax.tasks.predictions import write_predictions
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.train import LoopConfig, TrainStep, jit_train_step, make_train_step, state_shardings


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """What a fine-tuning run says about the network; None keeps what the pre-trained model has (the paper's without).

    Attributes:
      vocab_size: see `GPT1Config`, like all others. What the weights were trained as (`pretrained.ARCHITECTURE`) can
        only be set for training from scratch.
    """

    vocab_size: int | None = None
    n_ctx: int | None = None
    n_embd: int | None = None
    n_head: int | None = None
    n_layer: int | None = None
    embd_pdrop: float | None = None
    attn_pdrop: float | None = None
    resid_pdrop: float | None = None
    clf_pdrop: float | None = None
    activation: str | None = None
    attention: str | None = None
    clf_bias: bool | None = None
    dtype: str | None = None
    remat: str | None = None


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning run; the defaults are the paper's (section 4.1).

    Attributes:
      task: which task, and where its data are.
      model: the network, where it is not the pre-trained one's.
      tokenizer: a tokenizer folder or a workdir that has one; needed for training from scratch only.
      batch_size: examples in an update, over all devices.
      epochs: passes over the training split.
      lm_coef: lambda, the weight of the auxiliary language-model loss L1.
      optimizer: Adam and its schedule.
      buckets: lengths a batch may have; empty chooses `n_buckets` from the data.
      n_buckets: most lengths to choose: each is one compilation.
      loss: how L1 is computed.
      accumulation_steps: micro-batches an update is worked off in.
      mesh: device mesh.
      log_every: updates between two lines of metrics; evaluation and checkpoints come once an epoch.
      seed: decides the new parameters, the order of the examples and dropout.
      require_accelerator: refuses to run on the CPU.
    """

    task: TaskConfig = TaskConfig()
    model: ModelOptions = ModelOptions()
    tokenizer: str | None = None
    batch_size: int = 32
    epochs: int = 3
    lm_coef: float = 0.5
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=6.25e-5, schedule="warmup_linear", warmup_steps=None)
    buckets: tuple[int, ...] = ()
    n_buckets: int = 4
    loss: LossConfig = LossConfig()
    accumulation_steps: int = 1
    mesh: MeshConfig = MeshConfig()
    log_every: int = 10
    seed: int = 0
    require_accelerator: bool = False

    def __post_init__(self) -> None:
        """Checks the ranges."""
        for name in ("batch_size", "epochs", "n_buckets", "accumulation_steps", "log_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1")
        if self.lm_coef < 0:
            raise InputError(f"lm_coef={self.lm_coef} must not be negative")
        check_seed(self.seed)


@dataclasses.dataclass(frozen=True)
class FinetuneResult:
    """What a finished run gives.

    Attributes:
      model: the model of the task.
      params: its parameters at the best epoch.
      tokenizer: its tokenizer.
      metrics: {split: {metric: value}} of the labelled splits but the training one, at the best epoch.
    """

    model: GPT1
    params: Params
    tokenizer: Tokenizer
    metrics: dict[str, dict[str, float]]


def run(config: Any, workdir: str | Path, init_from: str | Path | None = None) -> FinetuneResult:
    """Fine-tunes, or goes on with the run that `workdir` holds.

    The validation split is evaluated after every epoch and its first metric chooses the checkpoint that is kept as the
    best; the test split, where there is one, is looked at once, with that checkpoint.

    Args:
      config: a `FinetuneConfig`, a mapping or a `ConfigDict`.
      workdir: gets config.json, tokenizer/, checkpoints/, metrics.jsonl, tensorboard/, predictions/ and results.json.
      init_from: what `load_pretrained` reads; None trains from scratch.

    Raises:
      InputError: something in the config, the data or the workdir cannot be used; before training starts.
      gpt1_jax.train.Interrupted: SIGTERM or Ctrl-C; saved.
      gpt1_jax.train.Diverged: the loss is not a number any more.
    """
    config = from_config(FinetuneConfig, config)
    workdir = Path(workdir)
    spec = make_spec(config.task)
    mesh = make_mesh(config.mesh)
    model_config, params, tokenizer = starting_point(config, init_from)
    check_mesh(
        mesh,
        batch_size=config.batch_size,
        n_head=model_config.n_head,
        accumulation_steps=config.accumulation_steps,
    )
    examples = load_examples(spec)
    if "train" not in examples:
        raise InputError("task.train is empty; name the files of the training examples")
    labels = label_names(spec, examples["train"])
    model = GPT1(model_config, ReadOut(spec.kind, labels))
    best = {"best_metric": f"validation_{spec.metrics[0]}"} if "validation" in examples else {}
    record = {
        "program": "finetune",
        **model_record(model),
        "best": best,
        "init_from": None if init_from is None else str(init_from),
        "config": to_dict(config),
    }
    with open_run(
        workdir,
        record,
        config_type=FinetuneConfig,
        made_from={"tokenizer": ("init_from", "config.tokenizer")},
        n_parameters=count_parameters(model_config, model.readout),
        n_checkpoints=3,
        require_accelerator=config.require_accelerator,
    ):
        splits = {name: encode_task_split(spec, name, examples[name], model, tokenizer) for name in examples}
        buckets = _buckets(config, splits, model_config.n_ctx)
        batches = train_batches(
            splits["train"],
            batch_size=config.batch_size,
            seed=config.seed,
            buckets=buckets,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
        )
        evaluators = {
            name: TaskEvaluator(model, mesh, split, batch_size=config.batch_size, buckets=buckets)
            for name, split in splits.items()
            if name != "train"
        }

        def evaluate(params: Params) -> dict[str, float]:
            values = task_metrics(spec, splits["validation"], *evaluators["validation"](params))
            return {f"validation_{name}": value for name, value in values.items()}

        n_steps = config.epochs * batches.steps_per_epoch
        schedules = {
            "learning_rate": make_schedule(config.optimizer, n_steps),
            "lm_coef": Schedule(np.float32(config.lm_coef)),
        }
        if jax.process_index() == 0 and not (workdir / "tokenizer" / tokenizers.MARKER).exists():
            tokenizer.save(workdir / "tokenizer")  # the first thing that is made, after all that may be refused
        describe_run(
            mesh,
            n_steps=n_steps,
            parameters=count_parameters(model_config, model.readout),
            **{f"{name}_examples": len(split) for name, split in splits.items()},
        )
        trained = train(
            workdir,
            model,
            make_optimizer(config.optimizer),
            _compiled_train_step(
                model,
                _without_schedule(config.optimizer),
                config.loss,
                config.accumulation_steps,
                mesh,
            ),
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
            params=params,
            best=best,
        )
        metrics = {}
        for name, evaluator in evaluators.items():
            probabilities, loss = evaluator(trained.params)
            if jax.process_index() == 0:
                _write_predictions(workdir / "predictions" / f"{name}.jsonl", model, splits[name], probabilities)
            if spec.is_labelled(name):
                metrics[name] = task_metrics(spec, splits[name], probabilities, loss)
        write_results(workdir, {"best_step": trained.step, "n_steps": n_steps, "metrics": metrics})
        return FinetuneResult(model, trained.params, tokenizer, metrics)


def starting_point(config: FinetuneConfig, init_from: str | Path | None) -> tuple[GPT1Config, Params | None, Tokenizer]:
    """The network with its special rows, its parameters (None: to be drawn) and the tokenizer.

    Raises:
      InputError: an option contradicts the weights, or there is no tokenizer to train from scratch with.
    """
    options = {k: v for k, v in dataclasses.asdict(config.model).items() if v is not None}
    if init_from is None:
        if not config.tokenizer:
            raise InputError(
                "config.tokenizer is empty: training from scratch needs a tokenizer folder, or a workdir that has one; "
                "or give --init_from=WORKDIR to start from a pre-trained model"
            )
        tokenizer = tokenizers.load(config.tokenizer)
        model_config = GPT1Config(**{"vocab_size": tokenizer.vocab_size, **options, "n_special": N_SPECIAL})
        check_tokenizer(tokenizer, model_config, config.tokenizer)
        return model_config, None, tokenizer
    if config.tokenizer:
        raise InputError(
            f"config.tokenizer={config.tokenizer!r} contradicts init_from={str(init_from)!r}: a pre-trained model "
            "keeps its tokenizer; leave one of the two out"
        )
    model, params, tokenizer = load_pretrained(init_from)
    for name in ARCHITECTURE:
        if name in options and options[name] != getattr(model.config, name):
            raise InputError(
                f"model.{name}={options[name]!r} contradicts {init_from}, whose weights have "
                f"{name}={getattr(model.config, name)!r}; leave it out, or train from scratch without init_from"
            )
    model_config = model.config
    if "n_ctx" in options:
        model_config, params = slice_positions(model_config, params, options["n_ctx"])
    model_config, params = add_special_rows(dataclasses.replace(model_config, **options), params, config.seed)
    if "clf" in params:
        logging.info("the task head of %s is not taken over: W_y is drawn anew", init_from)
    return model_config, {name: value for name, value in params.items() if name != "clf"}, tokenizer


def _without_schedule(config: OptimizerConfig) -> OptimizerConfig:
    """What is compiled in; the rest is an input of the step."""
    return dataclasses.replace(config, learning_rate=0.0, schedule="constant", warmup_steps=None, warmup_fraction=0.0)


@functools.lru_cache(maxsize=8)
def _compiled_train_step(
    model: GPT1, optimizer: OptimizerConfig, loss: LossConfig, accumulation_steps: int, mesh: Mesh
) -> TrainStep:
    # Rates, lambda and the number of steps are inputs of the step, so that all runs of a search share one compilation.
    transformation = make_optimizer(optimizer)
    step = make_train_step(task_objective(model, loss), transformation, accumulation_steps=accumulation_steps)
    return jit_train_step(step, mesh, state_shardings(model, transformation, mesh))


def _buckets(config: FinetuneConfig, splits: Mapping[str, EncodedSplit], n_ctx: int) -> tuple[int, ...]:
    lengths = np.concatenate([split.lengths for split in splits.values()])
    buckets = config.buckets or choose_buckets(lengths, n_ctx, config.n_buckets)
    logging.info("batches are padded to one of %s tokens: at most %d compilations", buckets, len(buckets))
    return buckets


def _write_predictions(path: Path, model: GPT1, split: EncodedSplit, probabilities: np.ndarray) -> None:
    labels = model.readout.labels[: probabilities.shape[1]]  # no example may have as many answers as there are names
    ragged = split.n_streams if model.readout.kind == "multiple_choice" else None
    write_predictions(path, split.ids, labels, probabilities, ragged)
