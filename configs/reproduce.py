"""The paper's tables 2 to 5 and figure 2, on the data there are: one command, restartable, one page at the end.

    python launch/reproduce.py --config=configs/reproduce.py --config.data=FOLDER \
        --pretrained=finetune-transformer-lm/model --workdir=W

paper (default)  Tables 2 to 4 (twelve data sets), GLUE's average, table 5 (the full model; without pre-training;
                 without auxiliary LM; an LSTM of 2048 units), figure 2 (layers transferred; zero-shot over updates).
                 FOLDER holds the official files as they are unpacked (glue_data, snli_1.0, SciTailV1.1, RACE, the
                 Story Cloze files), or is tfds; a data set that is not there is left out, and the page says where to
                 get it. One data set elsewhere: --config.tasks.sst2.task.data=SST-2. Without --pretrained the
                 Transformer is pre-trained (--config.pretrain.source=text:GLOB); the LSTM and the curves over
                 pre-training need that text too, or a workdir that has them: --config.lstm.pretrained=W, and as
                 --pretrained one with loop.keep_every. 12 fine-tuning runs per seed for the tables, 61 for all parts.
own              The same for your own files, described as for configs/finetune.py:custom; with a model, or a text:

    python launch/reproduce.py --config=configs/reproduce.py:own --config.tasks.own.task.train=reviews.csv \
        --config.tasks.own.task.fields.text=review --config.tasks.own.task.label=sentiment \
        --config.pretrain.source='text:books/**/*.txt' --workdir=W

quickstart       Some 45 minutes on two CPU cores: a Transformer of 4 layers of 128 and an LSTM of 192 units, on IMDB
                 reviews and Rotten Tomatoes sentences, which are fetched (13 MB). Only sentiment carries a claim.

    python launch/reproduce.py --config=configs/reproduce.py:quickstart --workdir=W

To do less or more, for any of them:

    --config.parts=tables,table5     also figure2_left, figure2_right
    --config.seeds=5                 runs of every fine-tuning; may be raised later, as tasks and parts may be added
    --config.n_transfer=3,6,9        numbers of layers in figure 2, left; default all
    --config.finetune.epochs=5       the recipe of all tasks, which is the paper's; .model.dtype=bfloat16, .batch_size
    --config.pretrain.n_steps=20000  for a smaller text, with .model.n_layer and the like; .loop.keep_every is how many
                                     updates there are between two points of figure 2, right
    --config.wnli=65.1               a score on WNLI in percent, for GLUE's average of nine tasks
"""

import dataclasses

from ml_collections import ConfigDict

from gpt1_jax.config import to_config_dict
from gpt1_jax.errors import InputError
from gpt1_jax.reproduce.config import ReproduceConfig, TaskEntry
from gpt1_jax.tasks.config import TaskConfig

SIZES = ("paper", "own", "quickstart")

TASKS = {  # in the order of the tables
    "mnli": TaskEntry(title="MNLI", ablated=True, layers=True),
    "snli": TaskEntry(title="SNLI"),
    "scitail": TaskEntry(title="SciTail"),
    "qnli": TaskEntry(title="QNLI", ablated=True),
    "rte": TaskEntry(title="RTE", ablated=True),
    "story_cloze": TaskEntry(title="Story Cloze", as_the_original=True),
    "race": TaskEntry(title="RACE", layers=True, zero_shot="race", chance=25.0, ceiling=59.0),
    "cola": TaskEntry(title="CoLA", ablated=True, zero_shot="cola", chance=0.0, ceiling=45.4),
    "sst2": TaskEntry(title="SST-2", ablated=True, zero_shot="sst2", chance=50.0, ceiling=93.2),
    "mrpc": TaskEntry(title="MRPC", ablated=True),
    "stsb": TaskEntry(title="STS-B", ablated=True),
    "qqp": TaskEntry(title="QQP", ablated=True),
}
"""Of figure 2, right, 1 is the best single model of the paper's tables: its own, for SST-2 the 93.2 of table 4."""


def get_config(size: str = "paper") -> ConfigDict:
    """The config of a size."""
    if size not in SIZES:
        raise InputError(f"size {size!r} is unknown; use one of {', '.join(SIZES)}")
    tasks = {name: entry_with(entry, TaskConfig(name=name)) for name, entry in TASKS.items()}
    if size == "own":
        tasks = {"own": TaskEntry(ablated=True, layers=True)}
    if size == "quickstart":
        tasks = {
            "rotten_tomatoes": TaskEntry(title="Rotten Tomatoes", ablated=True, layers=True, zero_shot="sst2"),
        }
    config = to_config_dict(ReproduceConfig(tasks=tasks))
    config.tasks = ConfigDict({name: to_config_dict(entry) for name, entry in tasks.items()})
    config.pretrain.loop.keep_every = 100_000 if size == "paper" else 1_000  # the points of figure 2, right
    if size == "paper":
        winograd = TaskEntry(title="Winograd schemas", zero_shot="winograd", finetuned=False, chance=50.0)
        config.tasks.winograd = to_config_dict(winograd)
        config.tasks.winograd.task.kind = "multiple_choice"
    if size == "quickstart":
        quickstart(config)
    return config


def entry_with(entry: TaskEntry, task: TaskConfig) -> TaskEntry:
    """The entry of a named data set."""
    return dataclasses.replace(entry, task=task)


def quickstart(config: ConfigDict) -> None:
    """A laptop's CPU and some 45 minutes."""
    config.example_data = "reviews"
    model, pretrain, finetune = config.pretrain.model, config.pretrain, config.finetune
    model.vocab_size = 4_096
    model.n_layer = 4
    model.n_embd = 128
    model.n_head = 4
    model.n_ctx = 80
    # Less than one pass over the text: there is nothing to regularise yet.
    model.embd_pdrop = model.attn_pdrop = model.resid_pdrop = 0.0
    pretrain.batch_size = 16
    pretrain.n_steps = 2_500
    pretrain.optimizer.learning_rate = 2e-3  # at 3e-3 four layers do not leave the plateau of the unigrams
    pretrain.optimizer.warmup_steps = 250
    pretrain.loop.log_every = 50
    pretrain.loop.eval_every = pretrain.loop.save_every = pretrain.loop.keep_every = 250
    pretrain.max_eval_batches = 20
    config.n_transfer = (0, 2)  # and all four, which is what the other parts have anyway
    config.lstm.units = 192  # 0.3 times the weights of the blocks, as 2048 are at the paper's size
    finetune.epochs = 2
    finetune.optimizer.learning_rate = 1e-3  # small models want a higher rate than the paper's
    finetune.optimizer.warmup_fraction = 0.1
    finetune.plots = False
    for site in ("embd", "attn", "resid", "clf"):
        finetune.model[f"{site}_pdrop"] = 0.1  # the paper's, also where pre-training did without
