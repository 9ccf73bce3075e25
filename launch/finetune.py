r"""Fine-tunes GPT-1 on labelled examples, and predicts the test rows.

    python launch/finetune.py --config=configs/finetune.py:custom --config.task.train=reviews.csv \
        --config.task.fields.text=review --config.task.label=sentiment \
        --init_from=runs/books --workdir=runs/reviews

Start the same command again to continue. configs/finetune.py lists the paper's tasks, how pairs,
scores and choices are given, and the other recipes.
"""

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from gpt1_jax import cli, host_memory

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/finetune.py[:TASK]; TASK is custom or a data set. Required."
)
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run, also gs://...: made, or continued. Required.", required=True
)
INIT_FROM = flags.DEFINE_string(
    "init_from",
    None,
    "Pre-trained model: a workdir, OpenAI's or a Hugging Face folder. Default: from scratch; needs config.tokenizer.",
)

KEYS = cli.ConfigKeys(
    "gpt1_jax.finetune_config:FinetuneConfig",
    (
        "task.data",
        "task.train",
        "task.validation",
        "task.test",
        "task.fields",
        "task.label",
        "task.kind",
        "model.dtype",
        "batch_size",
        "epochs",
        "optimizer.learning_rate",
        "lm_coef",
        "n_transfer",
        "seeds",
        "sweep.learning_rate",
    ),
)


def main() -> None:
    """Runs, and prints the result and what may come next."""
    from gpt1_jax import evaluate, finetune, repeats
    from gpt1_jax.tasks import submission

    host_memory.keep_freed()
    result = finetune.run(CONFIG.value, WORKDIR.value, INIT_FROM.value)
    workdir = WORKDIR.value
    if result.repeats is not None:
        print(repeats.table(result.repeats))
        print(f"\nall runs are in {workdir}, listed in results.json; by the validation split the best is")
        workdir = f"{workdir}/{result.repeats.best.workdir}"
    elif result.metrics:
        print(evaluate.results_table(result.metrics))
    print(f"\nresults and predictions are in {workdir}", end="")
    sent = sorted(path.name for path in Path(workdir, submission.FOLDER).glob("*.tsv"))
    print(f", and for the benchmark's server {submission.FOLDER}/{', '.join(sent)}" if sent else "")
    other = "OTHER.jsonl" if result.model.readout.kind == "multiple_choice" else "OTHER.csv"  # lists of answers
    steps = [cli.command("evaluate", {"checkpoint": workdir, "data": other})]
    if set(sent) & set(submission.GLUE_FILES):
        steps = [cli.command("submission", {"runs": f"{workdir},OTHER_RUNS", "target": "glue.zip"})]
    print(cli.next_steps(*steps))


if __name__ == "__main__":
    cli.run(main, several=True, keys=KEYS)
