"""What is run, and what is not run again, with stand-ins for the three workflows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.reproduce import cells, workflow
from gpt1_jax.reproduce.cells import Score
from gpt1_jax.reproduce.plan import Cell
from gpt1_jax.stop import Interrupted
from gpt1_jax.train import Diverged


class Runs:
    """Stands in for training: remembers what it was asked for, and does one of three things at a cell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}
        monkeypatch.setattr(cells, "_RUN", dict.fromkeys(cells._RUN, self._run))

    def _run(self, cell: Cell, root: Path, wanted: Any) -> list[Score]:
        self.asked.append(cell.name)
        (root / cell.name / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.at.get(cell.name, lambda: None)()
        return [Score(s.title, s.split, s.metric, 50.0 + cell.run) for s in wanted]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Two tasks of nearly the same files."""
    (tmp_path / "t.csv").write_text("text,label\n", encoding="utf-8")

    def make(**changes: Any) -> dict[str, Any]:
        task = {"train": [str(tmp_path / "t.csv")], "labels": ["no", "yes"]}
        tasks = {"a": {"task": task, "ablated": True, "zero_shot": "sst2"}, "b": {"task": task}}
        pretrain = {"source": "text:*.txt", "n_steps": 10, "optimizer": {"warmup_steps": 2}, "model": {"n_layer": 1}}
        return {"tasks": tasks, "seeds": 2, "pretrain": pretrain, "parts": ["tables", "table5"], **changes}

    return make


def finetunings(task: str, variants: tuple[str, ...], seeds: tuple[int, ...] = (0, 1)) -> list[str]:
    return [f"finetune/{task}/{variant}/seed_{s}" for variant in variants for s in seeds]


ALL = [
    "pretrain/transformer",
    *finetunings("a", ("full", "no_pretraining", "no_aux_lm")),
    *finetunings("b", ("full",)),
    "pretrain/lstm",
    *finetunings("a", ("lstm",)),
]


def stop() -> None:
    raise Interrupted(15, 7)


def test_a_restart_runs_only_what_is_missing(runs, settings, tmp_path):
    root = tmp_path / "W"
    runs.at[ALL[4]] = stop
    with pytest.raises(Interrupted):
        workflow.run(settings(), root)
    assert runs.asked == ALL[:5]
    done = {name: (root / name / "cell.json").stat().st_mtime_ns for name in ALL[:4]}

    runs.asked.clear()
    runs.at.clear()
    result = workflow.run(settings(), root)
    assert runs.asked == ALL[4:]
    assert {name: (root / name / "cell.json").stat().st_mtime_ns for name in done} == done
    assert [each.cell.name for each in result.scores.done] == ALL
    assert result.left == ()

    runs.asked.clear()
    again = workflow.run(settings(), root)
    assert runs.asked == []
    assert again.tables == result.tables
    assert again.claims == result.claims


def test_seeds_parts_and_tasks_are_added(runs, settings, tmp_path):
    workflow.run(settings(seeds=1, parts=["tables"]), tmp_path / "W")
    runs.asked.clear()
    workflow.run(settings(parts=["tables"]), tmp_path / "W")
    assert runs.asked == ["finetune/a/full/seed_1", "finetune/b/full/seed_1"]
    runs.asked.clear()
    workflow.run(settings(parts=["tables", "table5", "figure2_right"]), tmp_path / "W")
    zero_shot = ["zero_shot/transformer/a", "zero_shot/lstm/a"]
    assert set(runs.asked) == {*zero_shot, *(name for name in ALL if "no_" in name or "lstm" in name)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finetune": {"epochs": 5}}, r"finetune/a/full/seed_0 belongs .* config.epochs is 3 there, 5 here"),
        (
            {"pretrain": {"source": "text:*.md"}},
            r"pretrain/transformer belongs .*config.source is \"text:\*.txt\" there",
        ),
        ({"tasks": {"a": {"learning_rate": 1e-3}}}, "config.optimizer.learning_rate is 6.25e-05 there, 0.001 here"),
    ],
)
def test_other_settings_are_refused_by_name_before_anything_is_run(changes, message, runs, settings, tmp_path):
    workflow.run(settings(), tmp_path / "W")
    runs.asked.clear()
    config = settings(seeds=3)
    for name, value in changes.items():
        base = config.get(name, {})
        config[name] = {**base, **({"a": {**base["a"], **value["a"]}} if name == "tasks" else value)}
    with pytest.raises(InputError, match=message):
        workflow.run(config, tmp_path / "W")
    assert runs.asked == []


def test_what_changes_nothing_that_is_learned_may_change(runs, settings, tmp_path):
    workflow.run(settings(), tmp_path / "W")
    runs.asked.clear()
    workflow.run(settings(finetune={"log_every": 3}, keep_checkpoints="none"), tmp_path / "W")
    assert runs.asked == []


def test_checkpoints_of_the_first_row_alone_are_kept(runs, settings, tmp_path):
    workflow.run(settings(), tmp_path / "W")
    kept = {str(path.parent.relative_to(tmp_path / "W")) for path in (tmp_path / "W").glob("**/checkpoints")}
    assert kept == {name for name in ALL if "/full/" in name or name.startswith("pretrain/")}
    workflow.run(settings(keep_checkpoints="all"), tmp_path / "all")
    assert len(list((tmp_path / "all").glob("**/checkpoints"))) == len(ALL)


def test_a_task_that_cannot_be_run_does_not_end_the_others(runs, settings, tmp_path):
    def refuse() -> None:
        raise InputError("t.csv, row 7: no such label")

    runs.at["finetune/a/full/seed_0"] = refuse
    with pytest.raises(InputError, match=r"1 run of 12 could not be made.*finetune/a/full/seed_0: t.csv, row 7"):
        workflow.run(settings(), tmp_path / "W")
    assert runs.asked == ALL
    assert "t.csv, row 7" in (tmp_path / "W" / "report" / "index.html").read_text(encoding="utf-8")
    runs.asked.clear()
    runs.at.clear()
    workflow.run(settings(), tmp_path / "W")
    assert runs.asked == ["finetune/a/full/seed_0"]


def test_a_cell_of_which_nothing_has_come_gives_way_to_other_settings(runs, settings, tmp_path):
    name, folder = "finetune/b/full/seed_0", tmp_path / "W" / "finetune" / "b" / "full" / "seed_0"

    def refuse() -> None:
        raise InputError("no column 'label'")

    def corrected() -> None:
        config = settings()
        config["tasks"]["b"] = {"task": {**config["tasks"]["b"]["task"], "label": "text"}}
        workflow.run(config, tmp_path / "W")

    runs.at[name] = refuse
    with pytest.raises(InputError, match="1 run of 12 could not be made"):
        workflow.run(settings(), tmp_path / "W")
    (folder / "checkpoints" / "8").mkdir()
    with pytest.raises(InputError, match=r'seed_0 belongs .* config.task.label is "label" there, "text" here'):
        corrected()
    (folder / "checkpoints" / "8").rmdir()
    runs.asked.clear()
    runs.at.clear()
    with pytest.raises(InputError, match="seed_1 belongs"):  # which is finished
        corrected()
    (tmp_path / "W" / "finetune" / "b" / "full" / "seed_1" / "cell.json").unlink()
    corrected()
    assert runs.asked == finetunings("b", ("full",))


def test_what_diverged_is_told_and_not_tried_again(runs, settings, tmp_path):
    def diverge() -> None:
        raise Diverged("loss is nan at step 3")

    runs.at["pretrain/lstm"] = runs.at["finetune/a/no_aux_lm/seed_1"] = diverge
    with pytest.raises(InputError, match=r"2 runs of 12 could not be made.* needs pretrain/lstm, which diverged"):
        workflow.run(settings(), tmp_path / "W")
    assert runs.asked == [name for name in ALL if "/lstm/" not in name]
    page = (tmp_path / "W" / "report" / "index.html").read_text(encoding="utf-8")
    assert page.count("loss is nan at step 3") >= 2
    stored = json.loads((tmp_path / "W" / "pretrain" / "lstm" / "cell.json").read_text(encoding="utf-8"))
    assert (stored["finished"], stored["diverged"]) == (True, "loss is nan at step 3")


def test_the_outline_says_what_is_there_and_what_is_left_out(runs, settings, tmp_path):
    config = settings()
    config["tasks"]["rte"] = {"task": {"name": "rte"}}
    before = workflow.outline(config, tmp_path / "W")
    assert not (tmp_path / "W").exists()
    assert "finetune a: full, no_pretraining, no_aux_lm, lstm; 8 runs" in before
    assert "left out: rte: config.tasks.rte.task.data is empty" in before
    assert "12 runs, of which 0 done; 12 runs left" in before
    runs.at["finetune/b/full/seed_0"] = stop
    with pytest.raises(Interrupted):
        workflow.run(config, tmp_path / "W")
    assert "12 runs, of which 7 done" in workflow.outline(config, tmp_path / "W")


def test_the_workdir_of_another_program_is_refused(runs, settings, tmp_path):
    (tmp_path / "config.json").write_text('{"program": "finetune"}', encoding="utf-8")
    with pytest.raises(InputError, match="a run of 'finetune', this is 'reproduce': choose another workdir"):
        workflow.run(settings(), tmp_path)
    with pytest.raises(InputError, match="a run of 'finetune', this is 'reproduce'"):
        workflow.outline(settings(), tmp_path)
    with pytest.raises(InputError, match="is a file; choose a folder"):
        workflow.outline(settings(), tmp_path / "config.json")
    assert runs.asked == []
