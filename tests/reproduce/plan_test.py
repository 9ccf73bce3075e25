"""Which runs a config comes to: nothing is trained, and no file but those of the tasks is looked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from helpers import random_params

from gpt1_jax import GPT1, GPT1Config, load_pretrained, save_pretrained
from gpt1_jax.config import from_config
from gpt1_jax.errors import InputError
from gpt1_jax.reproduce.cells import Done
from gpt1_jax.reproduce.config import PARTS, ReproduceConfig
from gpt1_jax.reproduce.estimate import Estimate
from gpt1_jax.reproduce.plan import Cell, Plan, make_plan

TEXT = {"source": "text:books/*.txt", "model": {"n_layer": 3}}


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """A folder with the files of two of GLUE's tasks."""
    for name, files in {"CoLA": ("train", "dev"), "MNLI": ("train", "dev_matched", "dev_mismatched")}.items():
        for file in files:
            path = tmp_path / name / f"{file}.tsv"
            path.parent.mkdir(exist_ok=True)
            path.write_text("gold_label\tsentence1\tsentence2\n", encoding="utf-8")
    return tmp_path


def plan(data: Path | str, pretrained: str | None = None, **changes: Any) -> Plan:
    tasks = {
        "cola": {"task": {"name": "cola"}, "ablated": True, "zero_shot": "cola"},
        "mnli": {"task": {"name": "mnli"}, "layers": True, "learning_rate": 1e-5, "epochs": 1},
        "rte": {"task": {"name": "rte"}},
    }
    config = {"data": str(data), "tasks": tasks, "pretrain": TEXT, "seeds": 2, **changes}
    return make_plan(from_config(ReproduceConfig, config).in_the_papers_order(), pretrained)


def names(cells: Plan | list[Cell]) -> list[str]:
    return [cell.name for cell in getattr(cells, "cells", cells)]


def test_all_parts(glue):
    found = plan(glue)
    assert names(found) == [
        "pretrain/transformer",
        "zero_shot/transformer/cola",
        *(f"finetune/mnli/{v}/seed_{s}" for v in ("full", "no_pretraining") for s in (0, 1)),
        *(f"finetune/mnli/transfer_{k}/seed_{s}" for k in (0, 1, 2) for s in (0, 1)),
        *(f"finetune/cola/{v}/seed_{s}" for v in ("full", "no_pretraining", "no_aux_lm") for s in (0, 1)),
        "pretrain/lstm",
        "zero_shot/lstm/cola",
        *(f"finetune/cola/lstm/seed_{s}" for s in (0, 1)),
    ]
    assert list(found.missing) == ["rte"]
    assert "Get the official files from https://gluebenchmark.com/tasks" in found.missing["rte"]
    assert "config.tasks.rte.task.data" in found.missing["rte"]
    cells = {cell.name: cell for cell in found.cells}
    assert {cell.init_from for cell in found.cells if "/lstm/" in cell.name} == {"pretrain/lstm"}
    assert [cells[f"finetune/mnli/{v}/seed_1"].config.n_transfer for v in ("full", "no_pretraining", "transfer_2")] == [
        *(None, -1, 2)
    ]
    recipes = {cell.variant: cell.config for cell in found.cells if cell.task == "cola" and cell.kind == "finetune"}
    assert {variant: config.lm_coef for variant, config in recipes.items()} == {
        **{"full": 0.5, "no_pretraining": 0.5, "no_aux_lm": 0.0, "lstm": 0.5}
    }
    mnli = cells["finetune/mnli/full/seed_1"].config
    assert (mnli.seed, mnli.epochs, mnli.optimizer.learning_rate) == (1, 1, 1e-5)
    assert recipes["full"].optimizer.learning_rate == 6.25e-5
    assert mnli.predict_train  # the dashed curve of figure 2, left
    assert not recipes["full"].predict_train


def test_a_part_that_no_task_is_in_is_left_out_with_a_reason(glue):
    found = plan(glue, tasks={"cola": {"task": {"name": "cola"}, "ablated": True}})
    assert list(found.missing) == ["figure2_left", "figure2_right"]
    assert "set config.tasks.NAME.zero_shot" in found.missing["figure2_right"]
    assert list(plan(glue, tasks={"cola": {"task": {"name": "cola"}}}, parts=["tables"]).missing) == []


def test_an_lstm_has_the_transformers_text_tokenizer_and_widths(glue):
    pretrain = {**TEXT, "model": {"n_layer": 3, "n_embd": 96, "n_head": 4, "vocab_size": 300, "attention": "xla"}}
    lstm = {"units": 48, "learning_rate": 1e-3}
    cells = {cell.name: cell for cell in plan(glue, pretrain=pretrain, lstm=lstm).cells}
    transformer, other = cells["pretrain/transformer"].config, cells["pretrain/lstm"].config
    assert (other.model.trunk, other.model.lstm_units, other.model.n_embd, other.model.vocab_size) == (
        "lstm",
        48,
        96,
        300,
    )
    assert other.tokenizer.path == "pretrain/transformer" == cells["pretrain/lstm"].init_from
    assert other.optimizer == dataclasses.replace(transformer.optimizer, learning_rate=1e-3)
    assert (other.source, other.n_steps, other.batch_size) == (transformer.source, transformer.n_steps, 64)


def test_what_is_said_of_blocks_is_not_said_to_the_lstm(glue):
    said = {"activation": "relu", "dtype": "bfloat16"}
    cells = plan(glue, finetune={"model": said}, pretrain=TEXT | {"model": TEXT["model"] | said}).cells
    for cell in cells:
        if cell.kind != "zero_shot":
            model = cell.config.model
            assert (model.activation, model.dtype) == (None if "lstm" in cell.name else "relu", "bfloat16")


def test_the_validation_split_stands_in_for_a_test_without_labels(glue):
    scored = plan(glue).scored
    assert [(s.title, s.split, s.metric) for s in scored["mnli"]] == [
        ("MNLI-m", "validation_matched", "accuracy"),
        ("MNLI-mm", "validation_mismatched", "accuracy"),
    ]
    assert [(s.split, s.metric) for s in scored["cola"]] == [("validation", "matthews")]


def test_parts_and_numbers_of_layers_are_chosen(glue):
    assert names(plan(glue, parts=["tables"])) == [
        "pretrain/transformer",
        *(f"finetune/{task}/full/seed_{s}" for task in ("mnli", "cola") for s in (0, 1)),
    ]
    left = plan(glue, parts=["figure2_left"], n_transfer=[1, 3], seeds=1)
    assert [cell.variant for cell in left.cells[1:]] == ["full", "no_pretraining", "transfer_1"]
    with pytest.raises(InputError, match=r"n_transfer=\(4,\): the model has 3 layers; use 0 to 3"):
        plan(glue, n_transfer=[4])


def test_with_a_model_but_no_text_there_is_no_lstm(glue, pretrained, tmp_path):
    found = plan(glue, str(pretrained), pretrain={})
    assert {cell.init_from for cell in found.cells} == {str(pretrained)}
    assert not any(cell.kind == "pretrain" or "lstm" in cell.name for cell in found.cells)
    assert found.n_layer == 2
    assert "config.lstm.pretrained" in found.missing["lstm"]
    with pytest.raises(InputError, match=r"lstm\.pretrained=.*trunk is 'transformer', and not 'lstm'"):
        plan(glue, str(pretrained), pretrain={}, lstm={"pretrained": str(pretrained)})
    tokenizer = load_pretrained(pretrained)[2]
    model = GPT1(GPT1Config(tokenizer.vocab_size, n_ctx=8, n_embd=8, n_head=1, n_layer=1, trunk="lstm", lstm_units=8))
    lstm = str(tmp_path / "lstm")
    save_pretrained(lstm, model, random_params(model), tokenizer)
    assert "finetune/cola/lstm/seed_0" in names(plan(glue, str(pretrained), pretrain={}, lstm={"pretrained": lstm}))
    with pytest.raises(InputError, match=r"^pretrained=.*trunk is 'lstm', and not 'transformer'"):
        plan(glue, lstm, pretrain={})


def test_the_original_program_s_recipe_and_its_first_seed(tmp_path):
    for name in ("val", "test"):
        (tmp_path / f"cloze_test_{name}__spring2016.csv").write_text("InputStoryid\n", encoding="utf-8")
    tasks = {"story_cloze": {"task": {"name": "story_cloze"}, "as_the_original": True}}
    cells = plan(tmp_path, tasks=tasks).cells[1:]
    assert [cell.config.seed for cell in cells] == [42, 43]
    assert cells[0].config.original_batches
    assert (cells[0].config.model.embedding_dropout, cells[0].config.model.softmax_over_positions) == ("table", True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": ["table6"]}, "parts: 'table6' is unknown; use some of 'tables'"),
        ({"parts": []}, "parts is empty; use some of 'tables'"),
        ({"wnli": 156.0}, "wnli=156.0 is an accuracy in percent, from 0 to 100"),
        ({"tasks": {}}, "tasks is empty"),
        ({"tasks": {"a/b": {}}}, "tasks.a/b: a name is letters"),
        (
            {"tasks": {"a": {"task": {"name": "cola"}}, "b": {"task": {"name": "cola"}}}},
            "tasks.a and tasks.b are both of",
        ),
        ({"seeds": 0}, "seeds=0 must be at least 1"),
        ({"finetune": {"seeds": 3}}, "finetune.seeds, .sweep and .task"),
        ({"finetune": {"predict_test": False}}, "finetune.predict_test=False: the tables are of the test splits"),
        ({"finetune": {"n_transfer": 3}}, "finetune.n_transfer=3: give n_transfer at the top"),
        ({"finetune": {"lm_coef": 0.0}}, "finetune.lm_coef=0: table 5 compares"),
        ({"keep_checkpoints": "best"}, "keep_checkpoints='best' is unknown"),
        ({"pretrain": {}}, "there is no model and no text"),
        ({"data": ""}, "none of 3 tasks can be run: give config.data"),
        ({"tasks": {"own": {"task": {"train": ["no.csv"]}}}}, "no.csv does not exist"),
        (
            {"tasks": {"own": {"finetuned": False, "zero_shot": "winograd", "ablated": True}}},
            "tasks.own: ablated=True contradicts finetuned=False",
        ),
        ({"tasks": {"own": {"finetuned": False}}}, "own is neither fine-tuned nor asked zero-shot"),
        ({"tasks": {"own": {"finetuned": False, "zero_shot": "winograd"}}}, "config.tasks.own.task.test is empty"),
        ({"tasks": {"own": {"task": {"train": ["t.csv"], "validation_fraction": 0.0}}}}, "no split of own has labels"),
    ],
)
def test_bad_input_is_refused_before_anything_is_run(changes, message, glue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("text,label\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        plan(changes.pop("data", glue), **changes)


def test_the_time_left_is_that_of_the_most_similar_runs(glue):
    cells = {cell.name: cell for cell in plan(glue).cells}
    estimate = Estimate()
    wanted = [cells["finetune/cola/full/seed_1"], cells["finetune/cola/lstm/seed_0"]]
    assert estimate.of(wanted) == "2 runs left, for how long is known when the first is done"
    estimate.add(Done(cells["finetune/cola/no_pretraining/seed_0"], 120.0, ()))
    assert [estimate.seconds(cell) for cell in wanted] == [120.0, 120.0]
    estimate.add(Done(cells["finetune/cola/full/seed_0"], 600.0, ()))
    assert [estimate.seconds(cell) for cell in wanted] == [600.0, 360.0]
    assert estimate.seconds(cells["pretrain/lstm"]) is None
    assert estimate.of([*wanted, cells["pretrain/lstm"]]) == "about 16 min and 1 run of another kind left"
    assert set(PARTS) == {"tables", "table5", "figure2_left", "figure2_right"}
