"""A gigabyte of made-up text: memory stays flat, throughput is printed.

    pytest -m slow -s tests/data/prepare_scale_test.py       # GPT1_CORPUS_MB=100 for a smaller one

Memory is that of the program and of its workers together, sampled from /proc: what they have taken for themselves
(RssAnon), without the pages of mapped files, which the system keeps as long as it likes.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gpt1_jax.data.corpus import make_tokenizer, open_corpus
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.split import Split

ROOT = Path(__file__).resolve().parents[2]
MEGABYTES = int(os.environ.get("GPT1_CORPUS_MB", "1000"))
SHARD_BYTES = min(64, max(MEGABYTES // 12, 1)) << 20
VOCAB_SIZE = 16_000
SLACK = 64e6  # bytes; what allocators keep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory"),
]


def make_sentences(rng: np.random.Generator, n: int) -> list[str]:
    """Sentences whose words have the frequencies of Zipf's law: 50,000 made-up words, the short ones frequent."""
    syllables = [c + v + end for c in "bcdfghjklmnprstvwz" for v in "aeiou" for end in ("", "n", "r", "s", "l")]
    words = sorted({"".join(rng.choice(syllables, size)) for size in rng.integers(1, 4, 70_000)}, key=len)[:50_000]
    weights = 1 / (np.arange(len(words)) + 2.7)
    chosen = iter(np.array(words, object)[rng.choice(len(words), n * 20, p=weights / weights.sum())].tolist())
    ends = rng.choice([".", ".", ".", "?", "!", ";"], n)
    return [
        " ".join(next(chosen) for _ in range(length)).capitalize() + str(end)
        for length, end in zip(rng.integers(4, 20, n), ends, strict=True)
    ]


def write_corpus(path: Path, n_bytes: float) -> None:
    """A JSONL file of documents of 5 to 60 sentences."""
    rng = np.random.default_rng(0)
    sentences = make_sentences(rng, 50_000)
    with open(path, "w", encoding="utf-8") as file:
        written = 0
        while written < n_bytes:
            numbers = rng.integers(0, len(sentences), rng.integers(5, 60))
            text = " ".join(sentences[i] for i in numbers.tolist())
            written += file.write(json.dumps({"text": text}) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with corpus.jsonl, and small.jsonl, a tenth of it."""
    folder = tmp_path_factory.mktemp("scale")
    if shutil.disk_usage(folder).free < 4e6 * MEGABYTES:
        pytest.skip(f"needs {4 * MEGABYTES} MB of disk")
    write_corpus(folder / "corpus.jsonl", MEGABYTES * 1e6)
    write_corpus(folder / "small.jsonl", MEGABYTES * 1e5)
    yield folder
    shutil.rmtree(folder)


def own_memory(pid: int) -> int:
    """RssAnon of a process and of its children, in bytes."""
    total = 0
    for process in (pid, *children(pid)):
        try:
            status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))
    return total


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_preparing_has_flat_memory(folder):
    """Two workers: no more is taken at the end than after a fifth of the text."""
    source = f"jsonl:{folder}/corpus.jsonl"
    make_tokenizer(folder / "shards", f"jsonl:{folder}/small.jsonl", Split(0.005), vocab_size=VOCAB_SIZE)
    command = [sys.executable, "launch/prepare.py", f"--source={source}", f"--folder={folder}/shards"]
    command += [f"--vocab_size={VOCAB_SIZE}", f"--shard_bytes={SHARD_BYTES}", "--workers=2"]
    peaks: dict[int, int] = {}  # finished shards -> bytes
    start = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None:
            done = len(list((folder / "shards").glob("part-*/train-*.tokens.npy")))
            peaks[done] = max(peaks.get(done, 0), own_memory(process.pid))
            time.sleep(0.1)
        output = process.stdout.read()
    seconds = time.monotonic() - start
    assert process.returncode == 0, output
    n_shards = max(peaks)
    early = max(peak for done, peak in peaks.items() if done <= n_shards // 5 + 1)
    print(f"\n{MEGABYTES / seconds:.1f} MB/s with two workers, {n_shards} shards of {SHARD_BYTES / 1e6:.0f} MB")
    print(f"own memory, MB: {early / 1e6:.0f} after a fifth, {max(peaks.values()) / 1e6:.0f} at most")
    print(output)
    assert n_shards >= 8
    assert max(peaks.values()) < early + SLACK


def test_windows_are_read_with_flat_memory(folder):
    """From the folder of the test above: an epoch of random windows takes no more memory than a hundred batches."""
    code = f"""
import json, time
from pathlib import Path
from gpt1_jax.data.corpus import open_corpus
from gpt1_jax.data.windows import heldout_windows, train_windows

def own_memory():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

corpus = open_corpus({str(folder / "shards")!r})
windows = train_windows(corpus.train, n_ctx=512, batch_size=64, seed=0)
heldout = heldout_windows(corpus.heldout, n_ctx=512, batch_size=64)
heldout.n_bytes
peaks, start = [], time.monotonic()
n_steps = int(windows.steps_per_epoch)
for step in range(n_steps):
    windows[step]
    if step % 50 == 0 or step == n_steps - 1:
        peaks.append(own_memory())
print(json.dumps([n_steps, time.monotonic() - start, peaks]))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    n_steps, seconds, peaks = json.loads(run.stdout)
    print(f"\n{n_steps} batches of 64 x 512 tokens, {n_steps * 64 * 512 / seconds / 1e6:.1f} M tokens/s")
    print(f"own memory, MB: {max(peaks[:3]) / 1e6:.0f} after a hundred batches, {max(peaks) / 1e6:.0f} at most")
    assert max(peaks) < max(peaks[:3]) + SLACK / 4


def cpu_seconds() -> tuple[float, float]:
    """Of this process, and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return tuple(usage.ru_utime + usage.ru_stime for usage in used)


def test_two_processes_are_compared_with_one(folder):
    """Printed, not asserted: the machine may have other things to do. Both give the same bytes.

    CPU time says what wall time does not on such a machine: what this process does itself is what cannot be shared out.
    """
    source, split = f"jsonl:{folder}/small.jsonl", Split(0.005)
    tokenizer = open_corpus(folder / "shards").tokenizer
    print()
    for workers in (1, 2):
        start, before = time.monotonic(), cpu_seconds()
        prepare_shards(source, tokenizer, folder / f"{workers}", split=split, workers=workers, shard_bytes=SHARD_BYTES)
        size, seconds = MEGABYTES / 10, time.monotonic() - start
        own, others = (after - first for after, first in zip(cpu_seconds(), before, strict=True))
        print(f"workers={workers}: {size / seconds:.1f} MB/s; {size / (own + others):.1f} MB per second of CPU time")
    print(f"what is not shared out: {own / (own + others):.1%} of the CPU time, {size / own:.0f} MB/s")
    manifests = [(folder / name / "part-00000-of-00001" / "manifest.json").read_bytes() for name in ("1", "2")]
    assert manifests[0] == manifests[1]
