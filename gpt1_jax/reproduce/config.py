"""What a reproduction is told: `ReproduceConfig`, with the paper's recipe for defaults."""

from __future__ import annotations

import dataclasses

from gpt1_jax.config import check_fields
from gpt1_jax.errors import InputError, counted, quoted
from gpt1_jax.finetune_config import FinetuneConfig, SweepConfig
from gpt1_jax.pretrain import PretrainConfig
from gpt1_jax.reproduce import paper
from gpt1_jax.tasks.config import TaskConfig

PARTS = ("tables", "table5", "figure2_left", "figure2_right")
"""What there is to reproduce: tables 2 to 4, the ablations, layers transferred, zero-shot over pre-training."""

EXAMPLES = ("", "reviews")
KEEP = ("all", "full", "none")


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """A task, and where it differs from the others.

    Attributes:
      task: which, and where its data are; `data` of a named one is that of all tasks unless it is given here.
      title: how tables call it; empty: its key in `ReproduceConfig.tasks`.
      learning_rate: in place of that of `ReproduceConfig.finetune`.
      batch_size: likewise.
      epochs: likewise.
      as_the_original: the batches and the two oddities of the network of the original program, which was published for
        the Story Cloze Test (see `FinetuneConfig.original_batches` and `GPT1Config`), and its first seed, 42.
      ablated: it is a column of table 5.
      layers: it is a curve of figure 2, left.
      zero_shot: a heuristic or a template of `gpt1_jax.tasks.zero_shot`: it is a curve of figure 2, right. Empty: not.
      label_words: for a template, label name to the words that stand for it.
      finetuned: False asks it zero-shot only, such as the Winograd schemas, which have no training split.
      chance: score of a random guess in percent, which is 0 in figure 2, right; None: 100 over the number of classes or
        answers for accuracy, 0 for correlations.
      ceiling: score in percent that is 1 there, the best that single models reached; None: the fine-tuned Transformer's
        median here.
    """

    task: TaskConfig = TaskConfig()
    title: str = ""
    learning_rate: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    as_the_original: bool = False
    ablated: bool = False
    layers: bool = False
    zero_shot: str = ""
    label_words: dict[str, str] = dataclasses.field(default_factory=dict)
    finetuned: bool = True
    chance: float | None = None
    ceiling: float | None = None

    def __post_init__(self) -> None:
        """Checks the types."""
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class LSTMConfig:
    """The LSTM of table 5 and figure 2: one layer in place of the Transformer's blocks, all else the same.

    Attributes:
      units: of the layer.
      pretrained: a workdir of such a model that is trained already; None pre-trains one as the Transformer is.
      learning_rate: of its pre-training, where not the Transformer's.
      finetune_learning_rate: of its fine-tuning, where not the Transformer's.
    """

    units: int = 2048
    pretrained: str | None = None
    learning_rate: float | None = None
    finetune_learning_rate: float | None = None

    def __post_init__(self) -> None:
        """Checks the types."""
        check_fields(self, "lstm")


@dataclasses.dataclass(frozen=True)
class ReproduceConfig:
    """A reproduction of the paper; the defaults of what it consists of are the paper's.

    Attributes:
      parts: which of `PARTS`.
      data: of the named tasks: a folder that has their official files, or folders with them; "tfds" or "tfds:DIR".
      tasks: the tasks by name.
      seeds: runs of every fine-tuning, with the seeds finetune.seed, finetune.seed + 1, ...
      pretrain: pre-training, where no model is given. The checkpoints that `pretrain.loop.keep_every` keeps are the
        points of figure 2, right.
      lstm: the LSTM.
      finetune: the recipe of all tasks.
      n_transfer: numbers of layers transferred in figure 2, left, beside none at all and all; empty: all numbers.
      wnli: accuracy on WNLI in percent, which GLUE's average has in it; None: the average of eight tasks.
      example_data: "reviews" fetches the quick start's example data into the workdir, for the tasks "rotten_tomatoes"
        and the text to pre-train on; empty: the data are the user's.
      keep_checkpoints: of finished fine-tuning runs: "full" those of the first rows of table 5, "all" or "none".
    """

    parts: tuple[str, ...] = PARTS
    data: str = ""
    tasks: dict[str, TaskEntry] = dataclasses.field(default_factory=dict)
    seeds: int = 3
    pretrain: PretrainConfig = PretrainConfig()
    lstm: LSTMConfig = LSTMConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    n_transfer: tuple[int, ...] = ()
    wnli: float | None = None
    example_data: str = ""
    keep_checkpoints: str = "full"

    def __post_init__(self) -> None:
        """Checks names and ranges, and what is said in two places."""
        check_fields(self)
        if not self.parts:
            raise InputError(f"parts is empty; use some of {quoted(PARTS)}")
        if self.wnli is not None and not 0 <= self.wnli <= 100:
            raise InputError(f"wnli={self.wnli} is an accuracy in percent, from 0 to 100")
        for name in self.parts:
            if name not in PARTS:
                raise InputError(f"parts: {name!r} is unknown; use some of {quoted(PARTS)}")
        for field, known in (("example_data", EXAMPLES), ("keep_checkpoints", KEEP)):
            if getattr(self, field) not in known:
                raise InputError(f"{field}={getattr(self, field)!r} is unknown; use one of {quoted(known)}")
        if self.seeds < 1:
            raise InputError(f"seeds={self.seeds} must be at least 1")
        if not self.tasks:
            raise InputError("tasks is empty; configs/reproduce.py has the paper's, and says how to add your own")
        for name, entry in self.tasks.items():
            for field in ("ablated", "layers"):
                if getattr(entry, field) and not entry.finetuned:
                    raise InputError(
                        f"tasks.{name}: {field}=True contradicts finetuned=False; leave one of the two out"
                    )
            if not name.replace("_", "").replace("-", "").isalnum():
                raise InputError(f"tasks.{name}: a name is letters, digits, - and _, for it names a folder")
        in_the_paper = {column.task for table in paper.TABLES.values() for column in table}
        of_data_set: dict[str, str] = {}
        for name, entry in self.tasks.items():
            if entry.task.name in in_the_paper and (other := of_data_set.setdefault(entry.task.name, name)) != name:
                raise InputError(
                    f"tasks.{other} and tasks.{name} are both of {entry.task.name!r}, which has one place in the "
                    "paper's tables; leave one out"
                )
        finetune = self.finetune
        if finetune.seeds != 1 or finetune.sweep != SweepConfig() or finetune.task != TaskConfig():
            raise InputError(
                "finetune.seeds, .sweep and .task: a reproduction has one recipe for all; give `seeds` and `tasks` "
                "at the top level, and the values that a sweep of launch/finetune.py chose"
            )
        if not finetune.predict_test:
            raise InputError("finetune.predict_test=False: the tables are of the test splits; leave it out")
        for name, remedy in (("n_transfer", "n_transfer at the top"), ("tokenizer", "pretrain.tokenizer.path")):
            if getattr(finetune, name) is not None:
                raise InputError(f"finetune.{name}={getattr(finetune, name)!r}: give {remedy} instead")
        if finetune.lm_coef == 0 and "table5" in self.parts:
            raise InputError(
                "finetune.lm_coef=0: table 5 compares runs with the auxiliary LM objective and without; give a weight "
                "above 0, or leave 'table5' out of parts"
            )

    def in_the_papers_order(self) -> ReproduceConfig:
        """The same with the tasks in the order of the paper's tables, the user's own after them."""
        known = list(dict.fromkeys(column.task for table in paper.TABLES.values() for column in table))
        place = {name: known.index(entry.task.name) for name, entry in self.tasks.items() if entry.task.name in known}
        names = sorted(self.tasks, key=lambda name: place.get(name, len(known)))
        return dataclasses.replace(self, tasks={name: self.tasks[name] for name in names})

    def title(self, name: str) -> str:
        """How tables call a task."""
        return self.tasks[name].title or name

    def summary(self) -> str:
        """The parts, tasks and seeds in a line."""
        return (
            f"{', '.join(self.parts)} of {counted(len(self.tasks), 'task')}, "
            f"{counted(self.seeds, 'seed')} of every fine-tuning"
        )
