"""Fine-tunes GPT-1 on labelled examples.

    python launch/finetune.py --config=configs/finetune.py:custom --config.task.train=reviews.csv \
        --init_from=runs/books --workdir=runs/reviews

Start the same command again to continue. Keys that matter: config.task.train, .validation, .test, .label and .fields,
config.optimizer.learning_rate, config.batch_size, config.epochs, config.lm_coef, config.seed.
"""

from absl import flags
from ml_collections import config_flags

from gpt1_jax import cli

CONFIG = config_flags.DEFINE_config_file("config", None, "configs/finetune.py[:TASK]; tasks: custom. Required.")
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run: made, or continued.", required=True)
INIT_FROM = flags.DEFINE_string("init_from", None, "Pre-trained model: a workdir. Default: trained from scratch.")


def main() -> None:
    """Runs, and prints the result and what may come next."""
    from gpt1_jax import evaluate, finetune

    result = finetune.run(CONFIG.value, WORKDIR.value, INIT_FROM.value)
    if result.metrics:
        print(evaluate.results_table(result.metrics))
    print(
        f"\nresults and predictions are in {WORKDIR.value}; next:\n"
        f"  python launch/evaluate.py --checkpoint={WORKDIR.value} --data=OTHER.csv"
    )


if __name__ == "__main__":
    cli.run(main)
