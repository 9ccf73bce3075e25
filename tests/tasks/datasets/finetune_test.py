"""Every data set through fine-tuning, from miniature official files to the predictions and what the server takes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from gpt1_jax import evaluate, finetune

CONFIG = Path(__file__).parents[3] / "configs" / "finetune.py"


@pytest.fixture(scope="module")
def get_config():
    spec = importlib.util.spec_from_file_location("finetune_config", CONFIG)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


@pytest.fixture(scope="module")
def folders(glue, race, official, tmp_path_factory):
    """Name of a data set -> the folder with its files."""
    own = tmp_path_factory.mktemp("nli")
    for file in ("train", "dev", "test"):
        pair = {"sentence1": "Heat moves.", "sentence2": "It moves.", "gold_label": "neutral"}
        official.write_jsonl(own / f"snli_1.0_{file}.jsonl", pair, {**pair, "gold_label": "-"})
        rows = ("Heat moves.", "It moves.", "entails"), ("Ice is cold.", "Ice melts.", "neutral")
        official.write_tsv(own / f"scitail_1.0_{file}.tsv", *rows)
    return {name: race if name.startswith("race") else own if name in ("snli", "scitail") else glue for name in SPLITS}


THREE = {"validation": True, "test": False}
LABELLED = {"validation": True, "test": True}
SPLITS = {
    "mnli": dict(validation_matched=True, validation_mismatched=True, test_matched=False, test_mismatched=False),
    "race_middle": LABELLED,
    **{name: LABELLED for name in ("race", "race_high", "snli", "scitail")},
    **{name: THREE for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "qnli", "rte")},
}
"""Data set -> split -> whether it has metrics."""

QUICK = ("mnli",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SPLITS])
def test_a_data_set_is_learned_from_its_official_files(name, get_config, folders, pretrained, tmp_path):
    config = get_config(name)
    config.task.data = str(folders[name])
    config.batch_size, config.epochs = 8, 1
    result = finetune.run(config, tmp_path / "run", init_from=pretrained)
    assert set(result.metrics) == {split for split, labelled in SPLITS[name].items() if labelled}
    for split, labelled in SPLITS[name].items():
        lines = (tmp_path / "run" / "predictions" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        assert lines
        assert all(("gold" in json.loads(line)) == labelled for line in lines)
    again = evaluate.run(tmp_path / "run", {"batch_size": 8})
    assert again == {
        split: pytest.approx(result.metrics[split], abs=1e-5)
        for split in SPLITS[name]
        if split.startswith("validation")
    }
    sent = {path.name for path in (tmp_path / "run").rglob("*.tsv")}
    assert bool(sent) == (not all(SPLITS[name].values()))
