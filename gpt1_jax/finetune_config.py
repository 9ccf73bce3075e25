"""What a fine-tuning run is told: `FinetuneConfig`, with the paper's recipe for defaults."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from gpt1_jax.config import check_fields
from gpt1_jax.data.sources import SourceSpec
from gpt1_jax.errors import InputError, did_you_mean
from gpt1_jax.frozen import FREEZE
from gpt1_jax.losses import LossConfig
from gpt1_jax.optim import LM_SCHEDULES, OptimizerConfig
from gpt1_jax.runs import check_seed
from gpt1_jax.sharding import MeshConfig
from gpt1_jax.tasks.config import TaskConfig
from gpt1_jax.warm_start import ModelOptions

ORIGINAL_SEED = 42
TASK_TEXTS = "task"
"""As `AdaptConfig.source`: the texts of the task's own training examples."""


@dataclasses.dataclass(frozen=True)
class AdaptConfig:
    """L1 training on text of the task's kind, between pre-training and fine-tuning; see `gpt1_jax.adapt`.

    Attributes:
      source: unlabelled text, `text:GLOB`, `jsonl:GLOB#field` or `tfds:NAME[/split]`; or "task", the texts of the
        task's own training examples. Empty: nothing is done.
      heldout_fraction: part of the documents that is held out for evaluation; 0 trains on all.
      batch_size: windows in an update, over all devices.
      epochs: passes over the windows; used where `n_steps` is None.
      n_steps: updates; None takes `epochs`.
      optimizer: Adam and its schedule; the rate is a quarter of pre-training's, and that of fine-tuning.
      seed: decides the order of the windows, dropout and the held-out split. The runs of several seeds of the task
        start from the same adapted model, as they do from the same pre-trained one.
    """

    source: str = ""
    heldout_fraction: float = 0.0
    batch_size: int = 32
    epochs: float = 3.0
    n_steps: int | None = None
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=6.25e-5, warmup_steps=None, warmup_fraction=0.05)
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks names and ranges."""
        check_fields(self, "adapt")
        for name in ("batch_size", "n_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"adapt.{name}={value} must be at least 1")
        if self.epochs <= 0:
            raise InputError(f"adapt.epochs={self.epochs} must be above 0")
        if not 0 <= self.heldout_fraction < 1:
            raise InputError(f"adapt.heldout_fraction={self.heldout_fraction} must be at least 0 and below 1")
        if self.source not in ("", TASK_TEXTS):
            try:
                SourceSpec.parse(self.source)
            except InputError as error:
                raise InputError(f"adapt.{error}, or {TASK_TEXTS!r} for the texts of the training examples") from None
        try:
            check_seed(self.seed)
        except InputError as error:
            raise InputError(f"adapt.{error}") from None


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """A small grid: every combination of these values is tried; an axis without values has the run's own.

    Attributes:
      learning_rate: values of `optimizer.learning_rate`.
      batch_size: values of `batch_size`.
      epochs: values of `epochs`.
      lm_coef: values of `lm_coef`, lambda.
    """

    learning_rate: tuple[float, ...] = ()
    batch_size: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    lm_coef: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuses values that would be tried twice."""
        check_fields(self, "sweep")
        for axis in dataclasses.fields(self):
            values = getattr(self, axis.name)
            if len(set(values)) < len(values):
                raise InputError(f"sweep.{axis.name}={values} has a value twice; give each once")


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning run; the defaults are the paper's (section 4.1).

    Attributes:
      task: which task, and where its data are.
      model: the network, where it is not the pre-trained one's.
      tokenizer: a tokenizer folder or a workdir that has one; needed for training without `init_from` only.
      n_transfer: blocks that are taken over from the pre-trained model, the first ones, beside its embeddings (the
        paper's figure 2, left); all else is drawn anew. None takes all, 0 the embeddings only, and -1 nothing but the
        architecture and the tokenizer: L3 from scratch.
      freeze: "trunk" trains W_y and the rows of the special tokens only, all else stays as it is (see `frozen`).
      adapt: L1 training on unlabelled text before; off by default.
      batch_size: examples in an update, over all devices.
      epochs: passes over the training split.
      early_stopping: ends the run when the first validation metric has not risen for so many epochs; 0 never does. The
        schedules are those of all `epochs`.
      class_weights: of the examples in the loss of the task, by their label: "balanced", or label=weight for each, such
        as negative=1,positive=3; none weighs all the same (see `data.class_weights`).
      lm_coef: lambda, the weight of the auxiliary language-model loss L1; with 0 (L1, then L2) it is not computed.
      lm_coef_schedule: "constant"; "linear" and "cosine" fall to 0 at the end of the run; "step" drops to 0 in it.
      lm_coef_drop: for "step", the part of the run after which lambda is 0.
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
      predict_test: predicts the test splits and those without labels at the end; False looks at the validation splits
        only, as a search should whose choice the test split must not see.
      log_every: updates between two lines of metrics; evaluation and checkpoints come once an epoch.
      seed: decides the new parameters, the order of the examples and dropout.
      seeds: runs with seed, seed + 1, ..., each in a workdir of its own (see `repeats`).
      sweep: values to try first, with the first seed; the validation split chooses, and all seeds have the best ones.
      plots: draws the curves at the end, see `plots.workdir`.
      require_accelerator: refuses to run on the CPU.
    """

    task: TaskConfig = TaskConfig()
    model: ModelOptions = ModelOptions()
    tokenizer: str | None = None
    n_transfer: int | None = None
    freeze: str = "none"
    adapt: AdaptConfig = AdaptConfig()
    batch_size: int = 32
    epochs: int = 3
    early_stopping: int = 0
    class_weights: tuple[str, ...] = ()
    lm_coef: float = 0.5
    lm_coef_schedule: str = "constant"
    lm_coef_drop: float = 0.5
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=6.25e-5, schedule="warmup_linear", warmup_steps=None)
    original_batches: bool = False
    buckets: tuple[int, ...] = ()
    n_buckets: int = 4
    loss: LossConfig = LossConfig()
    accumulation_steps: int = 1
    mesh: MeshConfig = MeshConfig()
    predict_train: bool = False
    predict_test: bool = True
    log_every: int = 10
    seed: int = 0
    seeds: int = 1
    sweep: SweepConfig = SweepConfig()
    plots: bool = True
    require_accelerator: bool = False

    def __post_init__(self) -> None:
        """Checks the ranges, and what contradicts each other."""
        check_fields(self)
        for name in ("batch_size", "epochs", "n_buckets", "accumulation_steps", "log_every", "seeds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("lm_coef", "early_stopping"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must not be negative")
        for name, known in (("lm_coef_schedule", tuple(LM_SCHEDULES)), ("freeze", FREEZE)):
            if (value := getattr(self, name)) not in known:
                raise InputError(f"{name}={value!r} is unknown; use one of {list(known)}{did_you_mean(value, known)}")
        if not 0 <= self.lm_coef_drop <= 1:
            raise InputError(f"lm_coef_drop={self.lm_coef_drop} must be from 0 to 1, a part of the run")
        if self.n_transfer is not None and self.n_transfer < -1:
            raise InputError(f"n_transfer={self.n_transfer}: a number of blocks, or -1 for nothing at all")
        if self.n_transfer == -1 and self.adapt.source:
            raise InputError(
                f"n_transfer=-1 contradicts adapt.source={self.adapt.source!r}: nothing would be left of the adapted "
                "model; leave one of the two out"
            )
        if self.original_batches and self.buckets:
            raise InputError(
                f"buckets={self.buckets} contradicts original_batches=True, whose batches all have one length; leave "
                "one of the two out"
            )
        check_seed(self.seed)
        check_seed(self.seed + self.seeds - 1)

    @property
    def is_swept(self) -> bool:
        """Whether there are values to try."""
        return self.sweep != SweepConfig()

    @property
    def is_repeated(self) -> bool:
        """Whether this asks for several runs."""
        return self.seeds > 1 or self.is_swept

    def single(self, seed: int) -> FinetuneConfig:
        """One of the runs."""
        return dataclasses.replace(self, seed=seed, seeds=1, sweep=SweepConfig())

    def grid(self) -> list[FinetuneConfig]:
        """The single runs of the sweep, with the first seed; that seed's run alone if there is none."""
        own = self.point()
        axes = [getattr(self.sweep, name) or (value,) for name, value in own.items()]
        try:
            return [self._at(**dict(zip(own, values, strict=True))) for values in itertools.product(*axes)]
        except InputError as error:
            raise InputError(f"sweep: {error}") from None

    def point(self) -> dict[str, float]:
        """The values of this run on the axes of a sweep."""
        axes = [axis.name for axis in dataclasses.fields(SweepConfig)]
        return {name: getattr(self.optimizer if name == "learning_rate" else self, name) for name in axes}

    def _at(self, learning_rate: float, **values: Any) -> FinetuneConfig:
        optimizer = dataclasses.replace(self.optimizer, learning_rate=learning_rate)
        return dataclasses.replace(self.single(self.seed), optimizer=optimizer, **values)


def as_the_original(config: FinetuneConfig) -> FinetuneConfig:
    """With what the original program does otherwise than ours by default; all other defaults are its own."""
    return dataclasses.replace(
        config,
        original_batches=True,
        model=dataclasses.replace(config.model, embedding_dropout="table", softmax_over_positions=True),
        seed=ORIGINAL_SEED,
    )
