r"""Evaluates a checkpoint: perplexity of text, or the metrics of a task, also zero-shot.

    python launch/evaluate.py --checkpoint=runs/books                             # its own held-out
    python launch/evaluate.py --checkpoint=runs/books --source='text:other/*.txt' # any text
    python launch/evaluate.py --checkpoint=runs/reviews                           # validation split
    python launch/evaluate.py --checkpoint=runs/reviews --split=train,test        # other splits
    python launch/evaluate.py --checkpoint=runs/reviews --data=other.csv          # other rows
    python launch/evaluate.py --checkpoint=runs/reviews --data=new.csv --unlabelled \
        --predictions=out
    python launch/evaluate.py --checkpoint=runs/books --zero_shot=sst2 --data=reviews.csv \
        --field=text=review --label=sentiment

gpt1_jax/tasks/zero_shot.py describes the zero-shot heuristics (section 5 of the paper).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from gpt1_jax import cli, host_memory

if TYPE_CHECKING:
    from gpt1_jax.tasks.config import TaskConfig

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "A workdir, OpenAI's or a Hugging Face folder, also gs://... Required.", required=True
)
SOURCE = flags.DEFINE_string("source", "", "Text: text:GLOB, jsonl:GLOB#field or tfds:NAME.")
SPLIT = flags.DEFINE_list("split", [], "Splits of the run's task; default: for validation, those with labels.")
PREDICTIONS = flags.DEFINE_string(
    "predictions", "", "Folder for the predictions of a task's splits or of --data, their report and submission files."
)
UNLABELLED = flags.DEFINE_bool("unlabelled", False, "--data has no labels: predictions only.")
DATA = flags.DEFINE_list("data", [], "Labelled files to evaluate instead of the task's splits; --task's folder.")
ZERO_SHOT = flags.DEFINE_string("zero_shot", "", "Heuristic or template that is asked instead of a task head.")
TASK = flags.DEFINE_string("task", "custom", "Zero-shot: the named task whose folder is --data.")
TRAIN = flags.DEFINE_list("train", [], "Zero-shot: files whose rows choose cola's threshold, or give label names.")
FIELD = flags.DEFINE_multi_string(
    "field", [], "field=column of --data that is not read as the run's files are; give --label, too."
)
LABEL = flags.DEFINE_string("label", "label", "The label's column of --data, with --field or zero-shot.")
LABELS = flags.DEFINE_list("labels", [], "Zero-shot: label names of --data in class order.")
LABEL_WORDS = flags.DEFINE_multi_string("label_words", [], "Zero-shot: label=words in a template; may be repeated.")
SCORE = flags.DEFINE_enum("score", None, ["mean", "total"], "Zero-shot: instead of the heuristic's own.")
STEP = flags.DEFINE_integer("step", None, "Checkpoint; default the best, else the latest.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Rows worked off at a time.", lower_bound=1)
OUTPUT = flags.DEFINE_string("output", None, "Also write the results to this JSON file.")


def main() -> None:
    """Runs, and prints a table."""
    from gpt1_jax import agreement, distributed, evaluate
    from gpt1_jax.files import check_writable, make_directory, write_json

    host_memory.keep_freed()
    if OUTPUT.value:
        agreement.on_first(lambda: make_directory(Path(OUTPUT.value).parent, "output"))
        agreement.on_first(lambda: check_writable(Path(OUTPUT.value), "output"))
    config = evaluate.EvaluateConfig(
        source=SOURCE.value,
        splits=tuple(SPLIT.value),
        data=tuple(DATA.value) if TASK.value == "custom" else (),
        unlabelled=UNLABELLED.value,
        predictions=PREDICTIONS.value,
        zero_shot=ZERO_SHOT.value,
        task=_task(),
        label_words=_pairs("label_words", LABEL_WORDS.value),
        score=SCORE.value,
        step=STEP.value,
        batch_size=BATCH_SIZE.value,
    )
    results = evaluate.run(CHECKPOINT.value, config)
    if OUTPUT.value and distributed.is_first():
        write_json(Path(OUTPUT.value), results)
    if results:
        print(evaluate.results_table(results))
    for what, where in (("predictions", PREDICTIONS.value), ("results", OUTPUT.value)):
        if where:
            print(f"\n{what} are in {where}")
    is_task = ZERO_SHOT.value or any(isinstance(value, dict) for value in results.values()) or not results
    if is_task and not ZERO_SHOT.value:
        print(cli.next_steps(cli.export_command(CHECKPOINT.value)))
    else:
        print(cli.next_steps(cli.command("generate", {"checkpoint": CHECKPOINT.value, "prompt": "it was"})))


def _task() -> TaskConfig | None:
    """The task, if a flag says anything about it."""
    from gpt1_jax.errors import InputError
    from gpt1_jax.tasks.config import TaskConfig

    if not any(flags.FLAGS[name].present for name in ("task", "train", "field", "label", "labels")):
        return None
    named = TASK.value != "custom"
    if named and len(DATA.value) > 1:
        raise InputError(f"--data={','.join(DATA.value)}: --task={TASK.value} has its files in one folder")
    return TaskConfig(
        name=TASK.value,
        data=DATA.value[0] if named and DATA.value else "",
        train=tuple(TRAIN.value),
        fields=TaskConfig().fields | _pairs("field", FIELD.value),
        label=LABEL.value,
        labels=tuple(LABELS.value),
    )


def _pairs(flag: str, values: list[str]) -> dict[str, str]:
    """Values `a=b` of a repeated flag as a mapping."""
    from gpt1_jax.errors import InputError

    pairs = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not (name and equals and rest):
            raise InputError(f"--{flag}={value}: name=value is expected")
        if name in pairs:
            raise InputError(f"--{flag}={value}: {name!r} is given twice")
        pairs[name] = rest
    return pairs


if __name__ == "__main__":
    cli.run(main, several=True)
