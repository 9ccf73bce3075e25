"""Two processes of four devices each do what one process of eight does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import pretrain_config
from helpers import on_all_devices
from two import ROOT, logs, two

from gpt1_jax import evaluate, finetune, pretrain
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.lock import LOCK
from gpt1_jax.metrics import read_metrics
from gpt1_jax.workdir import open_workdir

pytestmark = pytest.mark.slow  # two minutes on two cores; CI runs it
LIMIT_S = 600
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # of keys' biases, whose gradients are rounding alone, Adam makes steps


def without_last(workdir: Path, copy: Path) -> Path:
    """A run as it was halfway: without its last checkpoint and its results."""
    shutil.copytree(workdir, copy)
    shutil.rmtree(copy / "checkpoints" / "10")
    (copy / "results.json").unlink()
    return copy


def params(workdir: Path) -> dict[str, np.ndarray]:
    """The parameters of the latest checkpoint, by path."""
    with Checkpointer(workdir / "checkpoints", read_only=True) as checkpointer:
        leaves, _ = jax.tree_util.tree_flatten_with_path(checkpointer.restore_params())
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Numbers, or arrays, by name."""
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], **CLOSE, err_msg=name)


def losses(workdir: Path) -> dict[str, float]:
    """Every value of the curve; each step and name is there once."""
    values = {}
    for line in read_metrics(workdir):
        step = line.pop("step")
        for name in line.keys() - {"steps_per_second", "tokens_per_second", "mfu"}:
            assert (step, name) not in values
            values[step, name] = line[name]
    return values


class Pair:
    """What the two processes made, and the same made by this one."""

    def __init__(self, folder: Path, corpus: Path, pretrained: Path) -> None:
        files = {name: [str(corpus / f"{name}.csv")] for name in ("train", "validation", "test")}
        self.folder, self.one = folder, folder / "one"
        self.jobs = {
            "pretrain": pretrain_config(corpus),
            "tensor": pretrain_config(
                corpus,
                n_steps=3,
                heldout_fraction=0.0,
                model={"n_head": 8, "n_layer": 1},
                mesh={"data": 1, "tensor": 8},
            ),
            "finetune": {
                "task": files,
                "batch_size": 8,
                "epochs": 1,
                "optimizer": {"learning_rate": 1e-2, "warmup_steps": None},
                "n_buckets": 1,
                "log_every": 1,
            },
            "evaluate": {
                "text": ("pretrain", {"source": f"jsonl:{corpus}/corpus.jsonl#text", "batch_size": 16}),
                "head": ("finetune", {"data": files["test"], "predictions": f"{folder}/predictions", "batch_size": 8}),
                "zero-shot": (
                    "pretrain",
                    {
                        "data": files["test"],
                        "zero_shot": "{text} It was {label}",
                        "task": {"labels": ["negative", "positive"]},
                        "batch_size": 8,
                    },
                ),
            },
        }
        without_last(pretrained, folder / "resumed")
        script = ROOT / "tests" / "one_of_two.py"
        self.pretrained = pretrained
        self.expected: dict[str, Any] = {}
        with (
            open_workdir(folder / "in use", {}, process_index=0),
            two(script, "PORT", "PROCESS", folder, json.dumps(self.jobs), folder=folder) as processes,
        ):
            self._make()
            for process in processes:
                assert process.wait(LIMIT_S) == 0, logs(folder)
        self.found = [json.loads((folder / f"found.{process}.json").read_text()) for process in range(2)]

    def _make(self) -> None:
        """Here, meanwhile, in one process."""
        pretrain.run(self.jobs["tensor"], self.one / "tensor")
        self.expected["finetune"] = finetune.run(self.jobs["finetune"], self.one / "finetune", self.pretrained).metrics
        for name, (_, config) in self.jobs["evaluate"].items():
            checkpoint = self.one / "finetune" if name == "head" else self.pretrained
            changed = {"predictions": str(self.one / "predictions")} if name == "head" else {}
            self.expected[name] = evaluate.run(checkpoint, config | changed)


@pytest.fixture(scope="module")
def pair(tmp_path_factory, corpus, pretrained) -> Iterator[Pair]:
    """One process has eight devices, too."""
    with on_all_devices():
        yield Pair(tmp_path_factory.mktemp("two"), corpus, pretrained)


def test_the_first_process_writes_and_all_know(pair):
    first, second = pair.found
    assert first["first"] == second["first"] == "made by 0"
    for found in pair.found:
        assert found["bad on 1"] == "SharedInputError: 1 cannot read"
        assert found["bad on 0"] == "SharedInputError: 0 cannot write"
        assert found["in use"].startswith("SharedInputError: workdir=")
        assert "is in use by process" in found["in use"]
        assert found["other flags"] == (
            "SharedInputError: process 1 was started with other settings than process 0: batch_size=16; start the same "
            "command everywhere"
        )
        # Process 0 is on the way to read a checkpoint, for which Orbax has meetings of its own.
        assert found["missing on 1"].startswith(f"SharedInputError: {pair.folder}/nowhere is not a workdir")
        assert found["not shared"].startswith(f"SharedInputError: workdir={pair.folder}/of 1/run is another folder on ")
    assert first["bug on 1"] == "PeerFailed: process 1: ZeroDivisionError: in 1"
    assert second["bug on 1"] == "ZeroDivisionError: in 1"


def test_each_process_reads_the_rows_that_its_devices_need(pair):
    assert pair.found[0]["rows"] == [list(range(16))] * 3
    assert [found["long texts"] for found in pair.found] == [[0, 5000]] * 2


def test_pretraining(pair):
    folder, one = pair.folder / "pretrain", pair.pretrained
    assert_same(losses(folder), losses(one))
    assert_same(params(folder), params(one))
    assert (folder / "config.json").read_text().replace(str(pair.folder), "") == (one / "config.json").read_text()
    for name in ("tokenizer", "shards"):
        files = [path for path in (one / name).rglob("*") if path.is_file() and path.name != LOCK]
        assert files
        for path in files:
            assert (folder / path.relative_to(one)).read_bytes() == path.read_bytes()
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_mesh_whose_processes_have_the_same_rows(pair):
    assert_same(losses(pair.folder / "tensor"), losses(pair.one / "tensor"))
    assert_same(params(pair.folder / "tensor"), params(pair.one / "tensor"))


def test_one_process_begins_and_two_go_on(pair):
    assert_same(losses(pair.folder / "resumed"), losses(pair.pretrained))
    assert_same(params(pair.folder / "resumed"), params(pair.pretrained))


def test_two_processes_begin_and_one_goes_on(pair, tmp_path):
    copy = without_last(pair.folder / "pretrain", tmp_path / "run")
    pretrain.run(pair.jobs["pretrain"], copy)
    assert_same(losses(copy), losses(pair.pretrained))
    assert_same(params(copy), params(pair.pretrained))


def test_finetuning_and_predictions(pair):
    folder, one = pair.folder / "finetune", pair.one / "finetune"
    assert_same(losses(folder), losses(one))
    assert_same(params(folder), params(one))
    for theirs, ours in ((folder, one), (pair.folder / "predictions", pair.one / "predictions")):
        files = sorted((ours / "predictions").iterdir())
        assert files
        for file in files:
            rows, expected = (
                [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
                for path in (theirs / "predictions" / file.name, file)
            )
            for row, same in zip(rows, expected, strict=True):
                assert_same(row.pop("probabilities"), same.pop("probabilities"))
                assert row == same


@pytest.mark.parametrize("name", ["finetune", "text", "head", "zero-shot"])
def test_metrics(pair, name):
    for found in pair.found:
        assert_same(_flat(found[name]), _flat(pair.expected[name]))


def _flat(metrics: dict[str, Any]) -> dict[str, float]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(metrics)[0]}
