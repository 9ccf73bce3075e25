"""Seeds and sweeps without any training: what is run, in which order, what is repeated and what is reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpt1_jax import repeats
from gpt1_jax.errors import InputError
from gpt1_jax.finetune_config import FinetuneConfig, SweepConfig
from gpt1_jax.optim import OptimizerConfig
from gpt1_jax.train import Diverged

METRIC = ("validation", "accuracy")


class Trainer:
    """Stands in for training: the accuracy is a function of the config; remembers what it was asked for."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.stop_at = stop_at

    def __call__(self, config: FinetuneConfig, workdir: Path) -> dict[str, dict[str, float]]:
        if len(self.asked) == self.stop_at:
            raise KeyboardInterrupt
        assert (config.seeds, config.sweep) == (1, SweepConfig())
        self.asked.append((str(workdir), config.predict_test))
        (workdir / "checkpoints" / "8").mkdir(parents=True, exist_ok=True)
        (workdir / "config.json").write_text("{}")
        if config.optimizer.learning_rate > 0.5 or config.seed == 13:
            raise Diverged("loss is nan at step 3")
        accuracy = 0.5 + config.optimizer.learning_rate - config.lm_coef / 100 + (config.seed % 3) / 1000
        metrics = {"validation": {"accuracy": accuracy, "loss": math.nan}}
        return metrics | ({"test": {"accuracy": accuracy - 0.25}} if config.predict_test else {})


def run(trainer: Trainer, folder: Path, metric: tuple[str, str] | None = METRIC, **fields: Any) -> repeats.Repeats:
    sweep = SweepConfig(**fields.pop("sweep", {}))
    optimizer = OptimizerConfig(learning_rate=0.1, schedule="constant", warmup_steps=None)
    config = FinetuneConfig(**{"optimizer": optimizer, "lm_coef": 0.5, "sweep": sweep, **fields})
    return repeats.run(trainer, config, folder, init_from="model", metric=metric)


def asked(trainer: Trainer, folder: Path) -> list[str]:
    return [str(Path(path).relative_to(folder)) for path, _ in trainer.asked]


def test_seeds_are_all_run_and_all_listed(tmp_path):
    trainer = Trainer()
    result = run(trainer, tmp_path, seeds=4, seed=5)
    assert asked(trainer, tmp_path) == ["seed_5", "seed_6", "seed_7", "seed_8"]
    assert all(predict_test for _, predict_test in trainer.asked)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["finished"] is True
    accuracies = [0.597, 0.595, 0.596, 0.597]
    assert [run["metrics"]["validation"]["accuracy"] for run in stored["runs"]] == pytest.approx(accuracies)
    assert stored["summary"]["validation"]["accuracy"] == pytest.approx({"median": 0.5965, "min": 0.595, "max": 0.597})
    assert stored["summary"]["test"]["accuracy"]["median"] == pytest.approx(0.3465)
    assert stored["best"] == result.best.workdir == "seed_5"  # the first of the two best
    lines = repeats.table(result).splitlines()
    assert lines[0].split() == ["median", "min", "max", *(word for s in range(5, 9) for word in ("seed", str(s)))]
    assert lines[1].split() == [
        "validation",
        "accuracy",
        "0.5965",
        "0.5950",
        "0.5970",
        *map("{:.4f}".format, accuracies),
    ]


def test_what_is_finished_is_not_repeated_and_seeds_may_be_added(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Trainer(stop_at=2), tmp_path, seeds=3)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert (stored["finished"], len(stored["runs"])) == (False, 2)
    trainer = Trainer()
    result = run(trainer, tmp_path, seeds=3)
    assert asked(trainer, tmp_path) == ["seed_2"]
    again = run(trainer, tmp_path, seeds=3)
    assert len(trainer.asked) == 1
    assert repeats.table(again) == repeats.table(result)  # also where JSON had to write null for a loss of NaN
    assert len(run(trainer, tmp_path, seeds=4).runs) == 4
    assert asked(trainer, tmp_path)[1:] == ["seed_3"]
    with pytest.raises(InputError, match=r"config.lm_coef is 0.5 there, 0.25 here"):
        run(trainer, tmp_path, seeds=3, lm_coef=0.25)


def test_what_was_not_looked_at_is_looked_at_when_it_is_asked_for(tmp_path):
    trainer = Trainer()
    assert set(run(trainer, tmp_path, seeds=2, predict_test=False).summary) == {"validation"}
    result = run(trainer, tmp_path, seeds=2)
    assert asked(trainer, tmp_path) == ["seed_0", "seed_1"] * 2
    assert set(result.summary) == {"validation", "test"}
    more = run(trainer, tmp_path, seeds=3, predict_test=False)  # the first two keep what they have
    assert asked(trainer, tmp_path)[4:] == ["seed_2"]
    assert [set(one.metrics) for one in more.runs] == [{"validation", "test"}] * 2 + [{"validation"}]
    assert set(more.summary) == {"validation"}  # what all have
    assert "test" not in repeats.table(more)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sweep": [], "runs": [{"seed": 0}]}', '{"sweep": [], "runs": [1]}'])
def test_damaged_results_are_refused(tmp_path, text):
    run(Trainer(), tmp_path, seeds=2)
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(InputError, match=r"results.json does not list runs .* delete it"):
        run(Trainer(), tmp_path, seeds=2)


def test_a_sweep_chooses_by_validation_and_the_test_split_is_seen_by_the_chosen_alone(tmp_path):
    trainer = Trainer()
    sweep = {"learning_rate": (0.1, 0.3), "lm_coef": (0.0, 0.5)}
    result = run(trainer, tmp_path, seeds=2, sweep=sweep)
    point = "sweep/lr{}_batch32_epochs3_lambda{}/seed_0"
    tried = [point.format(lr, lm) for lr in (0.1, 0.3) for lm in (0.0, 0.5)]
    chosen = point.format(0.3, 0.0)
    assert asked(trainer, tmp_path) == [*tried, chosen, chosen.replace("seed_0", "seed_1")]
    assert [predict_test for _, predict_test in trainer.asked] == [False] * 4 + [True] * 2
    order = ((0.3, 0.0), (0.3, 0.5), (0.1, 0.0), (0.1, 0.5))
    assert [run.workdir for run in result.sweep] == [point.format(*at) for at in order]
    values = [run.value(METRIC) for run in result.sweep]
    assert values == sorted(values, reverse=True)
    assert result.sweep[0].workdir == result.runs[0].workdir == chosen
    assert all("test" not in run.metrics for run in result.sweep)
    assert all("test" in run.metrics for run in result.runs)
    head, *rows = repeats.table(result).splitlines()[1:6]
    assert head.split() == ["learning_rate", "batch_size", "epochs", "lm_coef", "validation", "accuracy"]
    assert rows[0].split() == ["0.3", "32", "3", "0.0", "0.8000"]


def test_values_may_be_added_to_a_sweep(tmp_path):
    run(Trainer(), tmp_path, seeds=2, sweep={"learning_rate": (0.1, 0.2)})
    trainer = Trainer()
    result = run(trainer, tmp_path, seeds=2, sweep={"learning_rate": (0.2, 0.3, 0.1)})
    new = "sweep/lr0.3_batch32_epochs3_lambda0.5"
    assert asked(trainer, tmp_path) == [f"{new}/seed_0", f"{new}/seed_0", f"{new}/seed_1"]
    assert [run.point["learning_rate"] for run in result.sweep] == [0.3, 0.2, 0.1]


def test_what_diverged_is_listed_and_not_tried_again(tmp_path):
    result = run(Trainer(), tmp_path / "sweep", sweep={"learning_rate": (0.9, 0.2)})
    assert [(run.point["learning_rate"], run.metrics is None) for run in result.sweep] == [(0.2, False), (0.9, True)]
    assert repeats.table(result).splitlines()[3].split()[-1] == "diverged"
    trainer = Trainer()
    result = run(trainer, tmp_path / "seeds", seed=12, seeds=3)
    assert repeats.table(result).endswith("diverged: seeds [13]")
    assert result.summary["validation"]["accuracy"] == pytest.approx({"median": 0.596, "min": 0.595, "max": 0.597})
    assert repeats.table(run(trainer, tmp_path / "seeds", seed=12, seeds=3)) == repeats.table(result)
    assert len(trainer.asked) == 3
    with pytest.raises(Diverged, match="all of"):
        run(Trainer(), tmp_path / "all", sweep={"learning_rate": (0.8, 0.9)})


def test_without_a_validation_split_there_are_seeds_but_no_sweep(tmp_path):
    assert run(Trainer(), tmp_path / "seeds", metric=None, seeds=2).best.seed == 0
    with pytest.raises(InputError, match="sweep: a labelled validation split has to choose"):
        run(Trainer(), tmp_path / "sweep", metric=None, sweep={"epochs": (1, 2)})


def test_a_run_that_is_refused_leaves_the_workdir_to_the_corrected_command(tmp_path):
    def refuse(config: FinetuneConfig, workdir: Path) -> Any:
        raise InputError("no such label")

    for lm_coef in (0.5, 0.25):
        with pytest.raises(InputError, match="no such label"):
            run(refuse, tmp_path / "run", seeds=2, lm_coef=lm_coef)
        assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"learning_rate": (0.1, 0.1)}, r"sweep.learning_rate=\(0.1, 0.1\) has a value twice"),
        ({"batch_size": (8, 0)}, "batch_size=0 must be at least 1"),
        ({"learning_rate": (-0.1,)}, "optimizer.learning_rate=-0.1 must not be negative"),
        ({"lm_coef": (0.5, -1.0)}, "lm_coef=-1.0 must not be negative"),
    ],
)
def test_bad_values_are_refused_before_the_first_run(tmp_path, sweep, message):
    trainer = Trainer()
    with pytest.raises(InputError, match=message):
        run(trainer, tmp_path, sweep=sweep)
    assert not trainer.asked
