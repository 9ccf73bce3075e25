import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from absl import logging

from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.shards import TokenShards
from gpt1_jax.data.split import Split, document_key
from gpt1_jax.errors import InputError
from gpt1_jax.tokenizers import train_sentencepiece

SPLIT = Split(heldout_fraction=0.2)
SHARD_BYTES = 4000  # eight or so shards


def prepare(source, tokenizer, directory, **settings):
    prepare_shards(source, tokenizer, directory, **{"split": SPLIT, "shard_bytes": SHARD_BYTES} | settings)


def snapshot(directory):
    """The content of every file below a folder but for the locks, which hold times."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def documents(directory, side, tokenizer):
    """The documents of a side as text, decoded."""
    shards = TokenShards.open(directory, side)
    stream = shards.read(0, shards.n_tokens)
    ends = np.flatnonzero(stream == tokenizer.document_separator[0])
    assert ends[-1] == len(stream) - 1
    return [tokenizer.decode(ids[:-1]) for ids in np.split(stream, ends[:-1] + 1)]


@pytest.fixture(scope="module")
def prepared(texts, tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared")
    prepare(texts, tokenizer, directory)
    return directory


def test_every_document_once_on_its_side_in_order(prepared, texts, tokenizer):
    for side in ("train", "heldout"):
        assert documents(prepared, side, tokenizer) == [text.lower() for text in texts if SPLIT.side(text) == side]
        shards = TokenShards.open(prepared, side)
        assert len(shards.shards) > 3
        assert shards.n_documents == sum(SPLIT.side(text) == side for text in texts)
        assert shards.n_bytes == sum(len(text.encode()) for text in texts if SPLIT.side(text) == side)
        shards.verify()


def test_worker_processes_change_no_byte(prepared, texts, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("gpt1_jax.data.shard_writer.BATCH_BYTES", 300)
    prepare(texts, tokenizer, tmp_path, workers=2)
    assert snapshot(tmp_path) == snapshot(prepared)


def test_the_size_of_shards_does_not_change_the_stream(prepared, texts, tokenizer, tmp_path):
    prepare(texts, tokenizer, tmp_path, shard_bytes=10**9)
    one, many = TokenShards.open(tmp_path), TokenShards.open(prepared)
    assert len(one.shards) == 1
    np.testing.assert_array_equal(one.read(0, one.n_tokens), many.read(0, many.n_tokens))


def test_parts_by_several_processes_or_in_turn(prepared, texts, tokenizer, tmp_path):
    """And the stream of tokens does not depend on the number of parts."""
    for part in (2, 0, 1):
        with pytest.raises(InputError, match=r"holds no token shards|is missing or not finished"):
            TokenShards.open(tmp_path / "apart")
        prepare(texts, tokenizer, tmp_path / "apart", part=part, parts=3)
    prepare(texts, tokenizer, tmp_path / "in turn", parts=3)
    assert snapshot(tmp_path / "apart") == snapshot(tmp_path / "in turn")
    for side in ("train", "heldout"):
        whole, parts = TokenShards.open(prepared, side), TokenShards.open(tmp_path / "apart", side)
        np.testing.assert_array_equal(parts.read(0, parts.n_tokens), whole.read(0, whole.n_tokens))
        positions = np.arange(0, whole.n_tokens, 7)
        np.testing.assert_array_equal(parts.bytes_before(positions), whole.bytes_before(positions))


class Crash(Exception):
    pass


@pytest.fixture
def crash_after(monkeypatch):
    """Lets the n-th file operation fail, before or after it took place."""

    def arrange(n, *, before):
        real_replace, count = os.replace, 0

        def replace(source, target):
            nonlocal count
            count += 1
            if count == n and before:
                raise Crash
            real_replace(source, target)
            if count == n:
                raise Crash

        monkeypatch.setattr(os, "replace", replace)

    return arrange


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4, 5, 6, 11, 23, 31, 36])
def test_after_a_crash_at_any_write_the_same_call_finishes(
    prepared, texts, tokenizer, tmp_path, crash_after, monkeypatch, n, before
):
    crash_after(n, before=before)
    with pytest.raises(Crash):
        prepare(texts, tokenizer, tmp_path)
    monkeypatch.undo()
    with pytest.raises(InputError, match="is missing or not finished"):
        TokenShards.open(tmp_path)
    prepare(texts, tokenizer, tmp_path)
    assert snapshot(tmp_path) == snapshot(prepared)


def test_killed_process_is_gone_on_with(prepared, texts, tokenizer, tmp_path):
    """SIGKILL while two workers encode: nothing is lost, and the workers end as well."""
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    (tmp_path / "program.py").write_text(
        f"""
import json, pathlib, time
from gpt1_jax import tokenizers
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.split import Split
from gpt1_jax.data import shards

here = pathlib.Path(__file__).parent

if __name__ == "__main__":
    write = shards.Manifest.write
    def slowly(self, folder):
        write(self, folder)
        print("shard", flush=True)
        time.sleep(0.2)
    shards.Manifest.write = slowly
    texts = json.loads((here / "texts.json").read_text(encoding="utf-8"))
    prepare_shards(texts, tokenizers.load(here), here / "out", split=Split(0.2), shard_bytes={SHARD_BYTES}, workers=2)
""",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, text=True) as process:
        for _ in range(3):
            assert process.stdout.readline() == "shard\n"
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        process.send_signal(signal.SIGKILL)
    pids = [int(pid) for pid in children.stdout.split()]
    assert len(pids) >= 2
    out = tmp_path / "out" / "part-00000-of-00001"
    assert 3 <= len(json.loads((out / "manifest.json").read_text(encoding="utf-8"))["shards"]) < 8
    prepare(texts, tokenizer, tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(prepared)
    for _ in range(100):
        alive = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive


def test_finished_shards_are_kept_unless_damaged(prepared, texts, tokenizer, tmp_path, crash_after, monkeypatch):
    crash_after(18, before=True)
    with pytest.raises(Crash):
        prepare(texts, tokenizer, tmp_path)
    monkeypatch.undo()
    folder = tmp_path / "part-00000-of-00001"
    first, second = folder / "train-00000.tokens.npy", folder / "train-00001.tokens.npy"
    before = first.stat().st_mtime_ns
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    prepare(texts, tokenizer, tmp_path)
    assert first.stat().st_mtime_ns == before
    assert snapshot(tmp_path) == snapshot(prepared)


def test_a_finished_corpus_is_left_alone(texts, tokenizer, tmp_path):
    prepare(texts, tokenizer, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*y*")}
    prepare(texts, tokenizer, tmp_path)
    assert len(before) > 20
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*y*")} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": Split(0.3)}, "heldout_fraction was 0.2, is now 0.3"),
        ({"split": Split(0.2, seed=1)}, "split_seed was 0, is now 1"),
        ({"split": Split(0.2, excluded=frozenset([document_key("x")]))}, "excluded was '', is now '"),
        ({"shard_bytes": 5000}, "shard_bytes was 4000, is now 5000"),
        ({"parts": 2}, "parts was 1, is now 2"),
        ({"max_document_bytes": 5000}, "max_document_bytes was 4194304, is now 5000"),
    ],
)
def test_other_settings_are_refused(prepared, texts, tokenizer, change, message):
    before = snapshot(prepared)
    with pytest.raises(InputError, match=f"{message}.*Delete the folder or choose another"):
        prepare(texts, tokenizer, prepared, **change)
    assert snapshot(prepared) == before


def test_another_tokenizer_is_refused(prepared, texts, tmp_path):
    other = train_sentencepiece(texts, tmp_path, vocab_size=390)
    with pytest.raises(InputError, match=r"differently: tokenizer was '\w+\.\.\.', is now '\w+\.\.\.'\. Delete"):
        prepare(texts, other, prepared)


def test_another_text_is_refused(prepared, texts, tokenizer):
    with pytest.raises(InputError, match=r"source\.documents was 300, is now 299"):
        prepare(texts[:-1], tokenizer, prepared)


def test_a_file_that_was_edited_in_place_is_noticed_on_resume(texts, tokenizer, tmp_path, crash_after, monkeypatch):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    crash_after(18, before=True)
    with pytest.raises(Crash):
        prepare(f"jsonl:{file}", tokenizer, tmp_path / "out")
    monkeypatch.undo()
    content = file.read_text(encoding="utf-8")
    file.write_text(content[:9] + content[9:].replace(" the ", " eht ", 1), encoding="utf-8")
    with pytest.raises(InputError, match="the text of the source has changed since shard 0"):
        prepare(f"jsonl:{file}", tokenizer, tmp_path / "out")


def test_two_processes_at_one_part(texts, tokenizer, tmp_path):
    """The second is refused while the first is at it; other parts are free."""
    folder = tmp_path / "part-00001-of-00002"
    folder.mkdir()
    code = f"import sys, pathlib; from gpt1_jax.lock import take_lock; take_lock(pathlib.Path({str(folder)!r}), 'x')"
    code += "; print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        prepare(texts, tokenizer, tmp_path, parts=2, part=0)
        with pytest.raises(InputError, match=f"part-00001-of-00002 is in use by process {other.pid} on"):
            prepare(texts, tokenizer, tmp_path, parts=2, part=1)
        other.stdin.close()
    prepare(texts, tokenizer, tmp_path, parts=2, part=1)
    TokenShards.open(tmp_path).verify()


def test_a_full_disk_says_what_to_do_and_loses_nothing(prepared, texts, tokenizer, tmp_path, monkeypatch):
    real, n_calls = os.fsync, 0

    def fsync(descriptor):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 29:  # each file is followed by its folder, where an error is none
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        InputError, match=r"-of-00001/\S+: No space left on device\. Make space there, .*start the same command again"
    ):
        prepare(texts, tokenizer, tmp_path)
    first = tmp_path / "part-00000-of-00001" / "train-00000.tokens.npy"
    before = first.stat().st_mtime_ns
    monkeypatch.undo()
    (first.parent / ".train-00002.tokens.npy.123.tmp").write_bytes(b"left by a process that was killed")
    prepare(texts, tokenizer, tmp_path)
    assert first.stat().st_mtime_ns == before
    assert snapshot(tmp_path) == snapshot(prepared)


def test_little_space_is_said_before_it_is_used_up(texts, tokenizer, tmp_path, monkeypatch, caplog):
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    prepare(texts, tokenizer, tmp_path / "a")
    assert "GB are free, and the tokens will take about" in caplog.text
    caplog.clear()
    prepare(texts, tokenizer, tmp_path / "a")  # they are there
    prepare(texts[:3], tokenizer, tmp_path / "b", split=Split(0))
    assert "GB are free" not in caplog.text


def test_copies_of_a_document_stay_together(texts, tokenizer, tmp_path):
    prepare([*texts, *(text.upper() for text in texts)], tokenizer, tmp_path, parts=2)
    train, heldout = (set(documents(tmp_path, side, tokenizer)) for side in ("train", "heldout"))
    assert heldout
    assert not train & heldout


def test_excluded_and_empty_documents_are_left_out_and_counted(texts, tokenizer, tmp_path, caplog):
    logging.set_verbosity(logging.INFO)
    split = Split(0.2, excluded=frozenset(map(document_key, [texts[3], texts[5]])))
    with caplog.at_level("INFO"):
        prepare([*texts, "", " \n", texts[3].upper()], tokenizer, tmp_path, split=split)
    left = [*documents(tmp_path, "train", tokenizer), *documents(tmp_path, "heldout", tokenizer)]
    assert texts[3].lower() not in left
    assert len(left) == len([text for text in texts if text not in (texts[3], texts[5])])
    assert "left out: 2 empty and 3 excluded documents of 303" in caplog.text


def test_a_corpus_without_heldout_documents_says_what_to_do(texts, tokenizer, tmp_path):
    few = [text for text in texts if Split(0.1).side(text) == "train"][:5]
    with pytest.raises(InputError, match=r"none of the 5 documents .* raise it to 0\.\d+ \(holds out one") as error:
        prepare(few, tokenizer, tmp_path / "few", split=Split(0.1))
    fraction = float(str(error.value).split("raise it to ")[1].split()[0])
    prepare(few, tokenizer, tmp_path / "few", split=Split(fraction))
    assert TokenShards.open(tmp_path / "few", "heldout").n_documents >= 1
    with pytest.raises(InputError, match=r"none of the 1 documents .* is held out; cut long text files"):
        prepare(few[:1], tokenizer, tmp_path / "one", split=Split(0.1))
    prepare(few, tokenizer, tmp_path / "none wanted", split=Split(0))
    with pytest.raises(InputError, match="none of its 5 documents is on the side 'heldout'"):
        TokenShards.open(tmp_path / "none wanted", "heldout")
    with pytest.raises(InputError, match=r"none of the 5 documents .* Delete the folder first"):
        prepare(few, tokenizer, tmp_path / "many shards", split=Split(0.1), shard_bytes=1)


def test_no_text_at_all(tokenizer, tmp_path):
    with pytest.raises(InputError, match="source: has no documents"):
        prepare([], tokenizer, tmp_path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"workers": 0}, "workers=0 must be at least 1"),
        ({"parts": 0}, "parts=0 must be at least 1"),
        ({"part": 2, "parts": 2}, "part=2 must be from 0 to parts - 1 = 1"),
        ({"shard_bytes": 0}, "shard_bytes=0 must be at least 1"),
    ],
)
def test_settings_out_of_range(texts, tokenizer, tmp_path, setting, message):
    with pytest.raises(InputError, match=message):
        prepare(texts, tokenizer, tmp_path, **setting)


def test_a_folder_that_cannot_be_made(texts, tokenizer, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"directory='.*/file/shards': cannot create this folder"):
        prepare(texts, tokenizer, tmp_path / "file" / "shards")


def test_an_error_in_the_source_comes_through_with_workers(tokenizer, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 50 + "{\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.jsonl:51"):
        prepare(f"jsonl:{tmp_path}", tokenizer, tmp_path / "out", workers=2, shard_bytes=10)


def test_uint32_when_the_vocabulary_needs_it(texts, tmp_path):
    class Wide:
        vocab_size, document_separator, fingerprint = 70_000, (), "wide"

        def encode_batch(self, texts):
            return [[69_999] * len(text) for text in texts]

    prepare(texts, Wide(), tmp_path)
    shards = TokenShards.open(tmp_path)
    assert shards.read(0, 3).tolist() == [69_999] * 3
    assert shards.read(0, 3).dtype == np.uint32
