"""Text to one shard: documents are cut into batches, a batch is encoded, the batches of a shard become its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpt1_jax.data.shards import Shard, SideOfShard, StoredFile
from gpt1_jax.data.sources import Document
from gpt1_jax.data.split import SIDES, Split
from gpt1_jax.tokenizers.parallel import encode_documents
from gpt1_jax.tokenizers.protocol import Tokenizer

BATCH_BYTES = 256 << 10  # of text that is encoded in one go


class ShardText(NamedTuple):
    """The text of one shard."""

    n_documents: int
    n_bytes: int
    sha256: str


class TextBatch(NamedTuple):
    """Documents that are encoded in one go.

    Attributes:
      texts: the documents.
      size: how much of the source they take up.
      n_bytes: of text.
      completes: the text of the shard of which these are the last documents; None: more follow.
    """

    texts: list[str]
    size: int
    n_bytes: int
    completes: ShardText | None


def cut_into_batches(documents: Iterable[Document], shard_bytes: int) -> Iterator[TextBatch]:
    """Documents in order, in batches of `BATCH_BYTES` or a little more, and a shard ends with one; only the last shard
    has less than `shard_bytes` of text.
    """
    digest, n_documents, shard_size = hashlib.sha256(), 0, 0
    texts, size, n_bytes = [], 0, 0
    for text, document_size in documents:
        data = text.encode("utf-8")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
        texts.append(text)
        size, n_bytes = size + document_size, n_bytes + len(data)
        n_documents, shard_size = n_documents + 1, shard_size + len(data)
        if shard_size >= shard_bytes:
            yield TextBatch(texts, size, n_bytes, ShardText(n_documents, shard_size, digest.hexdigest()))
            digest, n_documents, shard_size = hashlib.sha256(), 0, 0
        elif n_bytes >= BATCH_BYTES:
            yield TextBatch(texts, size, n_bytes, None)
        else:
            continue
        texts, size, n_bytes = [], 0, 0
    if n_documents:
        yield TextBatch(texts, size, n_bytes, ShardText(n_documents, shard_size, digest.hexdigest()))


class _EncodedSide(NamedTuple):
    """Documents of one side, tokens end to end, with the tokens and the UTF-8 bytes of each."""

    tokens: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray


class EncodedBatch(NamedTuple):
    """A batch with its documents on their sides.

    Attributes:
      sides: "train" and "heldout".
      n_empty: documents left out because they hold nothing but white space.
      n_excluded: documents left out because the split excludes them.
      lowest_rank: of those on the two sides, see `Split.place`.
    """

    sides: Mapping[str, _EncodedSide]
    n_empty: int
    n_excluded: int
    lowest_rank: float


@dataclass(frozen=True)
class EncodeBatch:
    """What is done to the texts of a batch, in a worker process."""

    tokenizer: Tokenizer
    split: Split

    def __call__(self, texts: list[str]) -> EncodedBatch:
        chosen: dict[str, list[str]] = {side: [] for side in (*SIDES, "excluded")}
        n_empty, lowest_rank = 0, 1.0
        for text in texts:
            if not text.strip():
                n_empty += 1
                continue
            side, rank = self.split.place(text)
            chosen[side].append(text)
            if side != "excluded":
                lowest_rank = min(lowest_rank, rank)
        sides: dict[str, _EncodedSide] = {}
        for side in SIDES:
            sizes = np.array([len(text.encode("utf-8")) for text in chosen[side]], np.int64)
            sides[side] = _EncodedSide(*encode_documents(self.tokenizer, chosen[side]), sizes)
        return EncodedBatch(sides, n_empty, len(chosen["excluded"]), lowest_rank)


@dataclass
class GrowingShard:
    """A shard whose batches come in one after the other."""

    dtype: np.dtype
    n_empty: int = 0
    n_excluded: int = 0
    lowest_rank: float = 1.0
    sides: dict[str, list[_EncodedSide]] = field(default_factory=lambda: {side: [] for side in SIDES})

    @property
    def n_documents(self) -> int:
        """On both sides."""
        return sum(len(batch.lengths) for batches in self.sides.values() for batch in batches)

    def add(self, batch: EncodedBatch) -> None:
        """Takes in the next batch."""
        self.n_empty += batch.n_empty
        self.n_excluded += batch.n_excluded
        self.lowest_rank = min(self.lowest_rank, batch.lowest_rank)
        for side, encoded in batch.sides.items():
            if len(encoded.lengths):
                self.sides[side].append(encoded)

    def write(self, folder: Path, number: int, text: ShardText) -> Shard:
        """Writes the files, and lets go of what is in them."""
        stored: dict[str, SideOfShard] = {}
        for side in SIDES:
            if not (batches := self.sides.pop(side)):
                continue
            starts = np.zeros((sum(len(batch.lengths) for batch in batches) + 1, 2), np.int64)
            for column, parts in enumerate(([b.lengths for b in batches], [b.sizes for b in batches])):
                np.cumsum(np.concatenate(parts), out=starts[1:, column])
            tokens = np.concatenate([batch.tokens for batch in batches], dtype=self.dtype)
            stored[side] = SideOfShard(
                tokens=StoredFile.write(folder, f"{side}-{number:05d}.tokens.npy", tokens),
                documents=StoredFile.write(folder, f"{side}-{number:05d}.documents.npy", starts),
                n_tokens=int(starts[-1, 0]),
                n_documents=len(starts) - 1,
                n_bytes=int(starts[-1, 1]),
            )
        return Shard(text.n_documents, self.n_empty, self.n_excluded, self.lowest_rank, text.sha256, stored)
