"""Evaluates a checkpoint: perplexity and bits per byte of text, or the metrics of a task.

    python launch/evaluate.py --checkpoint=runs/books                              # its own held-out text
    python launch/evaluate.py --checkpoint=runs/books --source='text:other/*.txt'  # any text
    python launch/evaluate.py --checkpoint=runs/reviews --split=validation         # the run's own task
    python launch/evaluate.py --checkpoint=runs/reviews --data=other.csv           # other rows with the same columns

The table goes to the standard output; --output=FILE also writes the numbers as JSON.
"""

from pathlib import Path

from absl import flags

from gpt1_jax import cli

CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Workdir of a run.", required=True)
SOURCE = flags.DEFINE_string("source", "", "Text: text:GLOB, jsonl:GLOB#field or tfds:NAME.")
SPLIT = flags.DEFINE_list("split", ["validation"], "Splits of the run's task.")
DATA = flags.DEFINE_list("data", [], "Labelled files to evaluate instead of the task's own splits.")
STEP = flags.DEFINE_integer("step", None, "Checkpoint; default the best, else the latest.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Rows worked off at a time.", lower_bound=1)
OUTPUT = flags.DEFINE_string("output", None, "Also write the results to this JSON file.")


def main() -> None:
    """Runs, and prints a table."""
    from gpt1_jax import evaluate
    from gpt1_jax.files import make_directory, write_json

    if OUTPUT.value:
        make_directory(Path(OUTPUT.value).parent, "output")
    config = evaluate.EvaluateConfig(
        source=SOURCE.value,
        splits=tuple(SPLIT.value),
        data=tuple(DATA.value),
        step=STEP.value,
        batch_size=BATCH_SIZE.value,
    )
    results = evaluate.run(CHECKPOINT.value, config)
    print(evaluate.results_table(results))
    if OUTPUT.value:
        write_json(Path(OUTPUT.value), results)


if __name__ == "__main__":
    cli.run(main)
