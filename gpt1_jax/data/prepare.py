"""A source of raw text to token shards on disk: streaming, resumable, the same stream of tokens however it was run.

    documents -> batches -> (worker processes: which side, which tokens) -> shards of consecutive documents

A shard counts once the manifest lists it, which happens in one atomic write after its files are on the disk: a run that
was killed at any moment is gone on with by the same call.

What is in memory: the tokens of one shard (three times while it is written), and a few batches of text for each worker;
of a line of JSON, which is one document however long it is, the whole.
"""

from __future__ import annotations

import collections
import dataclasses
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from gpt1_jax.config import flatten
from gpt1_jax.data.shard_writer import EncodeBatch, GrowingShard, TextBatch, cut_into_batches
from gpt1_jax.data.shards import Manifest, Shard, find_parts, part_folder
from gpt1_jax.data.sources import MAX_DOCUMENT_BYTES, Document, Source, describe_source, open_source
from gpt1_jax.data.split import SIDES, Split, refuse_nothing_held_out
from gpt1_jax.errors import InputError
from gpt1_jax.files import about_the_disk, make_directory
from gpt1_jax.lock import release_lock, take_lock
from gpt1_jax.progress import Progress
from gpt1_jax.tokenizers.parallel import ordered_map, token_dtype
from gpt1_jax.tokenizers.protocol import Tokenizer

SHARD_BYTES = 64 << 20


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
      part: the part this process does, a run of consecutive documents (see `gpt1_jax.data.sources`). None does all
        parts in turn. The parts can be done by different machines, which share the directory or bring their folders
        together in one.
      parts: the number of parts.
      workers: processes that encode. Any number gives the same bytes.
      shard_bytes: text of one shard.
      max_document_bytes: see `gpt1_jax.data.sources`.
      progress: shows how far it is.

    The stream of tokens does not depend on `parts`, `workers` and `shard_bytes`.

    Raises:
      InputError: a problem of the source; or the directory holds a corpus prepared with other settings, another
        tokenizer or from another text; another process is at the same part; the disk is full; or no document is held
        out though a fraction is asked for (of several parts, `gpt1_jax.data.corpus.verify` finds that out).
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
    opened = open_source(source, max_document_bytes=max_document_bytes)
    for folder, _, _ in find_parts(directory):
        if (manifest := Manifest.read(folder)) is not None:
            _refuse_other_settings(directory, manifest.settings, settings)
    make_directory(directory, "directory")
    folders = {number: part_folder(directory, number, parts) for number in (range(parts) if part is None else (part,))}
    if opened.unit == "B":
        _warn_of_little_space(directory, list(folders.values()), opened.size * len(folders) // parts, tokenizer)
    for number, folder in folders.items():
        make_directory(folder, "directory")
        lock = take_lock(folder, "directory")
        try:
            label = f"tokenising {folder.name}"
            with Progress(label, total=opened.size // parts, unit=opened.unit, show=progress) as bar:
                _prepare_part(opened.read(number, parts), tokenizer, folder, settings, split, workers, bar)
        except OSError as error:
            if not (problem := about_the_disk(error)):
                raise
            raise InputError(problem) from None
        finally:
            release_lock(lock)


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


def _warn_of_little_space(directory: Path, folders: Sequence[Path], n_bytes: int, tokenizer: Tokenizer) -> None:
    """Of so many bytes of text, for the parts in `folders`; a token is about four of them."""
    there = sum(file.stat().st_size for folder in folders for file in folder.glob("*.tokens.npy"))
    needed = n_bytes // 4 * token_dtype(tokenizer.vocab_size).itemsize - there
    if needed > (free := shutil.disk_usage(directory).free):
        logging.warning(
            "%s: %.1f GB are free, and the tokens will take about %.1f GB", directory, free / 1e9, needed / 1e9
        )


def _prepare_part(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    folder: Path,
    settings: Mapping[str, Any],
    split: Split,
    workers: int,
    progress: Progress,
) -> None:
    manifest = Manifest.read(folder)
    if manifest is not None and manifest.complete:
        damage = next(filter(None, (shard.damage(folder, content=False) for shard in manifest.shards)), "")
        if not damage:
            logging.info("%s: was prepared before", folder)
            return
        manifest = dataclasses.replace(manifest, complete=False)
    for leftover in folder.glob(".*.tmp"):  # of a process that was killed while it wrote
        leftover.unlink()
    manifest = _keep_undamaged(manifest or Manifest(settings, tokenizer.vocab_size, False, ()), folder)
    batches = cut_into_batches(documents, settings["shard_bytes"])
    progress.skip(_skip(batches, manifest, folder))
    dtype = token_dtype(tokenizer.vocab_size)
    waiting: collections.deque[TextBatch] = collections.deque()

    def texts() -> Iterator[list[str]]:
        for batch in batches:
            waiting.append(batch._replace(texts=[]))
            yield batch.texts

    start, n_bytes = time.monotonic(), 0
    with ordered_map(EncodeBatch(tokenizer, split), workers) as encode:
        shard = GrowingShard(dtype)
        for encoded in encode(texts()):
            batch = waiting.popleft()
            shard.add(encoded)
            n_bytes += batch.n_bytes
            progress.advance(batch.size)
            if batch.completes is None:
                continue
            if batch.completes.n_bytes < settings["shard_bytes"] and settings["parts"] == 1:
                # Before the last shard is written: of a small corpus, nothing is there yet.
                check_heldout(settings, [*manifest.shards, shard], n_written=len(manifest.shards))
            written = shard.write(folder, len(manifest.shards), batch.completes)
            manifest = dataclasses.replace(manifest, shards=(*manifest.shards, written))
            manifest.write(folder)
            shard = GrowingShard(dtype)
    if settings["parts"] == 1:
        check_heldout(settings, manifest.shards, n_written=len(manifest.shards))
        if not manifest.shards:
            raise InputError("source: has no documents; check it")
    manifest = dataclasses.replace(manifest, complete=True)
    manifest.write(folder)
    _report(manifest, folder, n_bytes / max(time.monotonic() - start, 1e-9))


def _keep_undamaged(manifest: Manifest, folder: Path) -> Manifest:
    """The manifest up to the first shard whose files are not what was written; the others are made again."""
    for number, shard in enumerate(manifest.shards):
        if damage := shard.damage(folder, content=True):
            logging.warning("%s; tokenising again from shard %d on", damage, number)
            return dataclasses.replace(manifest, shards=manifest.shards[:number])
    return manifest


def _skip(batches: Iterator[TextBatch], manifest: Manifest, folder: Path) -> int:
    """Reads past the text of the finished shards. Returns how much of the source that is."""
    size = 0
    for number, shard in enumerate(manifest.shards):
        digest = ""
        for batch in batches:
            size += batch.size
            if batch.completes is not None:
                digest = batch.completes.sha256
                break
        if digest != shard.text_sha256:
            raise InputError(
                f"directory={str(folder.parent)!r}: the text of the source has changed since shard {number} of "
                f"{folder.name} was written. Delete the folder or choose another"
            )
    if manifest.shards:
        logging.info("%s: %d finished shards are kept", folder, len(manifest.shards))
    return size


def check_heldout(settings: Mapping[str, Any], shards: Sequence[Shard | GrowingShard], *, n_written: int) -> None:
    """Refuses a corpus of which nothing is held out though a fraction is asked for.

    Args:
      settings: of the preparation.
      shards: all of the corpus.
      n_written: how many of them are on the disk.

    Raises:
      InputError: with a fraction that holds out one document.
    """
    refuse_nothing_held_out(
        settings["heldout_fraction"],
        sum(shard.n_documents for shard in shards),
        min((shard.lowest_rank for shard in shards), default=1.0),
        " Delete the folder first" if n_written else "",
    )


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
