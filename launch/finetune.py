r"""Fine-tunes GPT-1 on labelled examples.

    python launch/finetune.py --config=configs/finetune.py:custom --config.task.train=reviews.csv \
        --config.task.fields.text=review --config.task.label=sentiment --init_from=runs/books --workdir=runs/reviews

Start the same command again to continue. Keys that matter: config.task.train, .validation, .test, .label and .fields,
or config.task.data for a data set of the paper; config.optimizer.learning_rate, config.batch_size, config.epochs,
config.lm_coef, config.seed, config.seeds, config.sweep. configs/finetune.py has the tasks and the other recipes.
"""

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from gpt1_jax import cli, host_memory

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/finetune.py[:TASK]; TASK is custom or a data set. Required."
)
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run, also gs://...: made, or continued.", required=True)
INIT_FROM = flags.DEFINE_string(
    "init_from",
    None,
    "Pre-trained model: a workdir, OpenAI's folder or a Hugging Face folder. Default: trained from scratch.",
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
    sent = [path.name for path in Path(workdir, submission.FOLDER).glob("*.tsv")]
    if sent:
        print(f", and for the benchmark's server {submission.FOLDER}/{', '.join(sorted(sent))}", end="")
    if set(sent) & set(submission.GLUE_FILES):
        print(
            f"; with the other tasks' runs, next:\n  python launch/submission.py --runs={workdir},... --target=glue.zip"
        )
    else:
        other = "OTHER.jsonl" if result.model.readout.kind == "multiple_choice" else "OTHER.csv"  # lists of answers
        print(f"; next:\n  python launch/evaluate.py --checkpoint={workdir} --data={other}")


if __name__ == "__main__":
    cli.run(main, several=True)
