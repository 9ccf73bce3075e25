"""From raw text to batches: tokenizing, preparing token shards, loading windows."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
from pathlib import Path
from typing import Any

from gpt1_jax.benchmark.settings import Settings
from gpt1_jax.benchmark.text import Text
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.benchmark.training import OURS
from gpt1_jax.data.windows import prefetch, train_windows

N_BATCHES = 32  # that are loaded in a call
_N_TEXTS = 256  # that the tokenizer is given at a time


def tokenizing(text: Text) -> Contestant:
    """All documents through the tokenizer, on one core."""
    batches = [text.documents[i : i + _N_TEXTS] for i in range(0, len(text.documents), _N_TEXTS)]

    def start() -> None:
        for batch in batches:
            text.tokenizer.encode_batch(batch)

    return Contestant(OURS, start, _done, amount=text.megabytes, unit="MB", about=text.described)


def preparing(text: Text) -> Contestant:
    """Token shards of all documents on the disk: reading, tokenizing, checksums, writing."""
    folder: Path = text.folder / "prepared"

    def start() -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        text.prepare(folder)

    return Contestant(OURS, start, _done, amount=text.megabytes, unit="MB", about=text.described)


def loading(settings: Settings, batch_size: int, text: Text) -> Contestant:
    """Training batches from token shards, as they are read ahead of the step."""
    windows = train_windows(text.shards, seed=0, n_ctx=settings.model.n_ctx, batch_size=batch_size)
    ahead = prefetch(windows)
    return Contestant(
        OURS,
        functools.partial(lambda n: list(itertools.islice(ahead, n)), N_BATCHES),
        _done,
        amount=N_BATCHES * batch_size,
        unit="windows",
        about=f"{text.shards.n_tokens:,} tokens on the disk, read ahead in threads",
    )


def _done(result: Any) -> None:
    del result
