"""Draws a run and its model: curves, confusion matrices, embeddings, attention, next tokens.

    python launch/plot.py --checkpoint=runs/books
    python launch/plot.py --checkpoint=runs/books --prompt='It was the best' --output=pictures
    python launch/plot.py --checkpoint=runs/reviews --prompt='a moving story'

A run draws its curves at its end; this draws them again, also those of a run that is still going.
Repeat --prompt for several texts. Of a folder without a run (OpenAI's, Hugging Face's) there are
embeddings and prompts alone.
"""

from absl import flags

from gpt1_jax import cli

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "A workdir, OpenAI's or a Hugging Face folder, also gs://...", required=True
)
PROMPT = flags.DEFINE_multi_string("prompt", [], "Text whose attention and next tokens are drawn; may be repeated.")
OUTPUT = flags.DEFINE_string("output", None, "Folder for the pictures; default plots/ in a workdir.")
STEP = flags.DEFINE_integer("step", None, "Checkpoint; default the best, else the latest.")


def main() -> None:
    """Draws, and prints the files."""
    from gpt1_jax.plots.checkpoint import write_plots

    for path in write_plots(CHECKPOINT.value, OUTPUT.value, PROMPT.value, step=STEP.value):
        print(path)


if __name__ == "__main__":
    cli.run(main)
