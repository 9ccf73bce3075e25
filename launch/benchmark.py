r"""Measures training, evaluation, decoding and all around them on this machine.

    python launch/benchmark.py --parts=pretrain,decode
    python launch/benchmark.py --config=configs/pretrain.py --config.model.dtype=bfloat16 \
        --parts=pretrain --json=a.json

--parts: pretrain, finetune, evaluate, decode, tokenize, prepare, load, start (a resumed run); and
kernels, which checks and times every attention kernel of this device. --peer has others do the same
work in the same rounds: naive (plain Flax and Optax), transformers and torch (those need their
packages). Any config of training may be measured; text is made up without --source. Ctrl-C ends it,
and what was measured until then is printed and written. launch/README.md says how to read it.
"""

import dataclasses
import os
import shlex
import signal
import sys
from pathlib import Path

from absl import flags, logging
from ml_collections import config_flags

from gpt1_jax import cli, host_memory

DEFAULT_CONFIG = "configs/pretrain.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/pretrain.py[:SIZE], the default, or configs/finetune.py:TASK, as for training."
)
PARTS = flags.DEFINE_list("parts", None, "What to measure; default all but kernels.")
PEER = flags.DEFINE_list("peer", [], "Who else does the same work: naive, transformers, torch.")
BATCH_SIZES = flags.DEFINE_list("batch_sizes", [], "Rows of a batch, such as 2,8. Default: the config's, or fewer.")
DECODE_BATCH_SIZES = flags.DEFINE_list("decode_batch_sizes", ["1", "8"], "Texts that are continued at once.")
NEW_TOKENS = flags.DEFINE_integer("new_tokens", None, "Decoding: tokens that each text gets. Default: 256, or fewer.")
REPEATS = flags.DEFINE_integer("repeats", 10, "Most rounds of a case.")
SECONDS = flags.DEFINE_float("seconds", 60.0, "After so many, no further round of a case begins; there is always one.")
SOURCE = flags.DEFINE_string("source", "", "Text to tokenize, as for training. Default: made up.")
TOKENIZER = flags.DEFINE_string("tokenizer", None, "A tokenizer's folder, or a workdir. Default: learnt from the text.")
JSON = flags.DEFINE_string("json", None, "File for all figures.")
PLOT = flags.DEFINE_string("plot", None, "File for a drawing of the ratios, such as ratios.png.")
PROFILE = flags.DEFINE_string("profile", None, "Folder for traces of our calls, for xprof or TensorBoard.")


def main() -> None:
    """Measures, prints a table and writes files."""
    host_memory.keep_freed()  # as training does
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # it is compiling that is timed, by peers' processes too
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a peer on PyTorch needs some of the GPU, too
    import jax

    from gpt1_jax.benchmark import figures, kernel_check, report, suite
    from gpt1_jax.benchmark.settings import PARTS as ALL
    from gpt1_jax.benchmark.settings import Settings, configs
    from gpt1_jax.config import to_dict
    from gpt1_jax.errors import counted
    from gpt1_jax.files import check_writable, make_directory, write_json
    from gpt1_jax.model import describe_model

    for name, flag in (("json", JSON), ("plot", PLOT)):
        if flag.value:
            check_writable(Path(flag.value), f"--{name}")
    if PLOT.value:
        report.check_format(Path(PLOT.value))
    if PROFILE.value:
        make_directory(Path(PROFILE.value), "--profile")
    pretrain, finetune = configs(CONFIG.value)
    settings = Settings(
        pretrain=pretrain,
        finetune=finetune,
        parts=ALL if PARTS.value is None else tuple(PARTS.value),
        peers=tuple(PEER.value),
        batch_sizes=_integers("batch_sizes", BATCH_SIZES.value),
        decode_batch_sizes=_integers("decode_batch_sizes", DECODE_BATCH_SIZES.value),
        new_tokens=NEW_TOKENS.value,
        repeats=REPEATS.value,
        seconds=SECONDS.value,
        source=SOURCE.value,
        tokenizer=TOKENIZER.value,
        profile=PROFILE.value,
    )
    cases, ended = suite.cases(settings), None
    where = counted(jax.device_count(), "device")
    logging.info("%s of %s: %s", where, jax.devices()[0].device_kind, describe_model(settings.model))
    print(suite.plan(cases, settings), flush=True)
    checks = []
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        for check in kernel_check.checks() if "kernels" in settings.parts else ():
            checks.append(check)
            print(check.line(), flush=True)
        for case in cases:
            suite.measure(case, settings, say=lambda line: print(line, file=sys.stderr, flush=True))
    except (KeyboardInterrupt, SystemExit, Exception) as error:  # what was measured stays, and it is raised at the end
        ended = error
    command = shlex.join(["python", *sys.argv])
    record = figures.record(cases, command=command, config=to_dict(pretrain), interrupted=ended is not None)
    found = [figure for case in cases for figure in figures.figures(case)]
    if found:
        print(f"\n{report.table(found)}\n\n{report.notes(found, record)}", flush=True)
        peer = settings.may_have_peers and not PEER.value
        more = [flag for flag, adds in (("--peer=naive", peer), ("--json=figures.json", not JSON.value)) if adds]
        if more:
            print(cli.next_steps(shlex.join([cli.python(), *sys.argv, more[0]])), flush=True)
    record["kernels"] = [dataclasses.asdict(check) | {"passed": check.passed} for check in checks]
    if JSON.value:
        write_json(Path(JSON.value), record)
    if PLOT.value:
        report.plot(found, Path(PLOT.value))
    if ended is not None:
        raise ended
    if not all(check.passed for check in checks):
        print("error: not all kernels compute what plain JAX does, see above", file=sys.stderr)
        sys.exit(1)


def _integers(name: str, values: list[str]) -> tuple[int, ...]:
    from gpt1_jax.errors import InputError

    try:
        return tuple(int(value) for value in values)
    except ValueError:
        raise InputError(f"--{name}={','.join(values)}: numbers are expected, such as 2,8") from None


if __name__ == "__main__":
    cli.run(main, config=DEFAULT_CONFIG)
