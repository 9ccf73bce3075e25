"""Whole reproductions on made-up data, through the real workflows."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt1_jax import load_pretrained
from gpt1_jax.config import from_config
from gpt1_jax.reproduce import examples, workflow
from gpt1_jax.reproduce.config import ReproduceConfig

ROOT = Path(__file__).resolve().parents[2]
ALL = [
    *("pretrain/transformer", "zero_shot/transformer/reviews"),
    *(f"finetune/reviews/{variant}/seed_0" for variant in ("full", "no_pretraining", "transfer_0", "no_aux_lm")),
    *("pretrain/lstm", "zero_shot/lstm/reviews", "finetune/reviews/lstm/seed_0"),
]


@pytest.fixture(scope="module")
def settings(corpus: Path, pretrain_settings: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A config of one task and one seed; keywords go in at the top."""

    def make(**changes: Any) -> dict[str, Any]:
        files = {split: [str(corpus / f"{split}.csv")] for split in ("train", "validation", "test")}
        loop = {"log_every": 4, "eval_every": 4, "save_every": 2, "keep_every": 2}
        reviews = {"task": {**files, "labels": ["negative", "positive"]}, "title": "Reviews"}
        reviews |= {"ablated": True, "layers": True, "zero_shot": "sst2"}
        finetune = {"batch_size": 32, "epochs": 1, "n_buckets": 1, "optimizer": {"learning_rate": 1e-3}}
        return {
            "tasks": {"reviews": reviews},
            "seeds": 1,
            "pretrain": pretrain_settings(model={"n_layer": 1}, n_steps=4, loop=loop),
            "finetune": finetune,
            "lstm": {"units": 16},
            **changes,
        }

    return make


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_model_that_is_there_is_transferred_layer_by_layer(settings, pretrained, tmp_path):
    config = settings(parts=["tables", "figure2_left"], n_transfer=[0], pretrain={})
    result = workflow.run(config, tmp_path / "W", pretrained)
    variants = ["full", "no_pretraining", "transfer_0"]
    assert [done.cell.variant for done in result.scores.done] == variants
    rows = read_csv(result.page.with_name("scores.csv"))
    for variant in variants:
        stored = json.loads((tmp_path / "W" / "finetune" / "reviews" / variant / "seed_0" / "results.json").read_text())
        ours = {row["split"]: float(row["percent"]) for row in rows if row["variant"] == variant}
        assert ours == {split: pytest.approx(100 * stored["metrics"][split]["accuracy"]) for split in ("test", "train")}
    assert {path.name for path in result.page.parent.iterdir()} == {
        *("index.html", "own_tasks.csv", "figure2_left.csv", "figure2_left.png", "scores.csv", "claims.csv")
    }
    page = result.page.read_text(encoding="utf-8")
    assert page.count("<section") == 6
    assert "http" not in page.partition("<main>")[2]
    assert load_pretrained(tmp_path / "W" / "finetune" / "reviews" / "full" / "seed_0")[0].readout.n_outputs == 2


def test_the_example_data_are_the_same_however_the_folder_is_spelt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = from_config(ReproduceConfig, {"tasks": {examples.TASK: {}}, "example_data": "reviews"})
    found = examples.with_example_data(config, Path("W"))
    assert found == examples.with_example_data(config, tmp_path / "W")
    assert found.pretrain.source == f"jsonl:{tmp_path}/W/data/pretrain.jsonl#text"
    assert found.tasks[examples.TASK].task.test == (f"{tmp_path}/W/data/test.csv",)


@pytest.mark.slow
def test_a_run_that_is_killed_twice_ends_as_one_that_is_not(settings, tmp_path):
    """SIGKILL in the midst of a cell, SIGTERM in another: each cell that was done before is as it was."""
    (tmp_path / "config.json").write_text(json.dumps(settings()), encoding="utf-8")
    program = (
        "import json, sys; from gpt1_jax import cli; from gpt1_jax.reproduce import workflow\n"
        "cli.run(lambda: print(workflow.run(json.load(open('config.json')), 'W').page))"
    )
    root = tmp_path / "W"

    def start() -> subprocess.Popen[str]:
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )

    def done() -> dict[str, int]:
        found = {name: root / name / "cell.json" for name in ALL}
        return {
            name: path.stat().st_mtime_ns
            for name, path in found.items()
            if path.exists() and json.loads(path.read_text(encoding="utf-8"))["finished"]
        }

    for signum, cell in ((signal.SIGKILL, ALL[2]), (signal.SIGTERM, ALL[4])):
        with start() as process:
            while not (root / cell / "checkpoints").exists() and cell not in done():
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signum)
            assert process.wait(600) in (-signal.SIGKILL, 128 + signal.SIGTERM)
        assert set(ALL[: ALL.index(cell)]) <= set(done())
    before = done()
    with start() as process:
        assert process.wait(600) == 0
    assert {name: at for name, at in done().items() if name in before} == before
    assert list(done()) == ALL

    whole = workflow.run(settings(), tmp_path / "whole")
    assert [each.cell.name for each in whole.scores.done] == ALL
    assert (root / "report" / "table5.csv").read_text() == (whole.page.parent / "table5.csv").read_text()
    assert [row["Updates"] for row in read_csv(root / "report" / "figure2_right.csv")] == ["2", "4"]
    assert (root / "report" / "figure2_right.png").read_bytes()[:4] == b"\x89PNG"
