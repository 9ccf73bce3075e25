"""Pre-training from Python and from the command line: results, exact resume, kills, bad input."""

import json
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from helpers import on_all_devices
from programs import ENVIRONMENT, ROOT

from gpt1_jax import InputError, load_pretrained, pretrain
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.metrics import read_metrics
from gpt1_jax.train import Diverged
from gpt1_jax.workdir import OUTPUTS


@pytest.fixture
def config(pretrain_settings):
    return pretrain_settings


def leaves(workdir):
    import jax

    return jax.tree.leaves(load_pretrained(workdir)[1])


def losses(workdir):
    return {m["step"]: m["loss"] for m in read_metrics(workdir) if "loss" in m}


def test_a_run_leaves_a_workdir_that_explains_itself(pretrained):
    for name in ("config.json", "tokenizer", "shards", "checkpoints", "metrics.jsonl", "tensorboard", "results.json"):
        assert (pretrained / name).exists(), name
    curve = losses(pretrained)
    assert list(curve) == list(range(1, 11))
    assert curve[10] < curve[1] - 0.3
    results = json.loads((pretrained / "results.json").read_text())
    assert results["heldout_perplexity"] == pytest.approx(np.exp(results["heldout_loss"]))
    assert 0 < results["heldout_bits_per_byte"] < 8
    steps = [m["step"] for m in read_metrics(pretrained) if "heldout_loss" in m]
    assert steps == [5, 10]


def test_all_that_a_run_writes_is_known(pretrained):
    assert {path.name for path in pretrained.iterdir()} - {"config.json", ".lock"} <= {*OUTPUTS}


def test_a_finished_run_is_left_as_it_is(config, pretrained, caplog):
    before = (pretrained / "metrics.jsonl").read_bytes()
    with caplog.at_level("INFO"):
        result = pretrain.run(config(), pretrained)
    assert "was finished before, with step 10: nothing is left to train" in caplog.text
    assert "continuing" not in caplog.text
    assert (pretrained / "metrics.jsonl").read_bytes() == before
    assert set(result.metrics) == {"heldout_loss", "heldout_perplexity", "heldout_bits_per_byte"}


def test_one_device_and_eight_give_the_same_losses(config, pretrained, tmp_path):
    with on_all_devices():
        pretrain.run(config(), tmp_path / "eight")
    one, eight = losses(pretrained), losses(tmp_path / "eight")
    np.testing.assert_allclose(list(one.values()), list(eight.values()), rtol=1e-5)


def launch(config, workdir):
    overrides = [
        f"--config.source={config['source']}",
        "--config.heldout_fraction=0.1",
        *(f"--config.model.{k}={v}" for k, v in config["model"].items()),
        *(f"--config.optimizer.{k}={v}" for k, v in config["optimizer"].items()),
        *(f"--config.loop.{k}={v}" for k, v in config["loop"].items()),
        f"--config.batch_size={config['batch_size']}",
        f"--config.n_steps={config['n_steps']}",
    ]
    return subprocess.Popen(
        [sys.executable, "launch/pretrain.py", "--config=configs/pretrain.py", f"--workdir={workdir}", *overrides],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


@pytest.mark.slow  # three starts of the program; resume_test and faults/ have kills and resumes in less time
def test_killed_and_started_again_ends_as_if_nothing_had_happened(config, tmp_path):
    """The program, killed half-way, ends with the very losses of an undisturbed run; of SIGTERM see resume_test.py."""
    settings = config(n_steps=80, loop={"log_every": 10, "eval_every": 40, "save_every": 10})
    workdir = tmp_path / "killed"
    process = launch(settings, workdir)
    deadline = time.monotonic() + 240
    while not (workdir / "checkpoints" / "20").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, output
    for folder in (workdir, tmp_path / "undisturbed"):
        process = launch(settings, folder)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        assert ("continuing from step" in output) == (folder == workdir)
    assert losses(workdir) == losses(tmp_path / "undisturbed")
    for a, b in zip(leaves(workdir), leaves(tmp_path / "undisturbed"), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": ""}, "config.source is empty"),
        ({"source": "jsonl:/nowhere/*.jsonl#text"}, "/nowhere"),
        ({"batch_size": 12}, "batch_size=12"),
        ({"model": {"n_embd": 30, "n_head": 4}}, "n_embd=30"),
        ({"modle": {}}, "did you mean 'model'"),
        ({"optimizer": {"warmup_steps": 10}}, "warmup_steps=10"),
        ({"n_steps": 0}, "n_steps=0"),
        ({"accumulation_steps": 0}, "accumulation_steps=0"),
        ({"heldout_fraction": 1.0}, "heldout_fraction=1.0"),
        ({"heldout_fraction": 1e-6}, "none of the 120 documents"),
        ({"seed": -1}, "seed=-1"),
        ({"loss": {"chunk": -1}}, "loss.chunk=-1"),
        ({"model": {"vocab_size": 5000}}, "vocab_size=5000"),
        ({"mesh": {"data": 3}}, "data=3"),
        ({"mesh": {"data": 1, "tensor": 8}}, "tensor=8"),
        ({"require_accelerator": True}, "require_accelerator"),
        ({"n_steps": 2.5}, "config.n_steps=2.5"),
        ({"loop": {"keep_best": True, "save_every": 7}}, "save_every=7 must be a multiple of loop.eval_every=5"),
        ({"loop": {"keep_every": 7}}, "keep_every=7 must be a multiple of loop.save_every=5"),
        ({"loop": {"keep_every": 5}, "n_steps": 10**9}, r"free, the run needs [\d,]{10,} MB"),
        ({"loop": {"keep_best": True}, "heldout_fraction": 0.0}, "loop.keep_best=True: no text is held out"),
    ],
)
@pytest.mark.usefixtures("all_devices")
def test_bad_configs_are_refused_before_anything_is_trained(config, tmp_path, changes, message):
    with pytest.raises(InputError, match=message.replace("'", ".")):
        pretrain.run(config(**changes), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()  # the corrected command may use the same workdir


def test_a_run_refused_after_its_tokenizer_was_made_may_be_corrected_in_its_workdir(config, pretrained, tmp_path):
    """Bit for bit the run of a fresh workdir; the tokenizer and the shards are kept where they fit."""
    with pytest.raises(InputError, match="n_ctx=100000"):
        pretrain.run(config(model={"n_ctx": 100_000}), tmp_path / "run")
    made = (tmp_path / "run" / "tokenizer" / "sentencepiece.model").stat().st_mtime_ns
    with pytest.raises(InputError, match="n_ctx=90000"):
        pretrain.run(config(model={"n_ctx": 90_000, "vocab_size": 370}), tmp_path / "run")
    assert (tmp_path / "run" / "tokenizer" / "sentencepiece.model").stat().st_mtime_ns != made
    pretrain.run(config(), tmp_path / "run")
    assert losses(tmp_path / "run") == losses(pretrained)


def test_without_heldout_text_there_is_nothing_to_evaluate(config, tmp_path):
    result = pretrain.run(config(heldout_fraction=0.0, n_steps=3), tmp_path / "run")
    assert result.metrics == {}
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == {"n_steps": 3}


def test_a_corpus_shorter_than_a_window_is_refused(config, tmp_path):
    (tmp_path / "a.txt").write_text("a few words only, and then no more of them\n" * 3)
    (tmp_path / "b.txt").write_text("some other words that are also few\n" * 3)
    settings = config(source=f"text:{tmp_path}/*.txt", heldout_fraction=0.5)
    with pytest.raises(InputError):
        pretrain.run(settings, tmp_path / "run")


def test_more_text_after_a_refusal_needs_no_other_workdir(config, tmp_path):
    (tmp_path / "a.txt").write_text("a few words only, and then no more of them\n" * 5)
    settings = config(
        source=f"text:{tmp_path}/*.txt", heldout_fraction=0.0, n_steps=3, model={"vocab_size": 290, "n_ctx": 400}
    )
    with pytest.raises(InputError, match="fewer than a window"):
        pretrain.run(settings, tmp_path / "run")
    (tmp_path / "b.txt").write_text("and here are other words, of which there are more\n" * 400)
    pretrain.run(settings, tmp_path / "run")


def test_another_model_in_the_same_workdir_is_refused(config, pretrained):
    other = config(model={"n_layer": 3})
    with pytest.raises(InputError, match="n_layer"):
        pretrain.run(other, pretrained)


def test_the_best_checkpoint_is_kept_and_loaded(config, tmp_path):
    """A rate so high that the model gets worse: it stands for its best checkpoint, also when it is started again."""
    settings = config(
        n_steps=8,
        optimizer={"learning_rate": 1.0, "warmup_steps": 4, "schedule": "warmup_constant"},
        loop={"log_every": 1, "eval_every": 2, "save_every": 2, "keep_latest": 1, "keep_best": True},
    )
    result = pretrain.run(settings, tmp_path / "run")
    curve = {m["step"]: m["heldout_loss"] for m in read_metrics(tmp_path / "run") if "heldout_loss" in m}
    best = min(curve, key=curve.get)
    assert best < 8
    assert sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()) == [best, 8]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["best_step"] == best
    assert results["heldout_loss"] == result.metrics["heldout_loss"] == pytest.approx(curve[best])
    with Checkpointer(tmp_path / "run" / "checkpoints", read_only=True) as checkpointer:
        wanted = checkpointer.restore_params(best)
    jax.tree.map(np.testing.assert_array_equal, dict(result.params), wanted)
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(tmp_path / "run")[1], wanted)
    again = pretrain.run(settings, tmp_path / "run")
    assert again.metrics == pytest.approx(result.metrics)
    settings["loop"]["keep_best"] = False  # as all of loop.*, it may change
    assert pretrain.run(settings, tmp_path / "run").metrics["heldout_loss"] == pytest.approx(curve[8])


def test_a_diverged_run_stops_and_saves_nothing_wrong(config, tmp_path):
    with pytest.raises(Diverged, match="learning_rate"):
        pretrain.run(config(optimizer={"learning_rate": 1e30, "warmup_steps": 1, "clip_norm": 0.0}), tmp_path / "run")
    assert not list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))
