"""The text that is tokenized."""

import itertools
from collections import Counter

from gpt1_jax.benchmark.text import Text, made_up


def test_made_up_text_is_the_same_each_time_and_its_words_are_unequally_common():
    first, second = (list(itertools.islice(made_up(), 20)) for _ in range(2))
    assert first == second
    counts = Counter(" ".join(first).lower().replace(".", "").split())
    assert len(counts) > 5000
    [(_, most), *_] = counts.most_common(1)
    assert most > 0.05 * counts.total()


def test_everything_is_made_from_the_given_text(tmp_path):
    (tmp_path / "a.txt").write_text("a warm film . " * 50, encoding="utf-8")
    (tmp_path / "b.txt").write_text("a dull film . " * 50, encoding="utf-8")
    text = Text(f"text:{tmp_path}/*.txt", None, vocab_size=280, max_bytes=100)
    assert len(text.documents) == 1
    assert text.megabytes == 700e-6
    assert text.tokenizer.vocab_size == 280
    assert text.shards.n_tokens > 50
    given = Text(f"text:{tmp_path}/*.txt", str(text.folder), vocab_size=1)
    assert given.tokenizer.fingerprint == text.tokenizer.fingerprint
