"""Fine-tuning (paper, sections 3.2-3.3): a pre-trained model and labelled examples in, a model of the task out.

    rows -> examples -> token streams -> L3 = L2 + lambda L1 -> the best checkpoint on the validation split

`run(config, workdir, init_from)` is the whole of it; started again on the same workdir it continues where it was.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from gpt1_jax import tokenizers
from gpt1_jax.config import from_config, to_dict
from gpt1_jax.data.buckets import choose_buckets
from gpt1_jax.data.class_weights import with_class_weights
from gpt1_jax.data.labelled import EncodedSplit, TrainBatches, train_batches
from gpt1_jax.data.original import max_text_tokens, original_batches, shrunken_n_ctx
from gpt1_jax.errors import InputError
from gpt1_jax.losses import LossConfig, task_objective
from gpt1_jax.model import GPT1, count_parameters
from gpt1_jax.optim import OptimizerConfig, Schedule, make_optimizer, make_schedule
from gpt1_jax.outcome import write_outcome
from gpt1_jax.pretrained import Params, model_record
from gpt1_jax.runs import check_seed, describe_run, open_run, train
from gpt1_jax.sharding import MeshConfig, check_mesh, make_mesh
from gpt1_jax.task_evaluator import TaskEvaluator, encode_task_split, task_metrics
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.examples import Example, load_examples
from gpt1_jax.tasks.readout import make_readout
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.train import LoopConfig, TrainStep, jit_train_step, make_train_step, state_shardings
from gpt1_jax.warm_start import ModelOptions, StartingPoint, starting_point


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning run; the defaults are the paper's (section 4.1).

    Attributes:
      task: which task, and where its data are.
      model: the network, where it is not the pre-trained one's.
      tokenizer: a tokenizer folder or a workdir that has one; needed for training from scratch only.
      batch_size: examples in an update, over all devices.
      epochs: passes over the training split.
      class_weights: of the examples in the loss of the task, by their label: "balanced", or label=weight for each, such
        as negative=1,positive=3; none weighs all the same (see `data.class_weights`).
      lm_coef: lambda, the weight of the auxiliary language-model loss L1.
      optimizer: Adam and its schedule.
      original_batches: exactly the batches of the original program, to repeat its runs: every text is cut to n_ctx // 2
        - 2 tokens, n_ctx shrinks to the longest example, all batches have that length, the order of the examples is
        its own for the same seed, and the incomplete last batch of an epoch is left out (see `data.original`).
      buckets: lengths a batch may have; empty chooses `n_buckets` from the data.
      n_buckets: most lengths to choose: each is one compilation.
      loss: how L1 is computed.
      accumulation_steps: micro-batches an update is worked off in.
      mesh: device mesh.
      predict_train: also predicts the training split at the end, which takes about a tenth of the time of three epochs.
      log_every: updates between two lines of metrics; evaluation and checkpoints come once an epoch.
      seed: decides the new parameters, the order of the examples and dropout.
      require_accelerator: refuses to run on the CPU.
    """

    task: TaskConfig = TaskConfig()
    model: ModelOptions = ModelOptions()
    tokenizer: str | None = None
    batch_size: int = 32
    epochs: int = 3
    class_weights: tuple[str, ...] = ()
    lm_coef: float = 0.5
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=6.25e-5, schedule="warmup_linear", warmup_steps=None)
    original_batches: bool = False
    buckets: tuple[int, ...] = ()
    n_buckets: int = 4
    loss: LossConfig = LossConfig()
    accumulation_steps: int = 1
    mesh: MeshConfig = MeshConfig()
    predict_train: bool = False
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
        if self.original_batches and self.buckets:
            raise InputError(
                f"buckets={self.buckets} contradicts original_batches=True, whose batches all have one length; leave "
                "one of the two out"
            )
        check_seed(self.seed)


@dataclasses.dataclass(frozen=True)
class FinetuneResult:
    """What a finished run gives.

    Attributes:
      model: the model of the task.
      params: its parameters at the best epoch.
      tokenizer: its tokenizer.
      metrics: {split: {metric: value}} of the labelled splits at the best epoch; of the training split only with
        `predict_train`.
    """

    model: GPT1
    params: Params
    tokenizer: Tokenizer
    metrics: dict[str, dict[str, float]]


def run(config: Any, workdir: str | Path, init_from: str | Path | None = None) -> FinetuneResult:
    """Fine-tunes, or goes on with the run that `workdir` holds.

    The labelled validation splits are evaluated after every epoch; the first metric of the first of them chooses the
    checkpoint that is kept as the best, the earliest on a tie. All other splits are looked at once, with that
    checkpoint: the test splits, those without labels and, with `predict_train`, the training split.

    Args:
      config: a `FinetuneConfig`, a mapping or a `ConfigDict`.
      workdir: gets config.json, tokenizer/, checkpoints/, metrics.jsonl, tensorboard/ and what `outcome` lists.
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
    start = starting_point(config.model, init_from=init_from, tokenizer=config.tokenizer, seed=config.seed)
    check_mesh(
        mesh,
        batch_size=config.batch_size,
        n_head=start.config.n_head,
        accumulation_steps=config.accumulation_steps,
    )
    examples = load_examples(spec)
    if "train" not in examples:
        raise InputError(f"task {spec.name!r} has no training split; give the files in task.train or task.data")
    start = start.for_task(make_readout(spec, examples["train"]))
    splits, reading = None, {}
    if config.original_batches:  # the examples decide n_ctx, which config.json has to tell
        reading = {"max_text_tokens": max_text_tokens(start.config.n_ctx)}
        splits, start = _encode_and_shrink(spec, examples, start, **reading)
    model = GPT1(start.config, start.readout)
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
            splits = _encode(spec, examples, start)
        buckets = _buckets(config, splits, model.config.n_ctx)
        weighted = with_class_weights(splits["train"], config.class_weights, model.readout)
        batches = _train_batches(config, weighted, model.config.n_embd, buckets)
        evaluators = {
            name: TaskEvaluator(model, mesh, split, batch_size=config.batch_size, buckets=buckets)
            for name, split in splits.items()
            if name != "train" or config.predict_train
        }
        validations = [name for name in splits if name.startswith("validation") and spec.is_labelled(name)]

        def evaluate(params: Params) -> dict[str, float]:
            values = {name: task_metrics(spec, splits[name], *evaluators[name](params)) for name in validations}
            return {f"{name}_{metric}": value for name in validations for metric, value in values[name].items()}

        n_steps = config.epochs * batches.steps_per_epoch
        schedules = {
            "learning_rate": make_schedule(config.optimizer, n_steps),
            "lm_coef": Schedule(np.float32(config.lm_coef)),
        }
        if jax.process_index() == 0 and not (workdir / "tokenizer" / tokenizers.MARKER).exists():
            start.tokenizer.save(workdir / "tokenizer")  # the first thing that is made, after all that may be refused
        describe_run(
            mesh,
            n_steps=n_steps,
            parameters=count_parameters(model.config, model.readout),
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
            params=start.params,
            best=best,
        )
        metrics = write_outcome(
            workdir,
            spec,
            model.readout,
            splits,
            {name: evaluator(trained.params) for name, evaluator in evaluators.items()},
            best_step=trained.step,
            n_steps=n_steps,
        )
        return FinetuneResult(model, trained.params, start.tokenizer, metrics)


def _encode(
    spec: TaskSpec, examples: Mapping[str, Sequence[Example]], start: StartingPoint, **reading: int
) -> dict[str, EncodedSplit]:
    model = GPT1(start.config, start.readout)
    return {
        name: encode_task_split(spec, name, rows, model, start.tokenizer, **reading) for name, rows in examples.items()
    }


def _encode_and_shrink(
    spec: TaskSpec, examples: Mapping[str, Sequence[Example]], start: StartingPoint, **reading: int
) -> tuple[dict[str, EncodedSplit], StartingPoint]:
    splits = _encode(spec, examples, start, **reading)
    n_ctx = shrunken_n_ctx(splits.values())
    logging.info(
        "original batches: n_ctx is %d, the length of the longest example, and not %d", n_ctx, start.config.n_ctx
    )
    return {name: dataclasses.replace(split, n_ctx=n_ctx) for name, split in splits.items()}, start.with_n_ctx(n_ctx)


def _train_batches(config: FinetuneConfig, split: EncodedSplit, n_embd: int, buckets: tuple[int, ...]) -> TrainBatches:
    host = {"host_index": jax.process_index(), "host_count": jax.process_count()}
    common = {"batch_size": config.batch_size, "seed": config.seed, **host}
    if config.original_batches:
        return original_batches(split, n_embd=n_embd, **common)
    return train_batches(split, buckets=buckets, **common)


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
    if config.original_batches:
        return (n_ctx,)
    lengths = np.concatenate([split.lengths for split in splits.values()])
    buckets = config.buckets or choose_buckets(lengths, n_ctx, config.n_buckets)
    logging.info("batches are padded to one of %s tokens: at most %d compilations", buckets, len(buckets))
    return buckets
