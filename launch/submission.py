"""Puts test predictions of finished GLUE runs into the zip that the benchmark's server takes.

    python launch/submission.py --runs=runs/cola,runs/sst2,runs/mnli,... --target=glue.zip
    python launch/submission.py --runs=runs/sst2,WNLI.tsv --fill_missing --target=sst2_only.zip

A run leaves its files in submission/ of its workdir. They have to be of the official test sets,
whole.
"""

from pathlib import Path

from absl import flags

from gpt1_jax import cli

RUNS = flags.DEFINE_list("runs", None, "Workdirs of fine-tuning runs, or single .tsv files.", required=True)
TARGET = flags.DEFINE_string("target", None, "The .zip to write.", required=True)
FILL_MISSING = flags.DEFINE_bool("fill_missing", False, "Fill files that no run has with a constant prediction.")


def main() -> None:
    """Writes the zip, and prints what is in it and what is not."""
    from gpt1_jax.tasks.submission import GLUE_FILES, write_glue_zip

    sources = write_glue_zip(RUNS.value, Path(TARGET.value), fill_missing=FILL_MISSING.value)
    for name, file in GLUE_FILES.items():
        source = (sources[name] or "a constant, predicted by no model") if name in sources else "MISSING"
        print(f"{name:12} {file.n_rows:7d}  {source}")
    print(f"\n{len(sources)} of {len(GLUE_FILES)} files are in {TARGET.value}")
    if len(sources) == len(GLUE_FILES):
        print("\nnext: upload it at https://gluebenchmark.com/submit")
    else:
        values = {"runs": [*RUNS.value, "OTHER_RUNS"], "target": TARGET.value}
        print(cli.next_steps(cli.command("submission", values)))


if __name__ == "__main__":
    cli.run(main)
