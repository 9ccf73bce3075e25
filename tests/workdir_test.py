"""A workdir is for one run, with one configuration, and says so before any work starts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.workdir import open_workdir, read_config, write_config

CONFIG = {"n_steps": 100, "model": {"n_embd": 64, "dropout": {}}, "optim": {"lr": 2.5e-4, "betas": (0.9, 0.999)}}


def changed(**fields: object) -> dict:
    """CONFIG with dotted fields replaced (`__` for the dot)."""
    config = json.loads(json.dumps(CONFIG))
    for name, value in fields.items():
        *parents, last = name.split("__")
        inner = config
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return config


def test_the_first_run_writes_its_config_and_a_resumed_one_finds_it(tmp_path: Path):
    path = tmp_path / "new" / "run"
    with open_workdir(path, CONFIG) as workdir:
        assert not workdir.resumed
        assert workdir.path == path
    before = (path / "config.json").stat()
    assert before.st_mode & 0o777 == 0o666 & ~current_umask()
    with open_workdir(path, CONFIG) as workdir:  # tuples and lists are the same to JSON
        assert workdir.resumed
        assert workdir.config == read_config(path) == json.loads(json.dumps(CONFIG))
    assert (path / "config.json").stat().st_mtime_ns == before.st_mtime_ns
    assert sorted(entry.name for entry in path.iterdir()) == [".lock", "config.json"]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_every_differing_field_is_named_with_both_values(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="absl")
    open_workdir(tmp_path, CONFIG).close()
    config = changed(optim__lr=1e-3, model__n_layer=4, n_steps=200)
    del config["optim"]["betas"]
    with pytest.raises(InputError) as caught:
        open_workdir(tmp_path, config, mutable=("log", "n_steps"))
    message = str(caught.value)
    assert "optim.lr is 0.00025 there, 0.001 here" in message
    assert "model.n_layer is absent there, 4 here" in message
    assert "optim.betas is [0.9, 0.999] there, absent here" in message
    assert "n_steps is" not in message
    assert message.endswith("What may change on a resume: n_steps.")  # it has no log
    assert read_config(tmp_path)["n_steps"] == 100
    assert "from now on" not in caplog.text  # nothing is said of what did not come to be
    open_workdir(tmp_path, CONFIG).close()  # the refused one let go of the lock


def test_the_workdir_of_another_program_is_refused_in_a_word(tmp_path: Path):
    open_workdir(tmp_path, {"program": "pretrain", **CONFIG}).close()
    with pytest.raises(InputError, match=r"a run of 'pretrain', this is 'finetune': choose another workdir$"):
        open_workdir(tmp_path, {"program": "finetune"}, made_from={})


def test_before_the_first_checkpoint_other_settings_take_over(tmp_path: Path):
    """What was made from a value that differs goes, the rest stays; from the first checkpoint on it is an error."""
    made_from = {"tokenizer": ("model",), "shards": ("optim", "n_steps")}
    for folder in ("tokenizer", "shards", "checkpoints", "checkpoints/7.tmp"):
        (tmp_path / folder).mkdir()
    write_config(tmp_path, CONFIG)
    with pytest.raises(InputError, match="n_embd is 64 there, 32 here"):
        open_workdir(tmp_path, changed(model__n_embd=32))
    other = changed(model__n_embd=32)
    open_workdir(tmp_path, other, made_from=made_from).close()
    assert read_config(tmp_path) == json.loads(json.dumps(other))
    assert not (tmp_path / "tokenizer").exists()
    assert (tmp_path / "shards").exists()
    (tmp_path / "checkpoints" / "7").mkdir()
    with pytest.raises(InputError, match="n_embd is 32 there, 64 here"):
        open_workdir(tmp_path, CONFIG, made_from=made_from)


def test_mutable_fields_are_updated(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="absl")
    open_workdir(tmp_path, CONFIG).close()
    with open_workdir(
        tmp_path, changed(n_steps=200, model__dropout={"embd": 0.1}), mutable=("n_steps", "model.dropout")
    ):
        assert read_config(tmp_path) == changed(n_steps=200, model__dropout={"embd": 0.1})
    assert "n_steps was 100, is 200 from now on" in caplog.text
    with pytest.raises(InputError, match=r"model\.n_embd"):  # a prefix of a name is not its parent
        open_workdir(tmp_path, changed(n_steps=200, model__n_embd=1), mutable=("model.n", "model.dropout"))


def test_equal_numbers_are_no_difference(tmp_path: Path):
    open_workdir(tmp_path, changed(n_steps=1, threshold=float("nan"))).close()
    open_workdir(tmp_path, changed(n_steps=1.0, threshold=float("nan"))).close()


def test_a_field_that_a_later_release_added_had_its_default(tmp_path: Path):
    later = changed(model__fused=False, lines=[], task={"options": {"header": None}})
    defaults = {"model": {"fused": False, "n_embd": 768}, "lines": [], "task": {"options": {"header": None}}, "gone": 1}
    open_workdir(tmp_path, CONFIG).close()
    with pytest.raises(InputError, match=r"model\.fused is absent there, false here"):
        open_workdir(tmp_path, later)
    open_workdir(tmp_path, later, defaults=defaults).close()
    with pytest.raises(InputError, match=r"model\.fused is false there, true here"):
        open_workdir(tmp_path, changed(model__fused=True, lines=[]), defaults=defaults)
    with pytest.raises(InputError, match=r"model\.n_embd is 64 there, 768 here"):
        open_workdir(tmp_path, changed(model__n_embd=768), defaults=defaults)


def test_a_workdir_is_open_once(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "run")
    code = f"""
import sys
from gpt1_jax.workdir import open_workdir
workdir = open_workdir({str(tmp_path / "run")!r}, {{}})
print("open", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    other = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    try:
        assert other.stdout.readline() == "open\n"
        for name in ("run", "link"):
            with pytest.raises(InputError, match=rf"in use by process {other.pid} on .*another workdir"):
                open_workdir(tmp_path / name, {})
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    workdir = open_workdir(tmp_path / "run", {})  # the lock died with the process
    with pytest.raises(InputError, match="already open in this process"):
        open_workdir(tmp_path / "link", {})
    refused = subprocess.run(command, input="", capture_output=True, text=True)
    assert f"in use by process {os.getpid()} on" in refused.stderr  # the attempts above did not release it
    workdir.close()
    open_workdir(tmp_path / "link", {}).close()


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path):
    code = f"""
import os, sys, time
from gpt1_jax.workdir import open_workdir
workdir = open_workdir({str(tmp_path)!r}, {{}}, process_index=0)
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
"""
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    assert process.wait(timeout=60) == 0
    try:
        open_workdir(tmp_path, {}).close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_run_that_made_nothing_takes_its_config_back(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with open_workdir(tmp_path, CONFIG) as workdir:
        workdir.forget()
    with open_workdir(tmp_path, changed(n_steps=200)) as workdir:  # another configuration is welcome
        assert not workdir.resumed
        (tmp_path / "tokenizer").mkdir()
        workdir.forget()
    assert read_config(tmp_path)["n_steps"] == 200
    with open_workdir(tmp_path, changed(n_steps=200)) as workdir:
        workdir.forget()  # that of an earlier run
    assert read_config(tmp_path)["n_steps"] == 200
    assert (tmp_path / "notes.txt").exists()


def test_only_process_0_touches_the_folder(tmp_path: Path):
    with open_workdir(tmp_path / "run", CONFIG, process_index=1) as workdir:
        assert not (tmp_path / "run").exists()
        assert workdir.config["n_steps"] == 100


def test_an_unusable_folder_is_found_at_the_start(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"workdir=.*file cannot be written \(File exists\)"):
        open_workdir(tmp_path / "file", {})
    with pytest.raises(InputError, match=r"cannot be written .*the nearest folder that exists is /proc"):
        open_workdir("/proc/nowhere/run", {})
    with pytest.raises(InputError, match=r"MB free, the run needs 1,000,000,000,000 MB"):
        open_workdir(tmp_path / "small", {}, min_free_bytes=10**18)
    with pytest.raises(InputError, match="workdir=gs://bucket/run is not on a file system"):
        open_workdir("gs://bucket/run", {})
    with pytest.raises(InputError, match="workdir=/ is the root of a file system"):
        open_workdir("/", {}, min_free_bytes=10**18)
    with pytest.raises(TypeError):
        open_workdir(tmp_path / "unwritable", {"function": print})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_found_at_the_start(tmp_path: Path):
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match="Permission denied"):
        open_workdir(tmp_path, {})


def test_checkpoints_of_an_unknown_run_are_not_adopted(tmp_path: Path):
    (tmp_path / "checkpoints" / "100").mkdir(parents=True)
    with pytest.raises(InputError, match=r"checkpoints but no config.json"):
        open_workdir(tmp_path, CONFIG)


@pytest.mark.parametrize("name", ["results.json", "metrics.jsonl", "plots/mine.png", "tokenizer/vocab.json"])
def test_what_a_run_would_write_over_is_not_adopted(name: str, tmp_path: Path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=rf"it has {name.partition('/')[0]} but no config.json, so nobody knows"):
        open_workdir(tmp_path, CONFIG)
    assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / "config.json").exists()


def test_a_refused_run_that_filled_a_folder_keeps_its_config(tmp_path: Path):
    (tmp_path / "tokenizer").mkdir()
    with open_workdir(tmp_path, CONFIG) as workdir:
        (tmp_path / "tokenizer" / "vocab.json").write_text("made")
        workdir.forget()
    open_workdir(tmp_path, CONFIG).close()


def test_other_files_and_empty_folders_are_let_be(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "plots").mkdir()
    open_workdir(tmp_path, CONFIG).close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_is_no_workdir_is_explained(tmp_path: Path):
    run = tmp_path / "runs" / "quickstart"
    (run / "checkpoints" / "100").mkdir(parents=True)
    write_config(run, CONFIG)
    for path, meant in [(tmp_path / "runs", run), (run / "checkpoints", run), (run / "checkpoints" / "100", run)]:
        with pytest.raises(InputError, match=f"has no config.json. Did you mean {meant}?"):
            read_config(path)
    with pytest.raises(InputError, match=f"does not exist; {tmp_path}/runs does. Did you mean {run}"):
        read_config(tmp_path / "runs" / "quickstrat" / "checkpoints")
    with pytest.raises(InputError, match="it is a file"):
        read_config(run / "config.json")
    for text, reason in (('{"n_steps": 1', "not valid JSON"), ("[1]", "holds a list")):
        (run / "config.json").write_text(text)
        with pytest.raises(InputError, match=reason):
            read_config(run)
