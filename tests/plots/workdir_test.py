"""What a run draws at its end, and what is drawn of a workdir at any time."""

import json

import pytest

from gpt1_jax import pretrain
from gpt1_jax.errors import InputError
from gpt1_jax.plots.workdir import run_figures, try_run_plots, write_run_plots

PNG = b"\x89PNG\r\n\x1a\n"


def write_run(folder, program, records, results=None):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"program": program}), encoding="utf-8")
    if results is not None:
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return folder


def finetuning(seed):
    for step in range(1, 9):
        yield {"step": step, "loss": 2.0, "task_loss": 1 / step + seed, "lm_loss": 3.0, "learning_rate": 1e-4}
        if step % 4 == 0:
            yield {"step": step, "validation_accuracy": 0.1 * step - 0.01 * seed}


REPORT = {"labels": ["a", "b"], "confusion": [[3, 1], [0, 4]]}


def test_a_run_draws_at_its_end_unless_told_otherwise(drawing, pretrain_settings, tmp_path):
    run, plots = tmp_path / "run", tmp_path / "run" / "plots"
    config = pretrain_settings(n_steps=3, loop={"eval_every": 1, "save_every": 0}, model={"n_layer": 1})
    pretrain.run(config | {"plots": False}, run)
    assert not plots.exists()
    pretrain.run(config, run)  # it may change on a resume, and a finished run draws as well
    assert {path.name for path in plots.iterdir()} == {
        *("loss.png", "perplexity.png", "gradient_norm.png", "speed.png")
    }
    assert all(path.read_bytes().startswith(PNG) for path in plots.iterdir())


def test_what_cannot_be_drawn_is_told_and_ends_nothing(tmp_path, caplog):
    run = write_run(tmp_path / "run", "pretrain", [{"step": 1, "loss": 3.0}])
    (run / "plots").write_text("a file where the folder should be", encoding="utf-8")
    try_run_plots(run)
    assert "no plots of" in caplog.text
    assert "cannot create this folder" in caplog.text
    assert f"launch/plot.py --checkpoint={run}" in caplog.text


def test_a_run_that_is_still_going(tmp_path):
    run = write_run(tmp_path / "run", "pretrain", [{"step": 1, "loss": 3.0, "grad_norm": 1.0}])
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 2, "lo')
    assert list(run_figures(run)) == ["gradient_norm", "loss", "perplexity"]
    assert [path.name for path in write_run_plots(run, tmp_path / "out")] == [
        *("gradient_norm.png", "loss.png", "perplexity.png")
    ]
    assert not (run / "plots").exists()


def test_nothing_to_draw(tmp_path):
    run = write_run(tmp_path / "run", "pretrain", [{"step": 1, "note": "text"}])
    with pytest.raises(InputError, match="has nothing to draw yet"):
        write_run_plots(run)


def test_fine_tuning_shows_the_step_that_was_kept(tmp_path):
    results = {"best_step": 4, "reports": {"test": REPORT}}
    figures = run_figures(write_run(tmp_path / "run", "finetune", finetuning(0), results))
    assert list(figures) == ["confusion_test", "loss", "validation"]
    axes = figures["validation"].axes[0]
    assert axes.get_ylabel() == "validation accuracy"
    assert {tuple(line.get_xdata()) for line in axes.lines} == {(4, 8), (4, 4)}
    assert [text.get_text() for text in axes.texts] == ["0.8", "kept"]


def test_several_seeds_are_drawn_together_and_their_confusions_added_up(tmp_path):
    runs = []
    for seed in range(3):
        other = {"labels": ["b", "a"], "confusion": [[1, 1], [1, 1]]}
        reports = {"test": REPORT, "validation": other if seed else REPORT}
        write_run(tmp_path / "all" / f"seed_{seed}", "finetune", finetuning(seed), {"reports": reports})
        runs.append({"workdir": f"seed_{seed}", "seed": seed, "point": {}, "metrics": {}})
    write_run(tmp_path / "all" / "seed_3", "finetune", [])  # diverged before its first line
    runs.append({"workdir": "seed_3", "seed": 3, "point": {}, "metrics": None})
    (tmp_path / "all" / "config.json").write_text('{"program": "finetune, repeated"}', encoding="utf-8")
    (tmp_path / "all" / "results.json").write_text(json.dumps({"runs": runs, "sweep": []}), encoding="utf-8")
    figures = run_figures(tmp_path / "all")
    assert list(figures) == ["confusion_test", "loss", "validation"]  # the labels of validation differ
    cells = [text.get_text() for text in figures["confusion_test"].axes[0].texts]
    assert cells == ["9\n75.0 %", "3\n25.0 %", "0\n0.0 %", "12\n100.0 %"]
    assert figures["confusion_test"].axes[0].get_title() == "test, 3 seeds: 21 of 24 right (87.5 %)"
    axes = figures["loss"].axes[0]
    median = next(line for line in axes.lines if line.get_label() == "median of 3")
    assert median.get_ydata() == pytest.approx([1 / step + 1 for step in range(1, 9)])
    assert [text.get_text() for text in figures["validation"].axes[0].texts] == ["0.79"]
