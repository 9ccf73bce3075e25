r"""Pre-trains GPT-1 on raw text.

    python launch/pretrain.py --config=configs/pretrain.py:small --config.source='text:books/**/*.txt' --workdir=W

    python launch/pretrain.py --config=configs/pretrain.py:continue --config.source='text:reports/*.txt' \
        --init_from=MODEL --workdir=W    # goes on with a model on other text

    python launch/pretrain.py --config=configs/pretrain.py:gpt1 --config.shards=SHARDS --workdir=W
                                         # on text that launch/prepare.py has prepared, on many machines if it is much

Start the same command again to continue. Keys that matter: config.source or .shards, config.model.*, config.batch_size,
config.n_steps or config.epochs, config.optimizer.learning_rate and .warmup_steps, config.heldout_fraction,
config.mesh.*, config.loop.*.
"""

from absl import flags
from ml_collections import config_flags

from gpt1_jax import cli, host_memory

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/pretrain.py[:SIZE]; sizes: gpt1, small, quickstart, continue. Required."
)
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run, also gs://...: made, or continued.", required=True)
INIT_FROM = flags.DEFINE_string(
    "init_from", None, "Model to go on with: a workdir, OpenAI's folder or a Hugging Face folder. Default: a new one."
)


def main() -> None:
    """Runs, and prints the result and what may come next."""
    from gpt1_jax import evaluate, pretrain

    host_memory.keep_freed()
    result = pretrain.run(CONFIG.value, WORKDIR.value, INIT_FROM.value)
    if result.metrics:
        print(evaluate.results_table(result.metrics))
    print(
        f"\nresults are in {WORKDIR.value}; next:\n"
        f"  python launch/generate.py --checkpoint={WORKDIR.value} --prompt='...'\n"
        f"  python launch/finetune.py --config=configs/finetune.py:custom --config.task.train=TRAIN.csv "
        "--config.task.fields.text=COLUMN --config.task.label=COLUMN "
        f"--init_from={WORKDIR.value} --workdir=NEW"
    )


if __name__ == "__main__":
    cli.run(main, several=True)
