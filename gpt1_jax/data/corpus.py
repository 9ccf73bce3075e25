"""A prepared corpus: one folder with a tokenizer and the token shards that it made, for any number of runs to train on.

    FOLDER/tokenizer/            see `gpt1_jax.tokenizers`
           part-00000-of-00008/  see `gpt1_jax.data.shards`
           ...

The machines that prepare it run `make_tokenizer` and `prepare_shards` for a part each; `verify` is the last step.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from gpt1_jax import tokenizers
from gpt1_jax.data.prepare import check_heldout
from gpt1_jax.data.shards import TokenShards, find_parts, read_parts, unfinished_parts
from gpt1_jax.data.sources import Source, open_source, read_documents, sample_documents
from gpt1_jax.data.split import SIDES, Split
from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory
from gpt1_jax.lock import release_lock, take_lock
from gpt1_jax.text_table import aligned
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.tokenizers.sentencepiece import MAX_TRAINING_BYTES

TOKENIZER = "tokenizer"
_COUNTED = ("n_documents", "n_tokens", "n_bytes")


def learn_tokenizer(
    source: Source,
    split: Split,
    directory: Path,
    *,
    vocab_size: int,
    lowercase: bool,
    max_training_bytes: int = MAX_TRAINING_BYTES,
) -> Tokenizer:
    """Learns a SentencePiece vocabulary from the training side of a source, or from a sample if it is large.

    Of the same text, every machine makes the same tokenizer.

    Raises:
      InputError: a problem of the source, or a `vocab_size` that it cannot fill.
    """
    logging.info("training a SentencePiece tokenizer of %d pieces", vocab_size)
    opened = open_source(source)
    texts: Iterator[str]
    if opened.unit == "B" and opened.size > max_training_bytes:
        texts = (text for text in sample_documents(source, max_training_bytes) if split.side(text) == "train")
    else:
        texts = split.training_documents(read_documents(source))
    return tokenizers.train_sentencepiece(
        texts, directory, vocab_size=vocab_size, lowercase=lowercase, max_training_bytes=max_training_bytes
    )


def make_tokenizer(
    directory: str | Path,
    source: Source,
    split: Split,
    *,
    path: str | None = None,
    vocab_size: int = 40_478,
    lowercase: bool = True,
) -> Tokenizer:
    """The tokenizer of a corpus, made on the first call: a copy of the one in `path`, or learnt from the source.

    Processes that share the folder wait for the one that makes it.

    Raises:
      InputError: the folder has another one than is asked for.
    """
    directory = Path(directory)
    make_directory(directory, "folder")
    lock = take_lock(directory, "folder", wait=True)
    try:
        if not (directory / TOKENIZER / tokenizers.MARKER).exists():
            if path is not None:
                tokenizers.load(path).save(directory / TOKENIZER)
            else:
                learn_tokenizer(source, split, directory / TOKENIZER, vocab_size=vocab_size, lowercase=lowercase)
    finally:
        release_lock(lock)
    tokenizer = tokenizers.load(directory / TOKENIZER)
    if path is not None:
        same = tokenizer.fingerprint == tokenizers.load(path).fingerprint
        asked = f"tokenizer={path}"
    else:
        folds = tokenizer.decode(tokenizer.encode("A")) == "a"
        same = (tokenizer.vocab_size, folds) == (vocab_size, lowercase)
        asked = f"vocab_size={vocab_size} and lowercase={lowercase}"
    if not same:
        raise InputError(
            f"folder={directory}: its tokenizer (of {tokenizer.vocab_size} ids) is not the one of {asked}. "
            "Ask for the one that is there, or choose another folder"
        )
    return tokenizer


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus that is complete.

    Attributes:
      directory: where it is.
      tokenizer: what made the tokens.
      heldout_fraction: share of the documents that is held out.
      train: the stream of the training side.
      heldout: the stream of the other side; None: nothing is held out.
      settings: what decides the streams.
    """

    directory: Path
    tokenizer: Tokenizer
    heldout_fraction: float
    train: TokenShards
    heldout: TokenShards | None
    settings: dict[str, Any]

    @functools.cached_property
    def identity(self) -> str:
        """Hex SHA-256 of what decides the two streams, and of their sizes: wherever the folder is, and however many
        parts and shards it has.
        """
        streams = [stream for stream in (self.train, self.heldout) if stream is not None]
        sizes = [[getattr(stream, name) for name in _COUNTED] for stream in streams]
        return hashlib.sha256(json.dumps([self.settings, sizes], sort_keys=True).encode("utf-8")).hexdigest()


def open_corpus(directory: str | Path) -> Corpus:
    """Opens a prepared corpus: reads its manifests and looks at the sizes of its files, not at what is in them.

    Raises:
      InputError: it is not there, not complete or damaged.
    """
    directory = Path(directory)
    parts = read_parts(directory)
    settings = dict(parts[0][1].settings)
    if not (directory / TOKENIZER / tokenizers.MARKER).exists():
        raise InputError(f"{directory}: has no {TOKENIZER}/; copy it from the machine that prepared the corpus")
    tokenizer = tokenizers.load(directory / TOKENIZER)
    if tokenizer.fingerprint != settings["tokenizer"]:
        raise InputError(
            f"{directory / TOKENIZER}: is not the tokenizer that made {parts[0][0].name} (fingerprint "
            f"{tokenizer.fingerprint[:12]} instead of {settings['tokenizer'][:12]}); copy the one of the machine that "
            "prepared it"
        )
    fraction = settings["heldout_fraction"]
    heldout = TokenShards.open(directory, "heldout") if fraction else None
    train = TokenShards.open(directory, "train")
    decisive = {name: value for name, value in settings.items() if name not in ("parts", "shard_bytes")}
    return Corpus(directory, tokenizer, fraction, train, heldout, decisive)


def verify(directory: str | Path) -> str:
    """Reads all of a prepared corpus and compares it with its checksums.

    Returns:
      A table of the documents, tokens and bytes of each part and side.

    Raises:
      InputError: a part is missing, unfinished, damaged or prepared with other settings; or nothing is held out
        though a fraction is asked for.
    """
    parts = read_parts(directory)
    shards = [shard for _, manifest in parts for shard in manifest.shards]
    check_heldout(parts[0][1].settings, shards, n_written=len(shards))
    corpus = open_corpus(directory)
    for stream in filter(None, (corpus.train, corpus.heldout)):
        stream.verify()
    rows: list[tuple[str, ...]] = [("part", "side", "documents", "tokens", "MB of text")]
    total: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    for folder, manifest in parts:
        for side in SIDES:
            stored = [shard.sides[side] for shard in manifest.shards if side in shard.sides]
            counts = Counter({name: sum(getattr(one, name) for one in stored) for name in _COUNTED})
            total[side] += counts
            rows.append(_row(folder.name, side, counts))
    rows += [_row("all", side, counts) for side, counts in total.items()]
    read, empty, excluded = (sum(getattr(s, name) for s in shards) for name in ("n_read", "n_empty", "n_excluded"))
    return "\n".join(
        [*aligned(rows, n_left=2), f"left out: {empty:,} empty and {excluded:,} excluded documents of {read:,}"]
    )


def _row(name: str, side: str, counts: Counter[str]) -> tuple[str, ...]:
    return name, side, f"{counts['n_documents']:,}", f"{counts['n_tokens']:,}", f"{counts['n_bytes'] / 1e6:,.1f}"


def still_to_do(directory: str | Path) -> tuple[list[int], int]:
    """Which parts of a folder are not finished, and of how many parts it is; none of 0 if there is no part."""
    folders = find_parts(Path(directory))
    return unfinished_parts(folders) if folders else ([], 0)
