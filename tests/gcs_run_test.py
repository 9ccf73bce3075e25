"""Runs whose workdir is in a bucket: killed and moved to a fresh machine they are the same run; faults are named."""

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
import requests
import xla_flags

from gpt1_jax import bucket, convert, evaluate, finetune, load_pretrained, mirror, pretrain
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.errors import InputError
from gpt1_jax.metrics import read_metrics
from gpt1_jax.train import Checkpointer as LoopCheckpointer


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Makes this a machine with nothing on its disk."""
    with pytest.MonkeyPatch.context() as patch:

        def become_fresh():
            patch.setenv("GPT1_MIRROR_DIR", str(tmp_path_factory.mktemp("machine")))

        yield become_fresh


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def settings(pretrain_settings):
    """Four updates of a model of one block."""
    loop = {"log_every": 1, "eval_every": 2, "save_every": 2}
    return pretrain_settings(model={"n_layer": 1, "n_embd": 16}, n_steps=4, loop=loop)


@pytest.fixture(scope="module")
def moved(gcs, settings, machine):
    """The address of a run that was killed after its second update and went on on another machine."""
    machine()
    url, save = f"{gcs}/moved", LoopCheckpointer.save

    def save_then_die(self, step, *args, **kwargs):
        saved = save(self, step, *args, **kwargs)
        if step == 2:
            self.wait()
            raise Killed
        return saved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopCheckpointer, "save", save_then_die)
        with pytest.raises(Killed):
            pretrain.run(settings, url)
    machine()
    pretrain.run(settings, url)
    return url


def leaves(path):
    return jax.tree.leaves(load_pretrained(path)[1])


def losses(path):
    return {m["step"]: m["loss"] for m in read_metrics(path) if "loss" in m}


def test_what_is_where(moved):
    there = {name.split("/")[0] for name in bucket.list_files(moved)}
    assert there == {"checkpoints", "config.json", "metrics.jsonl", "results.json", "tensorboard", "tokenizer"}
    assert len([name for name in bucket.list_files(moved) if name.startswith("tensorboard/")]) == 2
    here = {path.name for path in mirror.mirror(moved).iterdir() if not path.name.startswith(".")}
    assert here == {"config.json", "metrics.jsonl", "results.json", "shards", "tensorboard", "tokenizer"}


def test_its_curve_has_no_gap_and_no_duplicate(moved):
    assert list(losses(moved)) == [1, 2, 3, 4]
    assert [m["step"] for m in read_metrics(moved) if "heldout_loss" in m] == [2, 4]
    assert len(leaves(moved)) > 5


@pytest.mark.slow
def test_it_is_the_run_of_a_local_workdir(moved, settings, tmp_path):
    pretrain.run(settings, tmp_path)
    for a, b in zip(leaves(moved), leaves(tmp_path), strict=True):
        np.testing.assert_array_equal(a, b)
    assert losses(moved) == losses(tmp_path)


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is(moved, settings):
    def content():
        return {name: md5 for name, md5 in bucket.list_files(moved).items() if not name.startswith("tensorboard/")}

    before = content()
    pretrain.run(settings, moved)
    assert content() == before
    with pytest.raises(InputError, match="seed is 0 there, 1 here"):
        pretrain.run(settings | {"seed": 1}, moved)


@pytest.mark.slow
def test_every_program_reads_it(moved, machine, corpus, tmp_path):
    source = f"jsonl:{corpus}/corpus.jsonl#text"
    own = evaluate.run(moved)  # the shards are on this machine
    machine()
    found = evaluate.run(moved, {"source": source})
    assert 1 < found["perplexity"] < 1000
    assert 1 < own["perplexity"] < 1000
    with pytest.raises(InputError):  # no shards here
        evaluate.run(moved)
    converted = convert.run(moved, tmp_path / "hf", "huggingface")
    assert converted.n_compared > 0
    for name in (path.name for path in (tmp_path / "hf").iterdir() if path.is_file()):
        bucket.put(tmp_path / "hf" / name, f"{moved}_hf/{name}")
    for path in (tmp_path / "hf" / "tokenizer").iterdir():
        bucket.put(path, f"{moved}_hf/tokenizer/{path.name}")
    for a, b in zip(leaves(f"{moved}_hf"), leaves(moved), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(InputError, match="gcloud storage cp"):
        convert.run(moved, f"{moved}_2", "gpt1_jax")


@pytest.mark.slow
def test_fine_tuning_from_a_bucket_into_a_bucket(moved, machine, corpus, gcs, tmp_path):
    url = f"{gcs}/reviews"
    config = {
        "task": {"train": (f"{corpus}/train.csv",), "validation": (f"{corpus}/validation.csv",)},
        "epochs": 1,
        "batch_size": 32,
        "predict_test": False,
    }
    result = finetune.run(config, url, moved)
    names = bucket.list_files(url)
    assert {"results.json", "predictions/validation.jsonl", "config.json", "metrics.jsonl"} <= names.keys()
    machine()
    model, _, _ = load_pretrained(url)
    assert model.readout.labels == result.model.readout.labels
    assert evaluate.run(url, {"predictions": f"{tmp_path}"})["validation"] == result.metrics["validation"]
    assert json.loads((tmp_path / "results.json").read_text())["checkpoint"] == url


@pytest.fixture
def saved(gcs, request):
    """The folder of two checkpoints, of steps 1 and 2."""
    folder = f"{gcs}/{request.node.name}/checkpoints"
    with Checkpointer(folder) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state(step))
    return folder


def state(step):
    return {"params": {"w": jax.numpy.arange(1000.0) + step}}


def test_a_half_written_checkpoint_is_not_read_and_gets_out_of_the_way(saved):
    bucket.remove(f"{saved}/2/commit_success.txt")
    with Checkpointer(saved, read_only=True) as checkpointer:
        assert checkpointer.all_steps() == [1]
    assert bucket.list_files(f"{saved}/2")
    with Checkpointer(saved) as checkpointer:
        assert checkpointer.all_steps() == [1]
        checkpointer.save(2, state(7))
        np.testing.assert_array_equal(checkpointer.restore_params(2)["w"], state(7)["params"]["w"])


def test_a_checkpoint_of_which_only_a_part_was_deleted_is_refused(saved):
    name = next(name for name in bucket.list_files(f"{saved}/2/state") if "/d/" in name)
    bucket.remove(f"{saved}/2/state/{name}")
    with Checkpointer(saved) as checkpointer, pytest.raises(InputError, match=r"step 2 is damaged: .* is missing"):
        checkpointer.restore_params()


def test_a_flipped_bit_is_found(saved, tmp_path):
    name = next(name for name in bucket.list_files(f"{saved}/2/state") if "/d/" in name)
    bucket.get(f"{saved}/2/state/{name}", tmp_path / "file")
    content = bytearray((tmp_path / "file").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "file").write_bytes(content)
    bucket.put(tmp_path / "file", f"{saved}/2/state/{name}")
    with Checkpointer(saved) as checkpointer, pytest.raises(InputError, match="other content than was written"):
        checkpointer.restore_params()


def test_old_checkpoints_go(saved):
    with Checkpointer(saved, keep_latest=1) as checkpointer:
        checkpointer.save(3, state(3))
        assert checkpointer.all_steps() == [3]
    assert {name.split("/")[0] for name in bucket.list_files(saved)} == {"3"}


def test_a_bucket_that_goes_away_ends_a_save_with_its_name(gcs):
    """What neither TensorStore nor gcsfs tries again."""
    buckets = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b"
    requests.post(buckets, json={"name": "short-lived"}, timeout=10).raise_for_status()
    url = "gs://short-lived/run"
    checkpointer = Checkpointer(f"{url}/checkpoints")
    checkpointer.save(1, state(1))
    checkpointer.wait()
    for name in bucket.list_files(url):
        bucket.remove(f"{url}/{name}")
    requests.delete(f"{buckets}/short-lived", timeout=10).raise_for_status()

    def save_and_wait():
        checkpointer.save(2, state(2))
        checkpointer.wait()

    with pytest.raises(InputError, match=r"step 2 could not be written to gs://short-lived/run/checkpoints .*reaches"):
        save_and_wait()
    with pytest.raises(InputError, match=r"no bucket 'short-lived'|short-lived/run/checkpoints cannot be reached"):
        checkpointer.close()  # whichever of the writes was told first


TWO = """
import json, sys
from gpt1_jax import InputError, distributed, finetune, pretrain
distributed.start()
try:
    pretrain.run(json.loads(sys.argv[1]), sys.argv[2])
    for config in json.loads(sys.argv[3]):
        finetune.run(config, sys.argv[2] + "-tuned", sys.argv[2])
except InputError as error:
    print("refused:", error)
    distributed.leave(2, together=True)
distributed.leave(0, together=True)
"""


def two_machines(folder, settings, url, texts, tuned=()):
    """Trains in two processes, each on a machine with its own disk, and gives their outputs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = []
    for i, text in enumerate(texts):
        (folder / f"machine{i}").mkdir()
        (folder / f"machine{i}" / "corpus.jsonl").write_text(text)
        environment = os.environ | {
            "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(i),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": xla_flags.quick(2),
            "GPT1_MIRROR_DIR": str(folder / f"machine{i}" / "mirror"),
        }
        command = [sys.executable, "-c", TWO, json.dumps(settings | {"source": "jsonl:corpus.jsonl#text"})]
        processes.append(
            subprocess.Popen(
                [*command, url, json.dumps(tuned)],
                cwd=folder / f"machine{i}",
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    return [(process.communicate(timeout=400)[0], process.returncode) for process in processes]


@pytest.mark.slow
def test_two_machines_without_a_common_disk(gcs, settings, corpus, tmp_path, machine):
    url, text = f"{gcs}/two", (corpus / "corpus.jsonl").read_text()
    tuned = {
        "task": {name: [str(corpus / f"{name}.csv")] for name in ("train", "validation")},
        "batch_size": 32,
        "epochs": 1,
        "seeds": 2,
        "n_buckets": 1,
        "adapt": {"source": "task", "n_steps": 1, "batch_size": 8, "optimizer": {"warmup_steps": 0}},
    }
    for output, status in two_machines(tmp_path, settings, url, [text, text], [tuned, tuned]):  # again: all is there
        assert status == 0, output
    mirrors = [next((tmp_path / f"machine{i}" / "mirror" / "runs").glob("*-two-[0-9a-f]*")) for i in range(2)]
    assert not (mirrors[0] / "checkpoints").exists()
    here = {path.name for path in mirrors[1].iterdir() if not path.name.startswith(".")}
    assert here == {"config.json", "shards", "tokenizer"}
    machine()
    local = tmp_path / "local"
    pretrain.run(settings, local)
    assert list(losses(url)) == list(losses(local))
    np.testing.assert_allclose(list(losses(url).values()), list(losses(local).values()), rtol=1e-5)
    for a, b in zip(leaves(url), leaves(local), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_machines_with_different_texts_are_refused(gcs, settings, corpus, tmp_path):
    text = (corpus / "corpus.jsonl").read_text()
    other = text.replace("wonderful", "wondrous ", 1)
    for output, status in two_machines(tmp_path, settings, f"{gcs}/different", [text, other]):
        assert status == 2, output
        assert "from other text than" in output
