"""Fine-tuning with the paper's recipe: 3 epochs, batch 32, 6.25e-5 with a linear decay to 0, lambda 0.5.

    python launch/finetune.py --config=configs/finetune.py:custom --config.task.train=reviews.csv \
        --config.task.fields.text=review --config.task.label=sentiment --init_from=W --workdir=NEW

custom (default)  Your own CSV, TSV or JSONL files, one text a row. Without config.task.validation a tenth of the
                  training rows is held out. Small models want a higher rate: try 5e-4.
"""

from ml_collections import ConfigDict

from gpt1_jax.config import to_config_dict
from gpt1_jax.errors import InputError
from gpt1_jax.finetune import FinetuneConfig
from gpt1_jax.tasks.config import TASKS
from gpt1_jax.tasks.spec import FIELDS


def get_config(task: str = "custom") -> ConfigDict:
    """The config of a task."""
    if task not in TASKS:
        raise InputError(f"task {task!r} is unknown; use one of {', '.join(sorted(TASKS))}")
    config = to_config_dict(FinetuneConfig())  # the paper's
    config.task.name = task
    if task == "custom":
        # Every field of every kind may be given on the command line; an empty one has the column of its own name.
        config.task.fields = ConfigDict({field: "" for fields in FIELDS.values() for field in fields})
    return config
