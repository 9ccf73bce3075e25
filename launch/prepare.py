"""Prepares text for pre-training: a tokenizer and token shards in one folder, for any number of runs.

    python launch/prepare.py --source='jsonl:corpus/*.jsonl#text' --folder=SHARDS

Start the same command again to continue. 10 GB of text are about 30 minutes of one core, 5 GB of
disk and 1.5 GB of memory, by what 1 GB took; --workers has more cores work on it. The same on four
machines, each with its own number, 0 to 3; then all of them are verified together:

    python launch/prepare.py --source='jsonl:corpus/*.jsonl#text' --folder=SHARDS --parts=4 --part=0
    python launch/prepare.py --folder=SHARDS --verify

Neither the number of parts nor of workers changes what a run trains on. launch/README.md has more.
"""

from absl import flags, logging

from gpt1_jax import cli

SOURCE = flags.DEFINE_string("source", None, "text:GLOB, jsonl:GLOB#FIELD or tfds:NAME, see gpt1_jax/data/sources.py.")
FOLDER = flags.DEFINE_string("folder", None, "Folder of the corpus: made, or continued.", required=True)
TOKENIZER = flags.DEFINE_string(
    "tokenizer", None, "A tokenizer's folder, or a workdir with one. Default: SentencePiece is trained on the source."
)
VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 40_478, "Pieces of a tokenizer that is trained.", lower_bound=1)
LOWERCASE = flags.DEFINE_boolean("lowercase", True, "A tokenizer that is trained folds case.")
HELDOUT_FRACTION = flags.DEFINE_float("heldout_fraction", 0.005, "Part of the documents that is held out.")
SEED = flags.DEFINE_integer("seed", 0, "Another one holds out other documents.")
PART = flags.DEFINE_integer("part", None, "Which part this machine does, from 0. Default: all, one after another.")
PARTS = flags.DEFINE_integer("parts", 1, "Number of parts.")
WORKERS = flags.DEFINE_integer("workers", None, "Processes that encode. Default: one for each core.")
SHARD_BYTES = flags.DEFINE_integer("shard_bytes", 64 << 20, "Text of one shard; a restart repeats less than that.")
VERIFY = flags.DEFINE_boolean("verify", False, "Only compares what is there with its checksums.")


def main() -> None:
    """Prepares, verifies what is complete, and prints what comes next."""
    from gpt1_jax.data import corpus
    from gpt1_jax.data.prepare import prepare_shards
    from gpt1_jax.data.sources import describe_source
    from gpt1_jax.data.split import Split
    from gpt1_jax.errors import InputError, counted
    from gpt1_jax.tokenizers.parallel import n_cores

    if not VERIFY.value:
        if SOURCE.value is None:
            raise InputError("--source is missing: text:GLOB, jsonl:GLOB#FIELD or tfds:NAME (or --verify)")
        workers = n_cores() if WORKERS.value is None else WORKERS.value
        which = f"part {PART.value} of {counted(PARTS.value, 'part')}" if PART.value is not None else "all parts"
        size = describe_source(SOURCE.value).get("bytes")
        logging.info("text: %s%s", SOURCE.value, "" if size is None else f", {size / 1e6:,.1f} MB")
        logging.info("%s, by %s; token shards go to %s", which, counted(workers, "process", "processes"), FOLDER.value)
        split = Split(HELDOUT_FRACTION.value, SEED.value)
        tokenizer = corpus.make_tokenizer(
            FOLDER.value,
            SOURCE.value,
            split,
            path=TOKENIZER.value,
            vocab_size=VOCAB_SIZE.value,
            lowercase=LOWERCASE.value,
        )
        prepare_shards(
            SOURCE.value,
            tokenizer,
            FOLDER.value,
            split=split,
            part=PART.value,
            parts=PARTS.value,
            workers=workers,
            shard_bytes=SHARD_BYTES.value,
        )
        unfinished, parts = corpus.still_to_do(FOLDER.value)
        if unfinished:
            print(
                f"\npart {PART.value} of {parts} is done; in {FOLDER.value} these are not: "
                f"{', '.join(map(str, unfinished))}\nOther machines run the same command with another --part. On disks "
                f"of their own, bring the folders part-* together, and then"
            )
            print(cli.next_steps(f"{cli.command('prepare', {'folder': FOLDER.value})} --verify"))
            return
    print(corpus.verify(FOLDER.value))
    print(f"\n{FOLDER.value} is complete, and its checksums are right")
    config = {"config": cli.in_repository("configs/pretrain.py"), "config.shards": FOLDER.value}
    print(cli.next_steps(cli.command("pretrain", {**config, "workdir": f"{FOLDER.value.rstrip('/')}-run"})))


if __name__ == "__main__":
    cli.run(main)
