"""Miniature official files: a few rows of our own in the published forms, oddities included."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.examples import Example, load_examples
from gpt1_jax.tasks.spec import TaskSpec


def write_tsv(path: Path, *rows: Sequence[object], end: str = "\n") -> Path:
    """Writes rows as GLUE does: tabs, no quoting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join("\t".join(map(str, row)) + end for row in rows).encode())
    return path


def write_jsonl(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load(name: str, data: Path | str, splits: Sequence[str] | None = None) -> tuple[TaskSpec, dict[str, list[Example]]]:
    """The task and its examples."""
    spec = make_spec(TaskConfig(name=name, data=str(data)))
    return spec, load_examples(spec, splits)


def shown(examples: Iterable[Example]) -> list[tuple]:
    """What an example consists of, in short: its texts and its label or score."""
    return [
        (*example.fields.values(), example.score if example.label is None else example.label) for example in examples
    ]


MNLI_HEADER = (
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2"),
)
STSB_HEADER = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2")


def write_glue(folder: Path) -> Path:
    """All of GLUE's tables that are read, a few rows each."""
    cola, sst, mrpc, qqp, stsb, mnli, qnli, rte = (
        folder / name for name in ("CoLA", "SST-2", "MRPC", "QQP", "STS-B", "MNLI", "QNLI", "RTE")
    )
    write_tsv(cola / "train.tsv", ("gj04", 1, "", 'Bill said: "Go home.'), ("gj04", 0, "*", "Home the go Bill."))
    write_tsv(cola / "dev.tsv", ("bc01", 1, "", "Water boiled."))
    write_tsv(cola / "test.tsv", ("index", "sentence"), (0, "It rained."), (1, "Rained it."))

    write_tsv(sst / "train.tsv", ("sentence", "label"), ('a "warm , tender film ', 1), ("dull ", 0))
    write_tsv(sst / "dev.tsv", ("sentence", "label"), ("it 's fresh . ", 1))
    write_tsv(sst / "test.tsv", ("index", "sentence"), (0, "stale ."), (1, "lovely ."))

    msr = ("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    write_tsv(mrpc / "train.tsv", msr, (1, 11, 12, 'He said "yes.', "He agreed."), (0, 13, 14, "A", "B"), end="\r\n")
    write_tsv(mrpc / "dev.tsv", msr, (1, 15, 16, "C", "D"), end="\r\n")
    write_tsv(mrpc / "test.tsv", ("index", *msr[1:]), (0, 17, 18, "E", "F"), end="\r\n")

    questions = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    broken = (("3", "7", "8", "Where does this question"), ("go on ?", "Nowhere ?", 0))
    write_tsv(
        qqp / "train.tsv",
        questions,
        (1, 3, 4, 'Who is "he ?', "Who is that ?", 1),
        *broken,
        (2, 5, 6, "", "What ?", 0),
        (4, 5, 6, "Tab\there ?", "What ?", 0),
    )
    write_tsv(qqp / "dev.tsv", questions, (9, 10, 11, "Why ?", "What for ?", 1))
    write_tsv(qqp / "test.tsv", ("id", "question1", "question2"), (0, "How ?", "In what way ?"))

    captions = ("main-captions", "MSRvid", "2012test", "0001", "none", "none")
    write_tsv(
        stsb / "train.tsv",
        (*STSB_HEADER, "score"),
        (0, *captions, "A plane is taking off.", 'An "air plane is taking off.', "5.000"),
        (1, *captions, "A man is smoking.", "A man is skating.", "0.5"),
    )
    write_tsv(stsb / "dev.tsv", (*STSB_HEADER, "score"), (0, *captions, "A cat.", "A dog.", "3.800"))
    write_tsv(stsb / "test.tsv", STSB_HEADER, (0, *captions, "A girl.", "A boy."), (1, *captions, "Rain.", "Snow."))

    def pair(i: int, a: str, b: str) -> tuple[object, ...]:
        return (i, i, f"{i}c", "fiction", "( a )", "( b )", "(ROOT a)", "(ROOT b)", a, b)

    write_tsv(
        mnli / "train.tsv",
        (*MNLI_HEADER, "label1", "gold_label"),
        (*pair(0, "It rains.", "Water falls."), "entailment", "entailment"),
        (*pair(1, 'She said "no', "She left."), "neutral", "neutral"),
    )
    votes = ("neutral", "contradiction", "contradiction", "entailment", "contradiction")
    dev = (*MNLI_HEADER, *(f"label{i}" for i in range(1, 6)), "gold_label")
    write_tsv(mnli / "dev_matched.tsv", dev, (*pair(0, "He ran.", "He sat."), *votes, "contradiction"))
    write_tsv(mnli / "dev_mismatched.tsv", dev, (*pair(0, "He sat.", "He ran."), *votes, "contradiction"))
    write_tsv(mnli / "test_matched.tsv", MNLI_HEADER, pair(0, "P", "H"), pair(1, "Q", "I"))
    write_tsv(mnli / "test_mismatched.tsv", MNLI_HEADER, pair(0, "R", "J"))

    sentence = ("index", "question", "sentence", "label")
    write_tsv(qnli / "train.tsv", sentence, (0, "Who came?", 'Anna "Nan" came.', "entailment"))
    write_tsv(qnli / "dev.tsv", sentence, (0, "Who left?", "Anna came.", "not_entailment"))
    write_tsv(qnli / "test.tsv", sentence[:3], (0, "Who?", "Bert."))

    two = ("index", "sentence1", "sentence2", "label")
    write_tsv(rte / "train.tsv", two, (0, "Anna came.", "Somebody came.", "entailment"))
    write_tsv(rte / "dev.tsv", two, (0, "Anna came.", "Bert came.", "not_entailment"))
    write_tsv(rte / "test.tsv", two[:3], (0, "Bert came.", "He came."))
    return folder


def write_race(folder: Path) -> Path:
    """RACE's folders, with two passages of one or two questions in each."""
    for split in ("train", "dev", "test"):
        for school in ("middle", "high"):
            for number in (10, 2):
                passage = {
                    "answers": ["A", "D"][: number % 3],
                    "options": [["one", "two", "three", f"fo\u00fcr {split}"], ["5", "6", "7", "8"]][: number % 3],
                    "questions": ["What did she _ ?", "Why?"][: number % 3],
                    "article": f'{split} {school} {number}\nShe read "much.',
                    "id": f"{school}{number}.txt",
                }
                path = folder / "RACE" / split / school / f"{number}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(passage), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as GLUE's download script fills it."""
    return write_glue(tmp_path_factory.mktemp("official") / "glue_data")


@pytest.fixture(scope="session")
def race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with RACE's in it."""
    return write_race(tmp_path_factory.mktemp("race"))


@pytest.fixture(scope="session")
def official() -> SimpleNamespace:
    """Writers and readers of official files."""
    return SimpleNamespace(write_tsv=write_tsv, write_jsonl=write_jsonl, write_glue=write_glue, load=load, shown=shown)
