"""Exports a model as a folder that predicts with JAX and NumPy alone, with its tokenizer.

    python launch/export.py --checkpoint=runs/reviews --target=reviews-export
    python launch/export.py --checkpoint=runs/books --target=books-export

A fine-tuned model gives its task's answers, any other the language model; --head=lm gives the
language model of both. It runs on CPU, TPU and CUDA, where this package need not be:
python reviews-export/predict.py 'a moving story'. gpt1_jax/export/__init__.py says what the folder
holds and how long it lives.
"""

import shlex

from absl import flags

from gpt1_jax import cli

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "A workdir, OpenAI's or a Hugging Face folder, also gs://... Required.", required=True
)
TARGET = flags.DEFINE_string("target", None, "New or empty folder to write.", required=True)
HEAD = flags.DEFINE_enum("head", None, ["task", "lm"], "What is exported; default the task where there is one.")
STEP = flags.DEFINE_integer("step", None, "Checkpoint of a workdir; default the best, else the latest.")
DTYPE = flags.DEFINE_enum("dtype", None, ["float32", "bfloat16"], "Of the computation; default the model's own.")
APPROXIMATE = flags.DEFINE_bool("approximate_tokenizer", False, "Original BPE without ftfy and spaCy: some other ids.")


def main() -> None:
    """Exports, and prints the summary."""
    from gpt1_jax import export

    exported = export.run(
        CHECKPOINT.value,
        TARGET.value,
        head=HEAD.value,
        step=STEP.value,
        dtype=DTYPE.value,
        approximate=APPROXIMATE.value,
    )
    print(exported)
    script = shlex.quote(str(exported.target / "predict.py"))
    print(cli.next_steps(f"{cli.python()} {script} {exported.try_it}"))


if __name__ == "__main__":
    cli.run(main)
