"""Files that are whole or not there, and what is suggested instead of a missing one."""

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_jax.errors import InputError, counted, did_you_mean, quoted
from gpt1_jax.files import (
    check_writable,
    first_missing,
    make_directory,
    nearest,
    read_json,
    sha256_of_file,
    similar,
    write_atomically,
    write_json,
)


def test_what_was_written_is_read_back(tmp_path):
    write_json(tmp_path / "a.json", {"text": "größe"})
    assert read_json(tmp_path / "a.json", "a test") == {"text": "größe"}
    assert sha256_of_file(tmp_path / "a.json") == hashlib.sha256((tmp_path / "a.json").read_bytes()).hexdigest()
    for damaged in ('{"text": ', "[1]"):
        (tmp_path / "a.json").write_text(damaged)
        with pytest.raises(InputError, match="is not a test"):
            read_json(tmp_path / "a.json", "a test")


def test_numbers_that_json_does_not_have_are_null(tmp_path):
    write_json(tmp_path / "a.json", {"loss": float("nan"), "all": [1.5, float("inf"), {"deep": (-float("inf"), 2)}]})
    text = (tmp_path / "a.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert read_json(tmp_path / "a.json", "a test") == {"loss": None, "all": [1.5, None, {"deep": [None, 2]}]}


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a", b"old")

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"):
        write_atomically(tmp_path / "a", b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a", b"old")]


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    code = f"""
import os, pathlib, signal
from gpt1_jax.files import write_atomically
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_atomically(pathlib.Path({str(tmp_path / "[a]")!r}), b"half")
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / f".[a].{os.getppid()}.tmp").touch()  # of one that is at work
    write_atomically(tmp_path / "[a]", b"whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [f".[a].{os.getppid()}.tmp", "[a]"]


def test_a_folder_that_cannot_be_made_names_its_setting(tmp_path):
    make_directory(tmp_path / "a" / "b", "output")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"output=.*file/b': cannot create"):
        make_directory(tmp_path / "file" / "b", "output")
    with pytest.raises(InputError, match=r"output='gs:/bucket/run': name a folder of this machine"):
        make_directory(Path("gs://bucket/run"), "output")


def test_suggestions(tmp_path):
    (tmp_path / "reviews").mkdir()
    missing = first_missing(tmp_path / "review" / "deep" / "a.csv")
    assert missing == tmp_path / "review"
    assert similar(missing, folder=True) == [tmp_path / "reviews"]
    assert similar(tmp_path / "unlike", folder=True) == []
    assert similar(tmp_path / "nowhere" / "a", folder=False) == []
    (tmp_path / "reviews.csv").touch()
    assert similar(tmp_path / "reviews_", folder=True) == [tmp_path / "reviews"]
    assert similar(tmp_path / "reviews_", folder=False) == [tmp_path / "reviews.csv"]
    assert did_you_mean("lable", ["text", "label"]) == "; did you mean 'label'?"
    assert did_you_mean("xyz", ["text", "label"]) == ""
    assert [counted(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert counted(2, "batch", "batches") == "2 batches"
    assert quoted(["a", "b"]) == "'a', 'b'"


def test_the_end_of_a_message_about_a_missing_path(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").touch()
    assert nearest(tmp_path / "book" / "one.txt") == (
        f"; its folder {tmp_path}/book does not exist; did you mean {tmp_path}/books?"
    )
    assert nearest(tmp_path / "books" / "on.txt") == f"; did you mean {tmp_path}/books/one.txt?"
    assert nearest(tmp_path / "book") == f"; did you mean {tmp_path}/books?"
    assert nearest(tmp_path / "nothing_like_it") == ""


def test_a_file_that_could_not_be_written_is_refused_beforehand(tmp_path):
    (tmp_path / "old.json").write_text("kept", encoding="utf-8")
    for name in ("old.json", "new.json"):
        check_writable(tmp_path / name, "--json")
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("old.json", "kept")]
    for path, message in (
        (tmp_path, "is a folder; name a file in it"),
        (tmp_path / "nowhere" / "a.json", "there is no folder .*nowhere; make it first"),
        (Path("/proc/a.json"), "cannot be written"),
    ):
        with pytest.raises(InputError, match=f"--json={re.escape(str(path))}: {message}"):
            check_writable(path, "--json")
