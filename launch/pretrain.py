r"""Pre-trains GPT-1 on raw text: tokenizer, token shards, training, held-out perplexity.

    python launch/pretrain.py --config=configs/pretrain.py:small \
        --config.source='text:books/**/*.txt' --workdir=W

    python launch/pretrain.py --config=configs/pretrain.py:continue --init_from=MODEL \
        --config.source='text:reports/*.txt' --workdir=W     # goes on with a model on other text

    python launch/pretrain.py --config=configs/pretrain.py:gpt1 --config.shards=SHARDS --workdir=W
                                         # on text that launch/prepare.py has prepared

Start the same command again to continue.
"""

from absl import flags
from ml_collections import config_flags

from gpt1_jax import cli, host_memory

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/pretrain.py[:SIZE]: gpt1, small, quickstart or continue. Required."
)
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run, also gs://...: made, or continued. Required.", required=True
)
INIT_FROM = flags.DEFINE_string("init_from", None, "Model to go on with: a workdir, OpenAI's or a Hugging Face folder.")

KEYS = cli.ConfigKeys(
    "gpt1_jax.pretrain:PretrainConfig",
    (
        "source",
        "shards",
        "heldout_fraction",
        "model.n_layer",
        "model.n_embd",
        "model.n_ctx",
        "model.vocab_size",
        "model.dtype",
        "batch_size",
        "epochs",
        "n_steps",
        "optimizer.learning_rate",
        "optimizer.warmup_steps",
        "loop.save_every",
    ),
)


def main() -> None:
    """Runs, and prints the result and what may come next."""
    from gpt1_jax import evaluate, pretrain

    host_memory.keep_freed()
    result = pretrain.run(CONFIG.value, WORKDIR.value, INIT_FROM.value)
    if result.metrics:
        print(evaluate.results_table(result.metrics))
    print(f"\nresults are in {WORKDIR.value}")
    task = {"config.task.train": "TRAIN.csv", "config.task.fields.text": "COLUMN", "config.task.label": "COLUMN"}
    started = {"init_from": WORKDIR.value, "workdir": f"{WORKDIR.value.rstrip('/')}-task"}
    print(
        cli.next_steps(
            cli.command("generate", {"checkpoint": WORKDIR.value, "prompt": "it was"}),
            cli.command(
                "finetune", {"config": f"{cli.in_repository('configs/finetune.py')}:custom", **task, **started}
            ),
        )
    )


if __name__ == "__main__":
    cli.run(main, several=True, keys=KEYS)
