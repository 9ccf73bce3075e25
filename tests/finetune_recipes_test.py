"""The recipes beside the paper's own: what is transferred, frozen, adapted, annealed, stopped early and repeated."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gpt1_jax import InputError, finetune, load_pretrained, task_data, train
from gpt1_jax.metrics import read_metrics

STEPS = 4  # of an epoch


@pytest.fixture(scope="module")
def settings(corpus):
    """32 sentences, batches of 8, one length: all runs of this file share few compilations."""
    lines = (corpus / "train.csv").read_text(encoding="utf-8").splitlines()
    few = corpus / "few.csv"
    few.write_text("\n".join(lines[: 8 * STEPS + 1]) + "\n", encoding="utf-8")

    def make(**changes: Any) -> dict[str, Any]:
        config = {
            "task": {
                "train": [str(few)],
                "validation": [str(corpus / "validation.csv")],
                "test": [str(corpus / "test.csv")],
            },
            "batch_size": 8,
            "epochs": 2,
            "optimizer": {"learning_rate": 3e-3, "schedule": "warmup_linear", "warmup_steps": None},
            "n_buckets": 1,
            "log_every": 1,
        }
        for name, value in changes.items():
            config[name] = {**config.get(name, {}), **value} if isinstance(value, dict) else value
        return config

    return make


def results(workdir: Path) -> dict[str, Any]:
    return json.loads((workdir / "results.json").read_text(encoding="utf-8"))


def curve(workdir: Path, name: str) -> list[float]:
    return [m[name] for m in read_metrics(workdir) if name in m]


def bits(x: Any) -> np.ndarray:
    return np.asarray(x).view(np.uint32)


def test_from_scratch_is_one_switch_away(settings, pretrained, tmp_path):
    """L3 from scratch: the pre-trained model's architecture and tokenizer, and none of its parameters."""
    config = settings(n_transfer=-1, seed=1, epochs=1, optimizer={"learning_rate": 0.0})
    result = finetune.run(config, tmp_path / "run", pretrained)
    base, source, tokenizer = load_pretrained(pretrained)
    assert result.tokenizer.fingerprint == tokenizer.fingerprint
    assert dataclasses.replace(result.model.config, n_special=0) == base.config
    for read in (lambda p: p["tokens_embed"]["embedding"], lambda p: p["h_1"]["mlp"]["c_fc"]["kernel"]):
        ours, theirs = (np.asarray(read(params))[: base.config.vocab_size] for params in (result.params, source))
        assert ours.std() == pytest.approx(0.02, rel=0.1)
        assert abs(np.corrcoef(ours.ravel(), theirs.ravel())[0, 1]) < 0.1


@pytest.mark.slow  # optim_test and losses_test have its parts
def test_lambda_falls_as_scheduled_and_costs_nothing_where_it_is_zero(settings, pretrained, tmp_path):
    config = settings(lm_coef_schedule="step", lm_coef_drop=0.25)
    finetune.run(config, tmp_path / "step", pretrained)
    assert curve(tmp_path / "step", "lm_coef") == [0.5] * 2 + [0.0] * 6
    for m in read_metrics(tmp_path / "step"):
        if "task_loss" in m:
            assert m["loss"] == pytest.approx(m["task_loss"] + m["lm_coef"] * m["lm_loss"], rel=1e-5)
    finetune.run(settings(lm_coef=0.0), tmp_path / "zero", pretrained)
    assert curve(tmp_path / "zero", "lm_loss") == []
    assert curve(tmp_path / "zero", "loss") == curve(tmp_path / "zero", "task_loss")
    assert curve(tmp_path / "zero", "task_loss")[0] == pytest.approx(curve(tmp_path / "step", "task_loss")[0], rel=1e-6)


@pytest.mark.slow  # frozen_test has its parts
def test_a_frozen_trunk_keeps_every_bit(settings, pretrained, tmp_path):
    result = finetune.run(settings(freeze="trunk", lm_coef=0.0), tmp_path / "run", pretrained)
    base, source, _ = load_pretrained(pretrained)
    for name in ("positions_embed", "h_0", "h_1"):
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(bits(a), bits(b)), dict(result.params[name]), dict(source[name])
        )
    v = base.config.vocab_size
    ours, theirs = (np.asarray(params["tokens_embed"]["embedding"]) for params in (result.params, source))
    np.testing.assert_array_equal(bits(ours[:v]), bits(theirs[:v]))
    drawn = np.random.RandomState(0).randn(3, base.config.n_embd) * 0.02
    assert np.abs(ours[v] - drawn[0]).max() > 1e-3
    again = finetune.run(settings(freeze="trunk", lm_coef=0.0), tmp_path / "run", pretrained)  # nothing is left to do
    assert again.metrics == result.metrics


def test_a_run_without_improvement_ends_early_also_when_it_was_killed(settings, pretrained, tmp_path):
    """A rate of zero never improves: the first epoch is the best, and two epochs of patience are over at the third."""
    config = settings(early_stopping=2, epochs=9, optimizer={"learning_rate": 0.0})

    class Stop(Exception):
        pass

    original = train.TrainingProgress.advance

    def stop_in_the_third_epoch(self, step, **kwargs):
        original(self, step, **kwargs)
        if step == 2 * STEPS + 2:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.TrainingProgress, "advance", stop_in_the_third_epoch)
        with pytest.raises(Stop):
            finetune.run(config, tmp_path / "run", pretrained)
    finetune.run(config, tmp_path / "run", pretrained)
    assert len(curve(tmp_path / "run", "validation_accuracy")) == 3
    stored = results(tmp_path / "run")
    assert (stored["best_step"], stored["last_step"], stored["n_steps"]) == (STEPS, 3 * STEPS, 9 * STEPS)
    assert stored["stopped_early"] is True

    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = finetune.run(config, tmp_path / "run", pretrained)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert results(tmp_path / "run") == stored
    assert again.metrics == stored["metrics"]


def compilations(text: str) -> list[str]:
    return sorted(re.findall(r"Finished XLA compilation of (\S+)", text))


def test_a_sweep_with_seeds(settings, pretrained, tmp_path, caplog):
    """Runs share a compiled step and the examples; the chosen ones alone predict the test split; it resumes."""
    changes = {"epochs": 1, "seeds": 2, "seed": 3, "model": {"resid_pdrop": 0.2}}  # nothing of it is compiled yet
    sweep = {"learning_rate": [1e-3, 1e-2], "lm_coef": [0.25, 0.5]}
    encode, encoded = task_data.encode_split, []
    with pytest.MonkeyPatch.context() as patch, caplog.at_level("WARNING"), jax.log_compiles():
        patch.setattr(task_data, "encode_split", lambda *args, **kw: encoded.append(kw["name"]) or encode(*args, **kw))
        result = finetune.run(settings(sweep=sweep, **changes), tmp_path / "run", pretrained)
    assert sorted(encoded) == ["test", "train", "validation"]
    ours = compilations(caplog.text)
    # Of 4 + 1 runs and a test split. What is gathered lies one way after an update and another when it was restored,
    # and other tests of this process may have had it compiled.
    assert ours.count("jit(gathered)") <= 2
    others = (
        "jit(gathered)",
        "jit(stage)",
        "jit(_multi_slice)",
    )  # the last of Orbax, and of JAX where arrays are placed
    assert [name for name in ours if name not in others] == ["jit(born)", "jit(step)", "jit(train_step)"]

    stored = results(tmp_path / "run")
    assert stored["finished"]
    assert [set(run["metrics"]) for run in stored["sweep"]] == [{"validation"}] * 4
    assert [set(run["metrics"]) for run in stored["runs"]] == [{"validation", "test"}] * 2
    assert stored["metric"] == ["validation", "accuracy"]
    values = [run["metrics"]["validation"]["accuracy"] for run in stored["sweep"]]
    assert values == sorted(values, reverse=True)
    chosen = Path(stored["sweep"][0]["workdir"])
    assert [run["workdir"] for run in stored["runs"]] == [str(chosen), str(chosen.with_name("seed_4"))]
    for run in stored["sweep"]:
        predicted = {path.name for path in (tmp_path / "run" / run["workdir"] / "predictions").iterdir()}
        assert predicted == {"validation.jsonl"} | ({"test.jsonl"} if run["workdir"] == str(chosen) else set())
    assert result.metrics == result.repeats.best.metrics
    model, params, _ = load_pretrained(tmp_path / "run" / stored["best"])
    assert model == result.model
    jax.tree.map(np.testing.assert_array_equal, dict(params), dict(result.params))

    # Taken alone, a run of it is the run of its config.
    alone = json.loads((tmp_path / "run" / stored["runs"][1]["workdir"] / "config.json").read_text())["config"]
    assert (alone["seed"], alone["seeds"]) == (4, 1)
    assert finetune.run(alone, tmp_path / "alone", pretrained).metrics == stored["runs"][1]["metrics"]

    # With one run lost on the way, the same command makes that one again, and only that one.
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("**/predictions/*")}
    del stored["runs"][1]
    (tmp_path / "run" / "results.json").write_text(json.dumps(stored))
    again = finetune.run(settings(sweep=sweep, **changes), tmp_path / "run", pretrained)
    assert again.repeats.runs == result.repeats.runs
    changed = [path.parts[-3] for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert set(changed) == {"seed_4"}


def test_adapting_to_the_texts_of_the_task(settings, pretrained, tmp_path):
    """L1 on the training sentences, once for two seeds; both start from what came of it, with new special rows."""
    adapt = {"source": "task", "n_steps": 6, "batch_size": 8, "optimizer": {"learning_rate": 1e-2, "warmup_steps": 0}}
    config = settings(adapt=adapt, seeds=2, epochs=1, optimizer={"learning_rate": 0.0})
    result = finetune.run(config, tmp_path / "run", pretrained)
    texts = [json.loads(line)["text"] for line in (tmp_path / "run/adapt/texts.jsonl").read_text().splitlines()]
    assert len(texts) == len(set(texts)) == 8 * STEPS
    losses = curve(tmp_path / "run" / "adapt", "loss")
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    base, adapted, _ = load_pretrained(tmp_path / "run" / "adapt")
    assert base.config.n_special == 0
    for seed in (0, 1):
        _, params, _ = load_pretrained(tmp_path / "run" / f"seed_{seed}")
        jax.tree.map(np.testing.assert_array_equal, dict(params["h_0"]), dict(adapted["h_0"]))
        v = base.config.vocab_size
        rows = np.asarray(params["tokens_embed"]["embedding"])[v : v + 3]
        drawn = np.random.RandomState(seed).randn(3, base.config.n_embd) * 0.02
        np.testing.assert_array_equal(rows, drawn.astype(np.float32))
    source = load_pretrained(pretrained)[1]
    assert np.abs(adapted["h_0"]["mlp"]["c_fc"]["kernel"] - source["h_0"]["mlp"]["c_fc"]["kernel"]).max() > 1e-3
    assert not (tmp_path / "run" / "seed_0" / "adapt").exists()
    assert result.repeats.summary["test"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_transfer": 3}, r"n_transfer=3: .* has 2 blocks; use 0 to 2, or -1"),
        ({"n_transfer": -2}, "n_transfer=-2"),
        ({"n_transfer": -1, "adapt": {"source": "task"}}, "n_transfer=-1 contradicts adapt.source='task'"),
        ({"freeze": "trunks"}, "freeze='trunks' is unknown; use one of .* did you mean 'trunk'"),
        ({"lm_coef_schedule": "exp"}, "lm_coef_schedule='exp' is unknown"),
        ({"lm_coef_drop": 1.5}, "lm_coef_drop=1.5 must be from 0 to 1"),
        ({"early_stopping": -1}, "early_stopping=-1 must not be negative"),
        ({"early_stopping": 1, "task": {"validation": [], "validation_fraction": 0.0}}, "early_stopping=1: task"),
        ({"seeds": 0}, "seeds=0 must be at least 1"),
        ({"seed": (1 << 32) - 1, "seeds": 2}, "seed=4294967296 must be"),
        ({"sweep": {"batch_size": [8, 12]}}, "batch_size=12"),
        ({"sweep": {"learning_rates": [1e-3]}}, "sweep.learning_rates is unknown"),
        ({"adapt": {"source": "reviews.txt"}}, "adapt.source='reviews.txt' must be text:GLOB.*or 'task'"),
        ({"adapt": {"source": "task", "epochs": 0.0}}, "adapt.epochs=0.0 must be above 0"),
        ({"adapt": {"source": "task", "batch_size": 0}}, "adapt.batch_size=0 must be at least 1"),
        ({"adapt": {"source": "task", "heldout_fraction": 1.0}}, "adapt.heldout_fraction=1.0"),
    ],
)
@pytest.mark.usefixtures("all_devices")
def test_bad_input_is_refused_before_anything_is_trained(settings, pretrained, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        finetune.run(settings(**changes), tmp_path / "run", pretrained)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("changes", [{"n_transfer": 1}, {"adapt": {"source": "task"}}])
def test_what_needs_a_pretrained_model_says_so(settings, pretrained, tmp_path, changes):
    with pytest.raises(InputError, match="give init_from"):
        finetune.run(settings(tokenizer=str(pretrained), **changes), tmp_path / "run")
