"""Recipes of fine-tuning from the command line: how their values are written, and the tables at the end."""

from __future__ import annotations

import json

import pytest
from programs import launch


@pytest.mark.slow
def test_seeds_and_a_sweep_after_adapting(corpus, pretrained, tmp_path):
    command = (
        "finetune",
        "--config=configs/finetune.py:custom",
        f"--config.task.train={corpus}/validation.csv",
        f"--config.task.validation={corpus}/test.csv",
        "--config.batch_size=8",
        "--config.epochs=1",
        "--config.n_buckets=1",
        "--config.seeds=2",
        "--config.sweep.learning_rate=1e-3,1e-2",
        "--config.n_transfer=1",
        "--config.lm_coef_schedule=cosine",
        "--config.adapt.source=task",
        "--config.adapt.n_steps=2",
        "--config.adapt.batch_size=8",
        f"--init_from={pretrained}",
        f"--workdir={tmp_path}/run",
    )
    result = launch(*command)
    assert result.returncode == 0, result.stderr
    stored = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert [run["point"]["learning_rate"] for run in stored["sweep"]] in ([1e-3, 1e-2], [1e-2, 1e-3])
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["learning_rate", "batch_size", "epochs", "lm_coef", "validation", "accuracy"]
    assert ["median", "min", "max", "seed", "0", "seed", "1"] in [line.split() for line in lines]
    assert f"--checkpoint={tmp_path}/run/{stored['best']} " in result.stdout

    config = json.loads((tmp_path / "run" / stored["best"] / "config.json").read_text(encoding="utf-8"))["config"]
    assert (config["n_transfer"], config["lm_coef_schedule"], config["seeds"]) == (1, "cosine", 1)
    evaluated = launch("evaluate", f"--checkpoint={tmp_path}/run/{stored['best']}")
    assert evaluated.returncode == 0, evaluated.stderr
    assert "validation accuracy" in evaluated.stdout


@pytest.mark.slow
def test_pre_training_goes_on(corpus, pretrained, tmp_path):
    result = launch(
        "pretrain",
        "--config=configs/pretrain.py:continue",
        f"--config.source=jsonl:{corpus}/corpus.jsonl#text",
        "--config.batch_size=8",
        "--config.n_steps=2",
        "--config.model.embd_pdrop=0.0",
        f"--init_from={pretrained}",
        f"--workdir={tmp_path}/run",
    )
    assert result.returncode == 0, result.stderr
    stored = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    source = json.loads((pretrained / "config.json").read_text(encoding="utf-8"))
    assert stored["model"] == source["model"] | {"embd_pdrop": 0.0}
