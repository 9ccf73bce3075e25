"""launch/prepare.py: killed and continued, and several parts."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from gpt1_jax.data.corpus import make_tokenizer, open_corpus
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.shards import Manifest
from gpt1_jax.data.split import Split

ROOT = Path(__file__).resolve().parents[2]


def launch(*arguments):
    return subprocess.Popen(
        [sys.executable, "launch/prepare.py", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def contents(folder):
    """All files but the locks, which hold times."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_killed_and_started_again_gives_the_same_bytes(corpus, tmp_path):
    """The one part, and with all parts in turn the rest; that verifies the whole and says what comes next."""
    source = f"jsonl:{corpus}/corpus.jsonl#text"
    command = (f"--source={source}", f"--folder={tmp_path}/a", "--vocab_size=380", "--heldout_fraction=0.1")
    command += ("--parts=2", "--shard_bytes=200", "--workers=1")
    part = tmp_path / "a" / "part-00001-of-00002"
    process = launch(*command, "--part=1")
    while process.poll() is None and not ((manifest := Manifest.read(part)) and len(manifest.shards) >= 3):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed = Manifest.read(part)
    assert len(killed.shards) >= 3
    assert not killed.complete
    output, log = launch(*command).communicate(timeout=120)
    assert f"part-00001-of-00002: {len(killed.shards)} finished shards are kept" in log
    assert output.splitlines()[-1].endswith(f"--config.shards={tmp_path}/a --workdir={tmp_path}/a-run")
    assert f"{open_corpus(tmp_path / 'a').train.n_documents} " in output

    split = Split(0.1)
    tokenizer = make_tokenizer(tmp_path / "b", source, split, vocab_size=380)
    prepare_shards(source, tokenizer, tmp_path / "b", split=split, parts=2, shard_bytes=200)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_bad_input_ends_with_one_message(tmp_path):
    process = launch(f"--folder={tmp_path}")
    _, log = process.communicate(timeout=120)
    assert process.returncode == 2
    assert log.startswith("error: --source is missing: ")
    assert "Traceback" not in log
