"""What the tests share: eight simulated devices, the folder of reference numbers, a small corpus and a run on it."""

import csv
import functools
import gc
import itertools
import json
import os
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xla_flags

os.environ["XLA_FLAGS"] = f"{xla_flags.quick(8)} {os.environ.get('XLA_FLAGS', '')}"  # what is set already wins

import gcs_emulator
import helpers
import jax
import numpy as np
import pytest
from absl import logging

xla_flags.share_compiled()
# Traced programs are made of millions of objects, among which the usual thresholds have cycles looked for all the time.
gc.set_threshold(100_000, 20, 20)


_modules = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """JAX keeps all that it has traced and compiled: gigabytes after some files, which take a minute to let go of."""
    yield
    if next(_modules) % 8 == 0:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def _absl_to_caplog(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The absl logger neither propagates nor takes its level from others once flags were parsed in this process."""
    logger = logging.get_absl_logger()
    level = logger.level
    monkeypatch.setattr(logger, "propagate", True)
    logger.setLevel("NOTSET")
    yield
    logger.setLevel(level)


def _draw_nothing(workdir: Path) -> None:
    del workdir


def _draw_blank(report: Any, split: str) -> Any:
    from gpt1_jax.plots.style import new_figure

    del report, split
    return new_figure(0.1, 0.1)


UNDRAWN = {
    "gpt1_jax.pretrain.try_run_plots": _draw_nothing,
    "gpt1_jax.finetune.try_run_plots": _draw_nothing,
    "gpt1_jax.repeats.try_run_plots": _draw_nothing,
    "gpt1_jax.tasks.report.confusion_figure": _draw_blank,
    "gpt1_jax.tasks.report.reliability_figure": _draw_blank,
}


@pytest.fixture(scope="session", autouse=True)
def _drawn() -> Iterator[dict[str, Callable[..., Any]]]:
    """A run of seconds would draw for others: here it does not. Gives what draws otherwise, see `drawing`."""
    drawn = {name: pkgutil.resolve_name(name) for name in UNDRAWN}
    with pytest.MonkeyPatch.context() as patch:
        for name, instead in UNDRAWN.items():
            patch.setattr(name, instead)
        yield drawn


@pytest.fixture
def drawing(_drawn: dict[str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at what runs and reports draw: they do, as outside of tests."""
    for name, function in _drawn.items():
        monkeypatch.setattr(name, function)


@pytest.fixture(scope="session", autouse=True)
def _one_device() -> Iterator[None]:
    """Runs take the first device, which is a third less to trace and compile; see `on_all_devices`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt1_jax.sharding.all_devices", lambda: jax.devices()[:1])
        yield


@pytest.fixture
def all_devices() -> Iterator[None]:
    """For tests of runs on all eight devices."""
    with helpers.on_all_devices():
        yield


@pytest.fixture(scope="session")
def devices() -> list[jax.Device]:
    """Eight CPU devices, also where there is an accelerator."""
    return jax.devices("cpu")[:8]


@pytest.fixture(scope="session")
def goldens() -> Path:
    """Where the reference numbers are: $GPT1_GOLDENS, or those that come with the tests."""
    folder = Path(os.environ.get("GPT1_GOLDENS") or Path(__file__).parent / "goldens")
    assert folder.is_dir(), f"GPT1_GOLDENS={folder} is not a folder"
    return folder


WORDS = {
    "positive": ["wonderful", "moving", "clever", "warm", "bright", "funny", "lovely", "fresh", "tender", "superb"],
    "negative": ["boring", "dull", "clumsy", "cold", "tired", "empty", "awful", "stale", "lazy", "dreadful"],
}
THINGS = ["film", "story", "acting", "music", "script", "camera", "cast", "ending", "dialogue", "pace"]


def sentences(n: int, seed: int) -> list[tuple[str, str]]:
    """`n` made-up (sentence, label) pairs whose label shows in two of the words."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        label = ("negative", "positive")[i % 2]
        a, b = rng.choice(WORDS[label], 2)
        x, y = rng.choice(THINGS, 2)
        made.append((f"{a} {x} , {b} {y} {rng.integers(1000)} .", label))
    return made


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text to pre-train on (corpus.jsonl) and labelled sentences (train, validation and test.csv)."""
    folder = tmp_path_factory.mktemp("corpus")
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        for i in range(120):
            text = "\n".join(text for text, _ in sentences(6, 1000 + i))
            file.write(json.dumps({"text": text}) + "\n")
    for seed, (name, n) in enumerate({"train": 128, "validation": 21, "test": 19}.items()):
        with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(sentences(n, seed))
    return folder


@pytest.fixture(scope="session")
def custom() -> Callable[..., Any]:
    """The task that a `TaskConfig` makes of these settings; one file may stand for a list of one."""
    from gpt1_jax.config import from_config
    from gpt1_jax.tasks.config import TaskConfig, make_spec

    def make(**settings: Any) -> Any:
        for split in {"train", "validation", "test"} & set(settings):
            files = settings[split] if isinstance(settings[split], list | tuple) else [settings[split]]
            settings[split] = [str(file) for file in files]
        return make_spec(from_config(TaskConfig, settings, where="task"))

    return make


def pretrain_config(corpus: Path, **changes: Any) -> dict[str, Any]:
    """A pre-training run of seconds; `changes` go into the top level or into its sections."""
    config = {
        "source": f"jsonl:{corpus}/corpus.jsonl#text",
        "heldout_fraction": 0.1,
        "model": {"vocab_size": 380, "n_ctx": 32, "n_embd": 32, "n_head": 4, "n_layer": 2},
        "batch_size": 8,
        "n_steps": 10,
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 2},
        "loop": {"log_every": 1, "eval_every": 5, "save_every": 5},
    }
    for name, value in changes.items():
        config[name] = {**config.get(name, {}), **value} if isinstance(value, dict) else value
    return config


@pytest.fixture(scope="session")
def pretrain_settings(corpus: Path) -> Callable[..., dict[str, Any]]:
    """`pretrain_config` of the corpus."""
    return functools.partial(pretrain_config, corpus)


@pytest.fixture(scope="session")
def pretrained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a finished pre-training run of ten updates."""
    from gpt1_jax import pretrain

    workdir = tmp_path_factory.mktemp("runs") / "pretrained"
    pretrain.run(pretrain_config(corpus), workdir)
    return workdir


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket, gs://bucket, of an emulator of Google Cloud Storage: TensorStore, gcsfs and Google's client use it."""
    with gcs_emulator.bucket() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPT1_MIRROR_DIR", str(tmp_path_factory.mktemp("mirror")))
        yield url
