"""Which cells a reproduction consists of: plain values, made of the config before anything is run.

A cell is one training run or one zero-shot curve, with a folder of its own below the reproduction's workdir::

    pretrain/transformer           pretrain/lstm
    finetune/TASK/VARIANT/seed_S   VARIANT is a row of table 5 (`paper.VARIANTS`), or transfer_K: K layers transferred
    zero_shot/TRUNK/TASK           TRUNK is transformer or lstm

Cells that share a compiled step stand together, and those that more depends on come first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from gpt1_jax.errors import InputError, counted
from gpt1_jax.finetune_config import ORIGINAL_SEED, FinetuneConfig, as_the_original
from gpt1_jax.model import GPT1Config
from gpt1_jax.pretrain import PretrainConfig
from gpt1_jax.pretrained import load_pretrained
from gpt1_jax.reproduce.config import ReproduceConfig
from gpt1_jax.reproduce.tasks import Scored, asked, chance_of, find_specs, scored, task_config
from gpt1_jax.sharding import MeshConfig
from gpt1_jax.tasks.config import TaskConfig
from gpt1_jax.tasks.spec import TaskSpec

TRUNKS = ("transformer", "lstm")
TRANSFER = "transfer_"
OF_BLOCKS = ("n_layer", "n_head", "activation", "attention", "remat", "scan_layers")
"""What is said of the Transformer's blocks, and not to an LSTM."""


@dataclasses.dataclass(frozen=True)
class ZeroShotConfig:
    """A curve of figure 2, right.

    Attributes:
      task: whose examples are asked about.
      heuristic: how, see `gpt1_jax.tasks.zero_shot`.
      label_words: of a template.
      scored: which examples, and by what.
      every: checkpoints whose update divides by it are asked, and the last one; 0: the last one only.
      batch_size: rows worked off at a time.
      mesh: device mesh.
    """

    task: TaskConfig
    heuristic: str
    label_words: dict[str, str]
    scored: Scored
    every: int
    batch_size: int
    mesh: MeshConfig


@dataclasses.dataclass(frozen=True)
class Cell:
    """One thing to run.

    Attributes:
      name: its folder, below that of all.
      kind: which workflow runs it.
      config: what that is told.
      init_from: the model that it starts from: the name of the cell that makes it, or where it is; None: none.
      needs: whether `init_from` is the name of a cell.
      task: the name of its task.
      variant: a row of table 5 or `transfer_K`; for zero-shot the trunk.
      run: which of several seeds, from 0.
    """

    name: str
    kind: Literal["pretrain", "finetune", "zero_shot"]
    config: PretrainConfig | FinetuneConfig | ZeroShotConfig
    init_from: str | None = None
    needs: bool = False
    task: str = ""
    variant: str = ""
    run: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run, and what cannot be.

    Attributes:
      cells: in the order in which they are run.
      missing: what cannot be run, a task, "lstm" or a part, to the reason with a remedy.
      scored: task to what it is scored by.
      chance: task to the score of a random guess in percent; None where its classes are not known before it is run.
      n_layer: of the pre-trained Transformer.
    """

    cells: tuple[Cell, ...]
    missing: Mapping[str, str]
    scored: Mapping[str, tuple[Scored, ...]]
    chance: Mapping[str, float | None]
    n_layer: int


def make_plan(config: ReproduceConfig, pretrained: str | Path | None, *, fetched: Collection[Path] = ()) -> Plan:
    """The cells of a reproduction.

    Args:
      config: of it.
      pretrained: the Transformer, as `load_pretrained` reads it; None: it is pre-trained.
      fetched: folders whose files may be yet to be fetched.

    Raises:
      InputError: there is neither a model nor a text to pre-train one, or no task has its data.
    """
    model = _transformer(config, pretrained)
    layers = _layers(config, model.n_layer)
    specs, missing = find_specs(config, fetched)
    if not specs:
        name, reason = next(iter(missing.items()))
        raise InputError(
            f"none of {counted(len(missing), 'task')} can be run: give config.data, a folder with official files or "
            f"tfds, or the data of single ones in config.tasks.NAME.task. {name}: {reason}"
        )
    has_text = bool(config.pretrain.source or config.pretrain.shards)
    wants_lstm = any(
        ("table5" in config.parts and entry.ablated) or ("figure2_right" in config.parts and entry.zero_shot)
        for name, entry in config.tasks.items()
        if name in specs
    )
    lstm = wants_lstm and (has_text or config.lstm.pretrained is not None)
    if wants_lstm and not lstm:
        missing["lstm"] = (
            "there is no text to pre-train it on: name one in config.pretrain.source, or a workdir of an LSTM in "
            "config.lstm.pretrained"
        )
    for part, field in (("table5", "ablated"), ("figure2_left", "layers"), ("figure2_right", "zero_shot")):
        if part in config.parts and not any(getattr(entry, field) for entry in config.tasks.values()):
            missing[part] = f"no task takes part in it: set config.tasks.NAME.{field}, or leave it out of config.parts"
    models = {"transformer": ("pretrain/transformer", True) if pretrained is None else (str(pretrained), False)}
    if lstm:
        given = config.lstm.pretrained
        if given is not None:
            _given("lstm.pretrained", given, "lstm", config)
        models["lstm"] = ("pretrain/lstm", True) if given is None else (given, False)
    cells = [*_transformer_cells(config, specs, layers, models)]
    if lstm:
        cells += _lstm_cells(config, model, specs, models)
    return Plan(
        cells=tuple(cells),
        missing=missing,
        scored={name: scored(config, name, spec) for name, spec in specs.items()},
        chance={name: chance_of(config.tasks[name], spec) for name, spec in specs.items()},
        n_layer=model.n_layer,
    )


def _transformer(config: ReproduceConfig, pretrained: str | Path | None) -> GPT1Config:
    """The network of the pre-trained Transformer, which is loaded here so that a wrong path is found at once."""
    if pretrained is not None:
        return _given("pretrained", pretrained, "transformer", config)
    if not config.pretrain.source and not config.pretrain.shards:
        raise InputError(
            "there is no model and no text: give --pretrained=PATH (the released weights, or a workdir), or name a "
            "text to pre-train on, such as --config.pretrain.source='text:books/**/*.txt'"
        )
    return GPT1Config(**config.pretrain.model.given())


def _given(field: str, path: str | Path, trunk: str, config: ReproduceConfig) -> GPT1Config:
    """The network of a model that is there, with the trunk that it has to have."""
    found = load_pretrained(path, n_head=config.finetune.model.n_head)[0].config
    if found.trunk != trunk:
        raise InputError(f"{field}={str(path)!r}: its model.trunk is {found.trunk!r}, and not {trunk!r}; name another")
    return found


def _layers(config: ReproduceConfig, n_layer: int) -> tuple[int, ...]:
    """The numbers of layers transferred that are runs of their own: not all, which is "full"."""
    for k in config.n_transfer:
        if not 0 <= k <= n_layer:
            raise InputError(f"n_transfer={config.n_transfer}: the model has {n_layer} layers; use 0 to {n_layer}")
    return tuple(k for k in config.n_transfer or range(n_layer) if k < n_layer)


def _transformer_cells(
    config: ReproduceConfig,
    specs: Mapping[str, TaskSpec],
    layers: tuple[int, ...],
    models: Mapping[str, tuple[str, bool]],
) -> Iterator[Cell]:
    if models["transformer"][1]:
        yield Cell("pretrain/transformer", "pretrain", config.pretrain)
    if "figure2_right" in config.parts:
        yield from _zero_shot_cells(config, specs, "transformer", models)
    for name, spec in specs.items():
        entry = config.tasks[name]
        if not entry.finetuned:
            continue
        ablated = "table5" in config.parts and entry.ablated
        transferred = "figure2_left" in config.parts and entry.layers
        variants = {
            "full": ablated or transferred or "tables" in config.parts,
            "no_pretraining": ablated or transferred,
            **{f"{TRANSFER}{k}": transferred for k in layers},
            "no_aux_lm": ablated,
        }
        for variant in (variant for variant, wanted in variants.items() if wanted):
            yield from _finetune_cells(config, name, spec, variant, models["transformer"])


def _lstm_cells(
    config: ReproduceConfig,
    transformer: GPT1Config,
    specs: Mapping[str, TaskSpec],
    models: Mapping[str, tuple[str, bool]],
) -> Iterator[Cell]:
    if models["lstm"][1]:
        where, needs = models["transformer"]
        pretrain = _lstm_pretraining(config, transformer, where)
        yield Cell("pretrain/lstm", "pretrain", pretrain, where if needs else None, needs)
    if "figure2_right" in config.parts:
        yield from _zero_shot_cells(config, specs, "lstm", models)
    for name, spec in specs.items():
        if "table5" in config.parts and config.tasks[name].ablated and config.tasks[name].finetuned:
            yield from _finetune_cells(config, name, spec, "lstm", models["lstm"])


def _lstm_pretraining(config: ReproduceConfig, transformer: GPT1Config, where: str) -> PretrainConfig:
    """The Transformer's pre-training with another trunk: its text, tokenizer, widths and recipe."""
    pretrain, lstm = config.pretrain, config.lstm
    model = dataclasses.replace(
        pretrain.model,
        trunk="lstm",
        lstm_units=lstm.units,
        **{name: getattr(transformer, name) for name in ("vocab_size", "n_ctx", "n_embd")},
        **dict.fromkeys(OF_BLOCKS),
    )
    optimizer = pretrain.optimizer
    if lstm.learning_rate is not None:
        optimizer = dataclasses.replace(optimizer, learning_rate=lstm.learning_rate)
    tokenizer = pretrain.tokenizer
    if not pretrain.shards and not tokenizer.path:
        tokenizer = dataclasses.replace(tokenizer, path=where)
    return dataclasses.replace(pretrain, model=model, optimizer=optimizer, tokenizer=tokenizer)


def _finetune_cells(
    config: ReproduceConfig, name: str, spec: TaskSpec, variant: str, model: tuple[str, bool]
) -> Iterator[Cell]:
    finetune = _finetuning(config, name, spec, variant)
    for run in range(config.seeds):
        seed = finetune.seed + run
        yield Cell(
            f"finetune/{name}/{variant}/seed_{seed}",
            "finetune",
            dataclasses.replace(finetune, seed=seed),
            *model,
            task=name,
            variant=variant,
            run=run,
        )


def _finetuning(config: ReproduceConfig, name: str, spec: TaskSpec, variant: str) -> FinetuneConfig:
    """The recipe of a task in a row of table 5, or with some layers transferred."""
    entry, finetune = config.tasks[name], config.finetune
    if entry.as_the_original:
        finetune = dataclasses.replace(as_the_original(finetune), seed=finetune.seed or ORIGINAL_SEED)
    changes: dict[str, Any] = {
        field: getattr(entry, field) for field in ("batch_size", "epochs") if getattr(entry, field) is not None
    }
    rate = entry.learning_rate
    if variant == "lstm":
        rate = rate if config.lstm.finetune_learning_rate is None else config.lstm.finetune_learning_rate
        changes["model"] = dataclasses.replace(finetune.model, **dict.fromkeys(OF_BLOCKS))
    if rate is not None:
        changes["optimizer"] = dataclasses.replace(finetune.optimizer, learning_rate=rate)
    if variant == "no_pretraining":
        changes["n_transfer"] = -1
    if variant.startswith(TRANSFER):
        changes["n_transfer"] = int(variant.removeprefix(TRANSFER))
    if variant == "no_aux_lm":
        changes["lm_coef"] = 0.0
    splits = {each.split for each in scored(config, name, spec)}
    return dataclasses.replace(
        finetune,
        task=task_config(config, name),
        predict_train=entry.layers and (changes.get("n_transfer") is not None or variant == "full"),
        predict_test=finetune.predict_test and (variant == "full" or not splits <= set(spec.validation_splits)),
        **changes,
    )


def _zero_shot_cells(
    config: ReproduceConfig, specs: Mapping[str, TaskSpec], trunk: str, models: Mapping[str, tuple[str, bool]]
) -> Iterator[Cell]:
    where, needs = models[trunk]
    for name, spec in specs.items():
        if (entry := config.tasks[name]).zero_shot:
            curve = ZeroShotConfig(
                task=task_config(config, name),
                heuristic=entry.zero_shot,
                label_words=dict(entry.label_words),
                scored=asked(scored(config, name, spec)),
                every=config.pretrain.loop.keep_every,
                batch_size=config.finetune.batch_size,
                mesh=config.finetune.mesh,
            )
            yield Cell(f"zero_shot/{trunk}/{name}", "zero_shot", curve, where, needs, task=name, variant=trunk)
