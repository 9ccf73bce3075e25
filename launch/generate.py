r"""Continues text.

    python launch/generate.py --checkpoint=runs/books --prompt='It was' --max_new_tokens=60 \
        --temperature=0.8 --top_k=40

Repeat --prompt for several texts in one batch; --samples=N continues each N times. The texts go to
the standard output, all else to the standard error.
"""

import sys

from absl import flags, logging

from gpt1_jax import cli

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "A workdir, OpenAI's or a Hugging Face folder, also gs://... Required.", required=True
)
PROMPT = flags.DEFINE_multi_string("prompt", [""], "Text to continue; empty begins a new document.")
SAMPLES = flags.DEFINE_integer("samples", 1, "Continuations of each prompt.", lower_bound=1)
MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 40, "Most tokens to add.")
TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "Logits are divided by it; 0 takes the likeliest token always.")
TOP_K = flags.DEFINE_integer("top_k", None, "Draw from the k likeliest tokens only.")
TOP_P = flags.DEFINE_float("top_p", 1.0, "Draw from the likeliest tokens that hold this probability.")
SEED = flags.DEFINE_integer("seed", 0, "Of the random stream.")
STEP = flags.DEFINE_integer("step", None, "Checkpoint; default the best, else the latest.")
DTYPE = flags.DEFINE_enum("dtype", None, ["float32", "bfloat16"], "Of the computation; default the checkpoint's own.")


def main() -> None:
    """Prints the continuations."""
    from gpt1_jax import generate, load_pretrained
    from gpt1_jax.errors import counted

    model, params, tokenizer = load_pretrained(CHECKPOINT.value, step=STEP.value, dtype=DTYPE.value)
    prompts = [prompt for prompt in PROMPT.value for _ in range(SAMPLES.value)]
    logging.info("%s, at most %d new tokens each", counted(len(prompts), "text"), MAX_NEW_TOKENS.value)
    texts = generate(
        model,
        params,
        tokenizer,
        prompts,
        max_new_tokens=MAX_NEW_TOKENS.value,
        temperature=TEMPERATURE.value,
        top_k=TOP_K.value,
        top_p=TOP_P.value,
        seed=SEED.value,
    )
    print("\n---\n".join(texts), flush=True)
    print(cli.next_steps(cli.export_command(CHECKPOINT.value)), file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
