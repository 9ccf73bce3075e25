r"""Reproduces the paper's tables 2 to 5 and figure 2 on the data there are, as a page with plots.

    python launch/reproduce.py --config=configs/reproduce.py:quickstart --workdir=W
                                                         # some 45 minutes on two cores

    python launch/reproduce.py --config=configs/reproduce.py --config.data=FOLDER \
        --pretrained=finetune-transformer-lm/model --config.parts=tables --workdir=W
                                                         # tables 2 to 4

Start the same command again to continue: only what is missing is run; --dry_run says what that is.
Keys that matter: config.data or config.tasks.NAME.task, config.parts, config.seeds,
config.pretrain.source, config.finetune.*, config.lstm.units. configs/reproduce.py describes them.
"""

from absl import flags
from ml_collections import config_flags

from gpt1_jax import cli, host_memory

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/reproduce.py[:SIZE]; sizes: paper, own, quickstart. Required."
)
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of all runs and of the page: made, or continued.", required=True)
PRETRAINED = flags.DEFINE_string(
    "pretrained",
    None,
    "Pre-trained Transformer: OpenAI's folder, a Hugging Face folder or a workdir. Default: it is pre-trained.",
)
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Says what would be run, and what cannot be, and runs nothing.")


def main() -> None:
    """Runs what is missing, and prints the tables and where the page is."""
    from gpt1_jax.reproduce import tables, workflow
    from gpt1_jax.reproduce.page import next_program

    host_memory.keep_freed()
    if DRY_RUN.value:
        print(workflow.outline(CONFIG.value, WORKDIR.value, PRETRAINED.value))
        return
    result = workflow.run(CONFIG.value, WORKDIR.value, PRETRAINED.value)
    for table in result.tables:
        print(f"{tables.as_text(table)}\n")
    for claim in result.claims:
        print(f"{claim.verdict:>20}: {claim.text}: {claim.detail}")
    print(f"\nthe page is {result.page}, with a PNG or CSV file beside it for each figure and table")
    if step := next_program(result.scores, result.page.parents[1]):
        print(cli.next_steps(cli.command(*step)))


if __name__ == "__main__":
    cli.run(main, several=True)
