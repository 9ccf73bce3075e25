"""A source of raw text to token shards on disk: streaming, resumable, the same bytes however it was run.

The corpus is cut into shards of consecutive documents. A shard counts once the manifest lists it, which happens in one
atomic write after its files are on the disk: a run that was killed at any moment is gone on with by the same call.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from tqdm import tqdm

from gpt1_jax.config import flatten
from gpt1_jax.data.shards import (
    Manifest,
    Shard,
    SideOfShard,
    StoredFile,
    find_parts,
    part_folder,
)
from gpt1_jax.data.sources import MAX_DOCUMENT_BYTES, Source, describe_source, read_documents
from gpt1_jax.data.split import SIDES, Split
from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory
from gpt1_jax.tokenizers.parallel import Encoder, document_encoder, token_dtype
from gpt1_jax.tokenizers.protocol import Tokenizer

SHARD_BYTES = 64 << 20
_BATCH_BYTES = 256 << 10  # of text that is encoded in one go


def prepare_shards(
    source: Source,
    tokenizer: Tokenizer,
    directory: str | Path,
    *,
    split: Split | None = None,
    part: int | None = None,
    parts: int = 1,
    workers: int = 1,
    shard_bytes: int = SHARD_BYTES,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    progress: bool = True,
) -> None:
    """Tokenises a corpus into `directory`, or does nothing if that is done. `TokenShards.open` reads it.

    Args:
      source: see `gpt1_jax.data.sources`.
      tokenizer: its fingerprint is stored; the folder belongs to it.
      directory: holds one corpus.
      split: which documents are held out (by default, about 1 %).
      part: the part this process does: every `parts`-th document from number `part` on. None does all parts in turn.
        The parts can be done by different machines that share the directory.
      parts: the number of parts.
      workers: processes that encode. Any number gives the same bytes.
      shard_bytes: text of one shard; this much is held in memory at a time.
      max_document_bytes: see `gpt1_jax.data.sources`.
      progress: shows a bar on a terminal.

    Raises:
      InputError: a problem of the source; or the directory holds a corpus prepared with other settings, another
        tokenizer or from another text; or no document is held out though a fraction is asked for.
    """
    directory = Path(directory)
    split = Split() if split is None else split
    for name, value in (("parts", parts), ("workers", workers), ("shard_bytes", shard_bytes)):
        if value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    if part is not None and not 0 <= part < parts:
        raise InputError(f"part={part} must be from 0 to parts - 1 = {parts - 1}, or None for all of them")
    settings = {
        "source": describe_source(source),
        "tokenizer": tokenizer.fingerprint,
        "heldout_fraction": split.heldout_fraction,
        "split_seed": split.seed,
        "excluded": split.excluded_digest,
        "parts": parts,
        "shard_bytes": shard_bytes,
        "max_document_bytes": max_document_bytes,
    }
    for folder, _, _ in find_parts(directory):
        if (manifest := Manifest.read(folder)) is not None:
            _refuse_other_settings(directory, manifest.settings, settings)
    make_directory(directory, "directory")
    for number in range(parts) if part is None else (part,):
        documents = read_documents(source, part=number, parts=parts, max_document_bytes=max_document_bytes)
        folder = part_folder(directory, number, parts)
        _prepare_part(documents, tokenizer, folder, settings, split, workers, progress)


def _refuse_other_settings(directory: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    flat_old, flat_new = flatten(old), flatten(new)
    differences = [
        f"{name} was {_short(flat_old.get(name))}, is now {_short(flat_new.get(name))}"
        for name in sorted(flat_old.keys() | flat_new.keys())
        if flat_old.get(name) != flat_new.get(name)
    ]
    if differences:
        raise InputError(
            f"directory={str(directory)!r}: holds token shards that were prepared differently: "
            f"{'; '.join(differences)}. Delete the folder or choose another"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:13]}...{text[-1]}"


@dataclass
class _Chunk:
    """The documents of one shard, as text."""

    n_read: int = 0
    n_empty: int = 0
    n_excluded: int = 0
    n_bytes: int = 0  # of all that were read
    lowest_rank: float = 1.0  # of those that are kept
    digest: Any = field(default_factory=hashlib.sha256)
    texts: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # UTF-8 bytes of each text
    sides: list[str] = field(default_factory=list)

    def add(self, text: str, split: Split) -> None:
        data = text.encode("utf-8")
        self.n_read += 1
        self.n_bytes += len(data)
        self.digest.update(len(data).to_bytes(8, "little"))
        self.digest.update(data)
        if not text.strip():
            self.n_empty += 1
            return
        side, rank = split.place(text)
        if side == "excluded":
            self.n_excluded += 1
            return
        self.lowest_rank = min(self.lowest_rank, rank)
        self.texts.append(text)
        self.sizes.append(len(data))
        self.sides.append(side)

    def batches(self) -> Iterator[list[str]]:
        """The texts in order, in lists of about `_BATCH_BYTES`."""
        batch: list[str] = []
        size = 0
        for text, n_bytes in zip(self.texts, self.sizes, strict=True):
            batch.append(text)
            size += n_bytes
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def _cut_into_chunks(documents: Iterable[str], split: Split, chunk_bytes: int) -> Iterator[_Chunk]:
    """Consecutive documents of `chunk_bytes` or a little more; only the last chunk is smaller."""
    chunk = _Chunk()
    for text in documents:
        chunk.add(text, split)
        if chunk.n_bytes >= chunk_bytes:
            yield chunk
            chunk = _Chunk()
    if chunk.n_read:
        yield chunk


def _prepare_part(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    folder: Path,
    settings: Mapping[str, Any],
    split: Split,
    workers: int,
    progress: bool,
) -> None:
    manifest = Manifest.read(folder)
    if manifest is not None and manifest.complete:
        logging.info("%s: was prepared before", folder)
        return
    make_directory(folder, "directory")
    manifest = _keep_undamaged(manifest or Manifest(settings, tokenizer.vocab_size, False, ()), folder)
    chunks = _cut_into_chunks(documents, split, settings["shard_bytes"])
    lowest_rank, n_skipped = _skip(chunks, manifest, folder)
    n_bytes = n_skipped
    start = time.monotonic()
    with (
        document_encoder(tokenizer, workers) as encode,
        tqdm(
            desc=f"tokenising {folder.name}",
            total=settings["source"].get("bytes", 0) // settings["parts"] or None,
            initial=n_skipped,
            unit="B",
            unit_scale=True,
            disable=None if progress else True,  # None: only on a terminal
        ) as bar,
    ):
        for chunk in chunks:
            lowest_rank = min(lowest_rank, chunk.lowest_rank)
            n_bytes += chunk.n_bytes
            if chunk.n_bytes < settings["shard_bytes"]:  # the last one: nothing of a small corpus is written yet
                _check_heldout(manifest, [chunk], lowest_rank)
            shard = _write_shard(chunk, len(manifest.shards), tokenizer, encode, folder, bar)
            manifest = dataclasses.replace(manifest, shards=(*manifest.shards, shard))
            manifest.write(folder)
    _check_heldout(manifest, [], lowest_rank)
    if not manifest.shards and settings["parts"] == 1:
        raise InputError("source: has no documents; check it")
    manifest = dataclasses.replace(manifest, complete=True)
    manifest.write(folder)
    _report(manifest, folder, (n_bytes - n_skipped) / max(time.monotonic() - start, 1e-9))


def _keep_undamaged(manifest: Manifest, folder: Path) -> Manifest:
    """The manifest up to the first shard whose files are not what was written; the others are made again."""
    for number, shard in enumerate(manifest.shards):
        if damage := shard.damage(folder, content=True):
            logging.warning("%s; tokenising again from shard %d on", damage, number)
            return dataclasses.replace(manifest, shards=manifest.shards[:number])
    return manifest


def _skip(chunks: Iterator[_Chunk], manifest: Manifest, folder: Path) -> tuple[float, int]:
    """Reads past the text of the finished shards. Returns its lowest rank and its bytes."""
    lowest_rank, n_bytes = 1.0, 0
    for number, shard in enumerate(manifest.shards):
        chunk = next(chunks, None)
        if chunk is None or chunk.digest.hexdigest() != shard.text_sha256:
            raise InputError(
                f"directory={str(folder.parent)!r}: the text of the source has changed since shard {number} of "
                f"{folder.name} was written. Delete the folder or choose another"
            )
        lowest_rank = min(lowest_rank, chunk.lowest_rank)
        n_bytes += chunk.n_bytes
    if manifest.shards:
        logging.info("%s: %d finished shards (%.1f MB of text) are kept", folder, len(manifest.shards), n_bytes / 1e6)
    return lowest_rank, n_bytes


def _check_heldout(manifest: Manifest, chunks: Sequence[_Chunk], lowest_rank: float) -> None:
    """Refuses a corpus of which nothing is held out against the will of its user, who would notice hours later."""
    fraction = manifest.settings["heldout_fraction"]
    if fraction == 0 or manifest.settings["parts"] > 1 or lowest_rank < fraction:
        return
    n_documents = sum(len(chunk.texts) for chunk in chunks)
    n_documents += sum(side.n_documents for shard in manifest.shards for side in shard.sides.values())
    if n_documents == 0:
        return
    way = (
        f"raise it to {math.ceil(lowest_rank * 1000 + 1) / 1000:g} (holds out one of them), " if n_documents > 1 else ""
    )
    again = " Delete the folder first" if manifest.shards else ""
    raise InputError(
        f"heldout_fraction={fraction}: none of the {n_documents} documents of the source is held out; {way}cut long "
        f"text files into several, or set it to 0 and evaluate on another source.{again}"
    )


def _write_shard(chunk: _Chunk, number: int, tokenizer: Tokenizer, encode: Encoder, folder: Path, bar: tqdm) -> Shard:
    encoded = []
    for batch in encode(chunk.batches()):
        encoded.append(batch)
        done = sum(len(batch.lengths) for batch in encoded)
        bar.update(sum(chunk.sizes[done - len(batch.lengths) : done]))
    bar.update(chunk.n_bytes - sum(chunk.sizes))  # what was left out
    dtype = token_dtype(tokenizer.vocab_size)
    tokens = np.concatenate([np.empty(0, dtype), *(batch.tokens for batch in encoded)])
    lengths = np.concatenate([np.empty(0, np.int64), *(batch.lengths for batch in encoded)])
    sizes = np.array(chunk.sizes, np.int64)
    sides = {}
    for side in SIDES:
        chosen = np.array([s == side for s in chunk.sides], bool)
        if not chosen.any():
            continue
        starts = np.zeros((int(chosen.sum()) + 1, 2), np.int64)
        np.cumsum(np.stack([lengths[chosen], sizes[chosen]], axis=1), axis=0, out=starts[1:])
        sides[side] = SideOfShard(
            tokens=StoredFile.write(folder, f"{side}-{number:05d}.tokens.npy", tokens[np.repeat(chosen, lengths)]),
            documents=StoredFile.write(folder, f"{side}-{number:05d}.documents.npy", starts),
            n_tokens=int(starts[-1, 0]),
            n_documents=len(starts) - 1,
            n_bytes=int(starts[-1, 1]),
        )
    return Shard(chunk.n_read, chunk.n_empty, chunk.n_excluded, chunk.digest.hexdigest(), sides)


def _report(manifest: Manifest, folder: Path, bytes_per_second: float) -> None:
    for name in SIDES:
        sides = [shard.sides[name] for shard in manifest.shards if name in shard.sides]
        logging.info(
            "%s: %s: %d documents, %d tokens, %.1f MB of text",
            folder,
            name,
            sum(side.n_documents for side in sides),
            sum(side.n_tokens for side in sides),
            sum(side.n_bytes for side in sides) / 1e6,
        )
    logging.info(
        "%s: left out: %d empty and %d excluded documents of %d; %.1f MB/s",
        folder,
        sum(shard.n_empty for shard in manifest.shards),
        sum(shard.n_excluded for shard in manifest.shards),
        sum(shard.n_read for shard in manifest.shards),
        bytes_per_second / 1e6,
    )
