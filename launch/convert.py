"""Converts a model between OpenAI's released layout, Hugging Face's and ours.

    python launch/convert.py --source=finetune-transformer-lm/model --target=gpt1 --format=gpt1_jax
    python launch/convert.py --source=runs/books --target=books-hf --format=huggingface

The source is a workdir of a run, a converted folder, OpenAI's folder, or a Hugging Face folder of
an openai-gpt model. Hugging Face's classification head has no bias: only a run with
--config.model.clf_bias=False goes into that layout. What was written is loaded again, and its
logits compared with the source's.
"""

from absl import flags

from gpt1_jax import cli

SOURCE = flags.DEFINE_string("source", None, "Folder to read; its format is recognised.", required=True)
TARGET = flags.DEFINE_string("target", None, "New or empty folder to write.", required=True)
FORMAT = flags.DEFINE_enum("format", None, ["gpt1_jax", "huggingface", "openai"], "Of the target.", required=True)
STEP = flags.DEFINE_integer("step", None, "Checkpoint of a workdir; default the best, else the latest.")
N_CTX = flags.DEFINE_integer("n_ctx", None, "Keep the first positions only.", lower_bound=1)
N_HEAD = flags.DEFINE_integer("n_head", None, "Heads, where the source does not say (OpenAI's; default 12).")
TOKENIZER = flags.DEFINE_string("tokenizer", None, "Folder whose tokenizer takes the place of the source's.")
APPROXIMATE = flags.DEFINE_bool("approximate_tokenizer", False, "Original BPE without ftfy and spaCy: some other ids.")


def main() -> None:
    """Converts, and prints the summary."""
    from gpt1_jax import convert
    from gpt1_jax.interop import openai_folder

    converted = convert.run(
        SOURCE.value,
        TARGET.value,
        FORMAT.value,
        step=STEP.value,
        n_ctx=N_CTX.value,
        n_head=N_HEAD.value,
        tokenizer=TOKENIZER.value,
        approximate=APPROXIMATE.value,
    )
    print(converted)
    n_head = converted.model.config.n_head
    if FORMAT.value == "openai" and n_head != openai_folder.N_HEAD:  # which no program would know
        back = {"source": TARGET.value, "target": f"{TARGET.value.rstrip('/')}-gpt1", "format": "gpt1_jax"}
        print(cli.next_steps(cli.command("convert", back | {"n_head": n_head})))
    else:
        print(cli.next_steps(cli.command("generate", {"checkpoint": TARGET.value, "prompt": "it was"})))


if __name__ == "__main__":
    cli.run(main)
