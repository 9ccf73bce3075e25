"""A workdir in a bucket has a mirror: what is copied, which side is the newer, what stays on this machine."""

import os
from pathlib import Path

import pytest

from gpt1_jax import bucket, mirror
from gpt1_jax.errors import InputError
from gpt1_jax.lock import release_lock, take_lock
from gpt1_jax.workdir import has_checkpoint, open_workdir


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes this a machine with a disk of its own, by a number."""

    def become(number):
        monkeypatch.setenv("GPT1_MIRROR_DIR", str(tmp_path / f"machine{number}"))

    become(0)
    return become


@pytest.fixture
def url(gcs, request):
    return f"{gcs}/runs/{request.node.name}"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def texts(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_local_workdir_is_its_own(tmp_path):
    for path in (tmp_path / "run", str(tmp_path / "run")):
        assert mirror.mirror(path) == mirror.copy_of(path) == tmp_path / "run"
    assert mirror.remote_of(tmp_path / "run") is None
    assert os.fspath(mirror.checkpoints_of(tmp_path / "run")) == str(tmp_path / "run" / "checkpoints")
    mirror.push(tmp_path / "run")
    mirror.try_push(tmp_path / "run")
    mirror.share(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_only_checkpoints_are_not_in_the_mirror(url, machine):
    local = mirror.mirror(url)
    assert local.is_relative_to(os.environ["GPT1_MIRROR_DIR"])
    assert mirror.mirror(url) == local
    for path, address in ((local, url), (local / "seed_0", f"{url}/seed_0")):
        assert mirror.remote_of(path) == address
        assert os.fspath(mirror.checkpoints_of(path)) == f"{address}/checkpoints"
    assert mirror.mirror(f"{url}_2") != local


def test_what_a_fresh_machine_needs_is_copied(url, machine):
    local = mirror.mirror(url)
    write(local, config="c", tokenizer__model="t", shards__tokens="s", tensorboard__events="e", seed_0__results="r")
    write(local, **{".hidden": "h"})
    mirror.push(local)
    assert sorted(bucket.list_files(url)) == ["config", "seed_0/results", "tensorboard/events", "tokenizer/model"]
    machine(1)
    fresh = mirror.mirror(url)
    assert texts(fresh) == {"config": "c", "tokenizer/model": "t", "seed_0/results": "r"}


def test_config_json_is_copied_last(url, machine, monkeypatch):
    """So that what is in the bucket is never of an older config.json than the one there."""
    local, order = mirror.mirror(url), []
    put = bucket.put
    monkeypatch.setattr(bucket, "put", lambda path, to: (order.append(path.name), put(path, to)))
    write(local, **{"a": "a", "config.json": "c", "tokenizer__model": "t", "z": "z"})
    mirror.push(local)
    assert order == ["a", "model", "z", "config.json"]
    mirror.push(local)
    assert len(order) == 4  # nothing has changed
    write(local, z="other")
    mirror.push(local)
    assert order[4:] == ["z"]


def test_a_part_is_copied_alone(url, machine):
    local = mirror.mirror(url)
    write(local, results="r", seed_0__metrics="0", seed_1__metrics="1")
    mirror.push(local / "seed_1")
    assert list(bucket.list_files(url)) == ["seed_1/metrics"]


def test_a_tokenizer_that_is_made_anew_takes_the_place_of_the_old_one(url, machine):
    local = mirror.mirror(url)
    write(local, config="1", tokenizer__old="t", other__kept="k")
    mirror.push(local)
    (local / "tokenizer" / "old").unlink()
    (local / "other" / "kept").unlink()
    write(local, tokenizer__new="t2")
    # Killed here: the old one is not fetched again.
    mirror.mirror(url)
    assert not (local / "tokenizer" / "old").exists()
    mirror.push(local)
    assert sorted(bucket.list_files(url)) == ["config", "other/kept", "tokenizer/new"]


def test_the_newer_side_holds(url, machine):
    first = mirror.mirror(url)
    write(first, metrics="1", config="a")
    mirror.push(first)
    write(first, metrics="1 2")  # and the copying fails
    mirror.mirror(url)
    assert texts(first) == {"config": "a", "metrics": "1 2"}

    machine(1)
    second = mirror.mirror(url)
    assert texts(second) == {"config": "a", "metrics": "1"}
    write(second, metrics="1 2 3")
    mirror.push(second)

    machine(0)
    assert mirror.mirror(url) == first
    assert texts(first) == {"config": "a", "metrics": "1 2 3"}


def test_shards_are_fetched_where_somebody_has_copied_them(url, machine, tmp_path):
    (tmp_path / "tokens").write_text("s")
    bucket.put(tmp_path / "tokens", f"{url}/shards/tokens")
    local = mirror.mirror(url)
    assert texts(local) == {"shards/tokens": "s"}
    write(local, shards__tokens="made here")
    mirror.mirror(url)
    assert texts(local) == {"shards/tokens": "made here"}


def test_two_runs_on_one_machine(url, machine):
    local = mirror.mirror(url)
    lock = take_lock(local, "workdir")
    try:
        with pytest.raises(InputError, match="already open"):
            mirror.mirror(url)
    finally:
        release_lock(lock)
    mirror.mirror(url)


def test_a_copy_that_fails_does_not_end_a_run(url, machine, caplog, monkeypatch):
    local = mirror.mirror(url)
    write(local, metrics="1")

    def fail(*_):
        raise InputError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(bucket, "put", fail)
        mirror.try_push(local)
        with pytest.raises(InputError, match="down"):
            mirror.push(local)
    assert "is tried again later: the network is down" in caplog.text
    mirror.try_push(local)
    assert list(bucket.list_files(url)) == ["metrics"]


def test_a_copy_that_hangs_does_not_hold_a_run_up(url, machine, caplog, monkeypatch):
    import threading

    local, goes_on = mirror.mirror(url), threading.Event()
    write(local, metrics="1")
    put = bucket.put
    monkeypatch.setattr(mirror, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(bucket, "put", lambda *args: goes_on.wait(20) and put(*args))
    mirror.try_push(local)
    assert "still being copied" in caplog.text
    write(local, metrics="1 2")
    mirror.try_push(local)
    assert "is not copied to the bucket now" in caplog.text
    goes_on.set()
    monkeypatch.setattr(mirror, "_PATIENCE_S", 20.0)
    mirror.try_push(local)  # waits for the one before
    assert bucket.list_files(url) == {"metrics": bucket.md5_of(local / "metrics")}


def test_closing_a_workdir_copies_it(url, machine):
    with open_workdir(mirror.mirror(url), {"a": 1}) as workdir:
        assert not workdir.resumed
    assert list(bucket.list_files(url)) == ["config.json"]
    machine(1)
    with open_workdir(mirror.mirror(url), {"a": 1}) as workdir:
        assert workdir.resumed


def test_a_half_written_checkpoint_is_none(url, machine, tmp_path):
    local = mirror.mirror(url)
    assert not has_checkpoint(local)
    (tmp_path / "x").write_text("x")
    bucket.put(tmp_path / "x", f"{url}/checkpoints/1/state/x")
    assert not has_checkpoint(local)
    bucket.put(tmp_path / "x", f"{url}/checkpoints/1/commit_success.txt")
    assert has_checkpoint(local)
    with pytest.raises(InputError, match="nobody knows what they are of"):
        open_workdir(local, {"a": 1})


def test_a_copy_to_read_follows_the_bucket(url, machine, tmp_path):
    with pytest.raises(InputError, match="does not exist or has no files"):
        mirror.copy_of(url)
    write(tmp_path / "model", config="1", tokenizer__a="a", checkpoints__x="x", predictions__p="p")
    for name in texts(tmp_path / "model"):
        bucket.put(tmp_path / "model" / name, f"{url}/{name}")
    copy = mirror.copy_of(url)
    assert texts(copy) == {"config": "1", "tokenizer/a": "a"}
    assert os.fspath(mirror.checkpoints_of(copy)) == f"{url}/checkpoints"
    write(tmp_path / "model", config="2")
    bucket.put(tmp_path / "model" / "config", f"{url}/config")
    bucket.remove(f"{url}/tokenizer/a")
    assert texts(mirror.copy_of(url)) == {"config": "2"}
    write(mirror.mirror(url), shards__tokens="s")  # of a run on this machine
    assert (mirror.copy_of(url) / "shards" / "tokens").read_text() == "s"
    assert texts(mirror.mirror(url))["shards/tokens"] == "s"
