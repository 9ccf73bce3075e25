"""Pre-training (paper, section 3.1): raw text in, a language model out.

    text -> tokenizer -> token shards -> windows of n_ctx tokens -> L1 -> checkpoints

`run(config, workdir)` is the whole of it; started again on the same workdir it continues where it was. With `init_from`
a model that is trained already goes on with a text of another kind, before it is fine-tuned on a task of that kind.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax
from absl import logging
from jax.sharding import Mesh

from gpt1_jax import agreement, tokenizers
from gpt1_jax.config import check_fields, from_config, to_dict
from gpt1_jax.cross_entropy import positions_at_once
from gpt1_jax.data.corpus import Corpus, learn_tokenizer, open_corpus
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.shards import Manifest, TokenShards, find_parts, read_parts
from gpt1_jax.data.sources import describe_source
from gpt1_jax.data.split import Split
from gpt1_jax.data.windows import heldout_windows, train_windows
from gpt1_jax.errors import InputError
from gpt1_jax.files import json_text
from gpt1_jax.losses import LossConfig, lm_batch_shapes, lm_objective
from gpt1_jax.memory_estimate import estimate_memory
from gpt1_jax.mirror import mirror, on_each_disk, share
from gpt1_jax.model import GPT1, GPT1Config, count_parameters
from gpt1_jax.optim import OptimizerConfig, make_optimizer, make_schedule
from gpt1_jax.plots.workdir import try_run_plots
from gpt1_jax.pretrained import Params, model_record
from gpt1_jax.runs import Trained, check_seed, check_sizes, describe_run, open_run, space_needed, train, write_results
from gpt1_jax.sharding import MeshConfig, make_mesh, row_blocks
from gpt1_jax.stop import stopping_at
from gpt1_jax.text_evaluator import TextEvaluator
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.tokenizers.protocol import check_tokenizer
from gpt1_jax.train import JittedStep, LoopConfig, jit_train_step, make_train_step, state_shardings
from gpt1_jax.warm_start import ModelOptions, StartingPoint, pretrained_start, without_head
from gpt1_jax.workdir import check_free, has_checkpoint
from gpt1_jax.zero import ShardedOverData, data_layout, is_sharded, sharded_over_data

_MADE_FROM = (
    "init_from",
    "corpus",
    *(f"config.{name}" for name in ("source", "heldout_fraction", "seed", "tokenizer", "model.vocab_size")),
)  # what the tokenizer and the token shards of a workdir depend on


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Which tokenizer.

    Attributes:
      path: a tokenizer folder or a workdir that has one; None trains SentencePiece on the source, with
        `model.vocab_size` pieces. With `init_from` it is that model's.
      lowercase: a trained one folds case.
    """

    path: str | None = None
    lowercase: bool = True

    def __post_init__(self) -> None:
        """Checks the types."""
        check_fields(self, "tokenizer")


@dataclasses.dataclass(frozen=True)
class PretrainConfig:
    """A pre-training run; the defaults are the paper's (section 4.1).

    Attributes:
      source: `text:GLOB`, `jsonl:GLOB#field` or `tfds:NAME`, see data/sources.py. This or `shards` is required.
      shards: a folder that launch/prepare.py made, with its own tokenizer and held-out part; every machine has to have
        it there. It may be moved between two starts of a run.
      heldout_fraction: part of the documents that is held out for evaluation; 0 trains on all. With `shards` it is
        theirs.
      tokenizer: which tokenizer.
      model: the network, where it is not the paper's or, with `init_from`, not that model's.
      batch_size: windows in an update, over all devices.
      epochs: passes over the windows; used where `n_steps` is None.
      n_steps: updates; None takes `epochs`.
      optimizer: Adam and its schedule.
      loss: how L1 is computed.
      accumulation_steps: micro-batches an update is worked off in.
      mesh: device mesh.
      loop: when to report, evaluate and save.
      max_eval_batches: evaluates at most this many held-out batches; None all.
      seed: decides the initial weights, the order of the windows, dropout and the held-out split.
      plots: draws the curves at the end, see `plots.workdir`.
      require_accelerator: refuses to run on the CPU.
    """

    source: str = ""
    shards: str | None = None
    heldout_fraction: float = 0.005
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelOptions = ModelOptions()
    batch_size: int = 64
    epochs: float = 100.0
    n_steps: int | None = None
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    accumulation_steps: int = 1
    mesh: MeshConfig = MeshConfig()
    loop: LoopConfig = LoopConfig()
    max_eval_batches: int | None = None
    seed: int = 0
    plots: bool = True
    require_accelerator: bool = False

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_fields(self)
        for name in ("batch_size", "n_steps", "accumulation_steps", "max_eval_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value} must be at least 1")
        if self.epochs <= 0:
            raise InputError(f"epochs={self.epochs} must be above 0")
        check_seed(self.seed)
        _split(self)


@dataclasses.dataclass(frozen=True)
class PretrainResult:
    """What a finished run gives.

    Attributes:
      model: the language model.
      params: its parameters.
      tokenizer: its tokenizer.
      metrics: held-out loss, perplexity and bits per byte at the end; empty if nothing was held out.
    """

    model: GPT1
    params: Params
    tokenizer: Tokenizer
    metrics: dict[str, float]


@agreement.together()
def run(config: Any, workdir: str | Path, init_from: str | Path | None = None) -> PretrainResult:
    """Pre-trains, or goes on with the run that `workdir` holds.

    Args:
      config: a `PretrainConfig`, a mapping or a `ConfigDict`.
      workdir: gets config.json, tokenizer/, shards/, checkpoints/, metrics.jsonl, tensorboard/, results.json and
        plots/; it may be in a bucket, see `mirror`.
      init_from: what `load_pretrained` reads: its parameters and its tokenizer are what training starts from, a task
        head apart. None draws the parameters. The optimizer and its schedule start anew.

    Raises:
      InputError: something in the config, the text or the workdir cannot be used; before training starts.
      gpt1_jax.train.Interrupted: SIGTERM or Ctrl-C; saved.
      gpt1_jax.train.Diverged: the loss is not a number any more.
    """
    config = from_config(PretrainConfig, config)
    agreement.check_equal(config, apart_from=("shards",))
    workdir = mirror(workdir)
    mesh = make_mesh(config.mesh)
    corpus = None if config.shards is None else open_corpus(config.shards)
    if corpus is not None:
        config = _with_corpus(config, corpus, init_from)
    start = _start(config, init_from)
    check_sizes(config, start.config, mesh)
    if corpus is not None:
        _check_corpus(corpus, start)
    elif not config.source:
        raise InputError(
            "config.source is empty; name the text, such as text:books/**/*.txt or jsonl:corpus.jsonl#text, or in "
            "config.shards a folder of launch/prepare.py"
        )
    else:
        agreement.on_first(lambda: describe_source(config.source))  # refuses one that is not there
    if config.n_steps is not None:
        make_schedule(config.optimizer, config.n_steps)  # refuses a warm-up that does not fit
    best = _best(config)
    n_others = 2 if best else 1  # checkpoints beside those that are kept: the best, and the one that is being written
    model = GPT1(start.config)
    config = dataclasses.replace(config, model=ModelOptions.of(model.config))
    record = {
        "program": "pretrain",
        **model_record(model),
        "init_from": None if init_from is None else str(init_from),
        "config": to_dict(config),
        **({"best": best} if best else {}),
    }
    if corpus is not None:
        record["corpus"] = corpus.identity
    with open_run(
        workdir,
        record,
        config_type=PretrainConfig,
        made_from={"tokenizer": _MADE_FROM, "shards": _MADE_FROM},
        n_parameters=count_parameters(model.config),
        n_checkpoints=config.loop.n_kept(config.n_steps or 1) + n_others,
        require_accelerator=config.require_accelerator,
    ):
        if corpus is None:
            agreement.on_first(lambda: discard_other_text(config, workdir))
            tokenizer = get_tokenizer(config, model.config, workdir / "tokenizer", given=start.tokenizer)
            train_shards, heldout_shards = get_shards(config, tokenizer, workdir / "shards")
        else:
            tokenizer = get_tokenizer(config, model.config, workdir / "tokenizer", given=corpus.tokenizer)
            train_shards, heldout_shards = corpus.train, corpus.heldout
        rows = {"n_ctx": model.config.n_ctx, "batch_size": config.batch_size, **row_blocks(mesh)}
        windows = train_windows(train_shards, seed=config.seed, **rows)
        evaluate = None
        if heldout_shards is not None:
            heldout = heldout_windows(heldout_shards, max_batches=config.max_eval_batches, **rows)
            evaluator = TextEvaluator(model, mesh, heldout, loss=config.loss)

            def evaluate(params: Params) -> dict[str, float]:
                return {f"heldout_{name}": value for name, value in evaluator(params).items()}

        n_steps = config.n_steps or math.ceil(config.epochs * windows.steps_per_epoch)
        space = space_needed(workdir, count_parameters(model.config), config.loop.n_kept(n_steps) + n_others)
        agreement.on_first(lambda: check_free(workdir, space))
        schedules = {"learning_rate": make_schedule(config.optimizer, n_steps)}
        optimizer, train_step = jit_step(config, model, mesh)
        memory = estimate_memory(
            model,
            optimizer,
            functools.partial(lm_objective, config=config.loss),
            lm_batch_shapes(config.batch_size, model.config.n_ctx),
            mesh,
            accumulation_steps=config.accumulation_steps,
            chunk=config.loss.chunk,
        )
        describe_run(
            workdir,
            mesh,
            model,
            memory=memory,
            shard_optimizer=isinstance(optimizer, ShardedOverData),
            n_steps=n_steps,
            learning_rate=schedules["learning_rate"],
            tokens_per_step=config.batch_size * model.config.n_ctx,
            positions_in_the_softmax_at_once=_positions_at_once(config, model, mesh),
            training_tokens=train_shards.n_tokens,
            heldout_tokens=0 if heldout_shards is None else heldout_shards.n_tokens,
        )
        trained = train(
            workdir,
            model,
            optimizer,
            train_step,
            windows,
            schedules=schedules,
            n_steps=n_steps,
            mesh=mesh,
            loop=config.loop,
            seed=config.seed,
            evaluate=evaluate,
            params=start.params,
            best=best,
        )
        with stopping_at(trained.last_step):
            metrics = _metrics_of(trained, evaluate)
        write_results(workdir, {"n_steps": n_steps, **({"best_step": trained.step} if best else {}), **metrics})
        if config.plots:
            try_run_plots(workdir)
        return PretrainResult(model, trained.params, tokenizer, metrics)


def _positions_at_once(config: PretrainConfig, model: GPT1, mesh: Mesh) -> int:
    with jax.set_mesh(mesh):
        rows = config.batch_size // config.accumulation_steps
        return positions_at_once((rows, model.config.n_ctx), config.loss.chunk)


def jit_step(
    config: PretrainConfig, model: GPT1, mesh: Mesh
) -> tuple[optax.GradientTransformationExtraArgs, JittedStep]:
    """The optimizer and the update over the mesh: what `run` trains with and launch/compile.py compiles."""
    optimizer, layout = make_optimizer(config.optimizer), None
    if is_sharded(config.mesh, mesh, model.config.shared_width):
        optimizer, layout = sharded_over_data(optimizer), data_layout(model)
    step = make_train_step(
        lm_objective(model, config.loss),
        optimizer,
        accumulation_steps=config.accumulation_steps,
        layout=layout,
        gradient_dtype=config.mesh.gradient_dtype,
    )
    return optimizer, jit_train_step(step, mesh, state_shardings(model, optimizer, mesh))


def _best(config: PretrainConfig) -> dict[str, str]:
    """Which checkpoint the `Checkpointer` keeps as the best; {} if it keeps none."""
    if not config.loop.keep_best:
        return {}
    if not config.heldout_fraction:
        raise InputError(
            "loop.keep_best=True: no text is held out (heldout_fraction=0), so no checkpoint is the best; hold out a "
            "part of it, or leave keep_best out"
        )
    return {"best_metric": "heldout_loss", "best_mode": "min"}


def _metrics_of(trained: Trained, evaluate: Callable[[Params], dict[str, float]] | None) -> dict[str, float]:
    """The held-out metrics of the parameters that are kept."""
    if evaluate is None:
        return {}
    return (trained.step == trained.last_step and trained.metrics) or evaluate(trained.params)


def discard_other_text(config: PretrainConfig, workdir: Path) -> None:
    """Removes the tokenizer and the shards of a text that is another one by now, unless there are checkpoints of it."""
    if has_checkpoint(workdir):
        return
    manifests = [Manifest.read(folder) for folder, _, _ in find_parts(workdir / "shards")]
    texts = [manifest.settings["source"] for manifest in manifests if manifest is not None]
    if texts and any(text != describe_source(config.source) for text in texts):
        logging.info("%s has changed: the tokenizer and the token shards are made again", config.source)
        for folder in ("tokenizer", "shards"):
            shutil.rmtree(workdir / folder, ignore_errors=True)


def get_tokenizer(
    config: PretrainConfig, model: GPT1Config, directory: Path, *, given: Tokenizer | None = None
) -> Tokenizer:
    """The workdir's tokenizer, made on the first call: the given one, a copy of the one that is named in the config, or
    one that is trained on the source.
    """

    def make() -> None:
        if (directory / tokenizers.MARKER).exists():
            return
        if given is not None:
            given.save(directory)
        elif config.tokenizer.path:
            tokenizer = tokenizers.load(config.tokenizer.path)
            check_tokenizer(tokenizer, model.vocab_size, config.tokenizer.path)
            tokenizer.save(directory)
        else:
            size, lowercase = model.vocab_size, config.tokenizer.lowercase
            learn_tokenizer(config.source, _split(config), directory, vocab_size=size, lowercase=lowercase)

    agreement.on_first(make)
    share(directory.parent)
    tokenizer = tokenizers.load(directory)
    check_tokenizer(tokenizer, model.vocab_size, directory)
    return tokenizer


def get_shards(config: PretrainConfig, tokenizer: Tokenizer, directory: Path) -> tuple[TokenShards, TokenShards | None]:
    """The training and held-out token shards (None: nothing is held out), prepared on the first call."""

    def make() -> str:
        prepare_shards(config.source, tokenizer, directory, split=_split(config))
        parts = [dataclasses.asdict(manifest)["shards"] for _, manifest in read_parts(directory)]
        return hashlib.sha256(json_text(parts).encode()).hexdigest()

    on_each_disk(directory.parent, make)
    heldout = TokenShards.open(directory, "heldout") if config.heldout_fraction else None
    return TokenShards.open(directory, "train"), heldout


def _with_corpus(config: PretrainConfig, corpus: Corpus, init_from: str | Path | None) -> PretrainConfig:
    """The config with what a prepared corpus decides."""
    for name, value in (("source", config.source), ("tokenizer.path", config.tokenizer.path)):
        if value:
            raise InputError(
                f"config.{name}={value!r} contradicts config.shards={config.shards!r}, which has its own; leave one of "
                "the two out"
            )
    if config.heldout_fraction not in (PretrainConfig.heldout_fraction, corpus.heldout_fraction):
        raise InputError(
            f"config.heldout_fraction={config.heldout_fraction} contradicts config.shards={config.shards!r}, which was "
            f"prepared with {corpus.heldout_fraction}; give --config.heldout_fraction={corpus.heldout_fraction}"
        )
    model = config.model
    if init_from is None and model.vocab_size is None:
        model = dataclasses.replace(model, vocab_size=corpus.tokenizer.vocab_size)
    return dataclasses.replace(config, heldout_fraction=corpus.heldout_fraction, model=model)


def _check_corpus(corpus: Corpus, start: StartingPoint) -> None:
    """Refuses a corpus that is of another tokenizer than the model, or another one than that of process 0."""
    check_tokenizer(corpus.tokenizer, start.config.vocab_size, corpus.directory)
    if start.tokenizer is not None and start.tokenizer.fingerprint != corpus.tokenizer.fingerprint:
        raise InputError(
            f"config.shards={str(corpus.directory)!r} was made with another tokenizer than that of init_from; prepare "
            "the text with the model's: launch/prepare.py --tokenizer=MODEL"
        )
    if agreement.on_first(lambda: corpus.identity) != corpus.identity:
        raise InputError(
            f"config.shards={str(corpus.directory)!r} holds another corpus here than for process 0; copy its folder"
        )


def _start(config: PretrainConfig, init_from: str | Path | None) -> StartingPoint:
    """The network, and the parameters and the tokenizer of `init_from` (None without it: they are yet to be made)."""
    if init_from is None:
        return StartingPoint(GPT1Config(**config.model.given()), None, None)
    if config.tokenizer.path:
        raise InputError(
            f"tokenizer.path={config.tokenizer.path!r} contradicts init_from={str(init_from)!r}: a pre-trained model "
            "keeps its tokenizer; leave one of the two out"
        )
    start = pretrained_start(config.model, init_from)
    logging.info("training goes on with %s", init_from)
    return start._replace(params=without_head(start.params), readout=None)


def _split(config: PretrainConfig) -> Split:
    return Split(config.heldout_fraction, config.seed)
