"""Serves a page to try models on: generate, classify, see attention.

    python launch/playground.py --checkpoint=runs/books
    python launch/playground.py --checkpoint=runs/reviews --checkpoint=runs/books --port=8000

Each token that was generated tells its probability and what else might have come; a fine-tuned
model has a form with the fields of its task. The page is for this machine alone unless --host says
otherwise, and asks no other for anything. It needs gradio: pip install -e '.[demo]'
"""

from absl import flags

from gpt1_jax import cli

CHECKPOINT = flags.DEFINE_multi_string(
    "checkpoint", None, "A workdir, OpenAI's or a Hugging Face folder, also gs://...; may be repeated.", required=True
)
HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; 0.0.0.0 for all who reach this machine.")
PORT = flags.DEFINE_integer("port", 7860, "Port to listen on; 0 for a free one.", lower_bound=0, upper_bound=65535)


def main() -> None:
    """Serves until Ctrl-C."""
    from gpt1_jax import playground

    playground.run(CHECKPOINT.value, host=HOST.value, port=PORT.value)


if __name__ == "__main__":
    cli.run(main)
