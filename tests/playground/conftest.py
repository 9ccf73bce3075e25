"""Models for the playground: a fine-tuned run, and one of each other kind of task with random parameters."""

import csv
import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from helpers import random_params

from gpt1_jax import GPT1, ReadOut, load_pretrained
from gpt1_jax.playground.models import Loaded
from gpt1_jax.tasks.spec import FIELDS


@pytest.fixture(scope="session")
def reviews(corpus, pretrained, tmp_path_factory) -> Path:
    """The workdir of a run on sentences whose columns are called review and sentiment."""
    from gpt1_jax import finetune

    folder = tmp_path_factory.mktemp("playground")
    with open(corpus / "train.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    with open(folder / "reviews.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["review", "sentiment"], *rows[1:]])
    task = {"train": [str(folder / "reviews.csv")], "fields": {"text": "review"}, "label": "sentiment"}
    finetune.run({"task": task, "batch_size": 16, "epochs": 1, "n_buckets": 1}, folder / "run", pretrained)
    return folder / "run"


@pytest.fixture(scope="session")
def language_model(pretrained) -> Loaded:
    """The pre-trained run."""
    return Loaded("books", *load_pretrained(pretrained), {})


@pytest.fixture(scope="session")
def tasks(language_model) -> Callable[..., Loaded]:
    """A model for a kind of task, whose parameters are random: it says something else of every example."""

    def make(kind: str, labels: tuple[str, ...] = (), **changes) -> Loaded:
        config = dataclasses.replace(language_model.model.config, n_special=3)
        model = GPT1(config, ReadOut(kind, labels, **changes))
        params = jax.device_put(random_params(model))
        return Loaded(kind, model, params, language_model.tokenizer, {f: f for f in FIELDS[kind]})

    return make
