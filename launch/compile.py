r"""Compiles the step that the trainer runs for chips that are not here, and says what it needs.

    python launch/compile.py --config=configs/pretrain.py --topology=v5e:2x4 \
        --config.model.dtype=bfloat16
    python launch/compile.py --config=configs/finetune.py:sst2 --topology=v6e:2x4,cuda:h100:8 \
        --length=128

Prints the memory of a chip, the compiler's estimate of an update, floors, and every collective with
its bytes; nothing is executed, and a CPU is enough. What does not fit or does not divide is refused
here, and not in a queue. Topologies: v5e:2x4 (v5e-8), v5e:16x16, v5p:2x2x1 (v5p-8), v6e:2x4,
v4:2x2x2, 2xv5e:16x16 (two slices), cuda:h100:8. TPU needs libtpu, NVIDIA its compiler: the message
says which. launch/README.md has a table of figures.
"""

import shlex
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from gpt1_jax import cli

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/pretrain.py[:SIZE] or configs/finetune.py:TASK, as for training. Required."
)
flags.mark_flag_as_required("config")
TOPOLOGY = flags.DEFINE_list("topology", None, "Machines to compile for, such as v5e:2x4,cuda:h100:8.", required=True)
LENGTH = flags.DEFINE_integer("length", None, "Fine-tuning: tokens of a row, one of its buckets. Default: n_ctx.")
JSON = flags.DEFINE_string("json", None, "File for the figures: an object, or with several topologies a list.")
HLO = flags.DEFINE_string("hlo", None, "Folder for the texts of the compiled programs.")


def main() -> None:
    """Compiles for each topology and prints."""
    from gpt1_jax.aot import report, topologies
    from gpt1_jax.aot.compiler import compile_for, does_not_fit
    from gpt1_jax.errors import InputError
    from gpt1_jax.files import check_writable, make_directory, write_atomically, write_json

    machines = [topologies.parse_topology(name) for name in TOPOLOGY.value or [""]]
    if JSON.value:
        check_writable(Path(JSON.value), "--json")
    if HLO.value:
        make_directory(Path(HLO.value), "--hlo")
    topologies.compile_only()
    reports, refused = [], []
    for machine in machines:
        print(f"compiling for {machine.name}: a minute or two for the paper's model", flush=True)
        try:
            one, text = compile_for(CONFIG.value, machine, length=LENGTH.value)
        except InputError as error:
            if len(machines) == 1:
                raise
            refused.append(error)
            print(f"error: {error}", file=sys.stderr)
            continue
        reports.append(one)
        print(report.page(one) + "\n", flush=True)
        if not one.fits:  # of which only a TPU's compiler would have made an error
            refused.append(does_not_fit(one.topology, one.batch, one.mesh))
            if len(machines) > 1:
                print(f"error: {refused[-1]}", file=sys.stderr)
        if HLO.value:
            name = machine.name.replace(":", "-")
            write_atomically(Path(HLO.value, f"{name}.txt"), text.encode("utf-8"))
    if len(machines) > 1 and reports:
        print(report.comparison(reports))
    if JSON.value and reports:
        figures = [one.figures() for one in reports]
        write_json(Path(JSON.value), figures[0] if len(machines) == 1 else figures)
    if reports and not refused:
        trains = cli.command(reports[0].program, {"workdir": "NEW"})
        print(cli.next_steps(f"{trains} {shlex.join(cli.config_arguments(sys.argv))}"))
    if refused and len(machines) == 1:
        raise refused[0]
    if refused:
        raise InputError(f"{len(refused)} of {len(machines)} topologies were refused, see above")


if __name__ == "__main__":
    cli.run(main)
