"""RACE (Lai et al., 2017): English examinations, a passage with several questions of four answers each.

The official archive has a folder for each split and school, with a file per passage::

    RACE/{train,dev,test}/{middle,high}/N.txt

A file is one JSON object: `article`, `id`, and the lists `questions`, `options` (a list of answers each) and `answers`
(letters). In a cloze question the gap is written `_`; it stays as it is. Every question is an example, whose identifier
is the file's id and the question's number: `high132.txt:2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt1_jax.data.tables import Row, parse_object, read_lines
from gpt1_jax.errors import InputError, quoted
from gpt1_jax.tasks.datasets.official import DataSet, Layout, read_tfds
from gpt1_jax.tasks.spec import Source

_SPLITS = {"train": "train", "validation": "dev", "test": "test"}
_SIZES = {
    "middle": {"train": 25_421, "validation": 1_436, "test": 1_436},
    "high": {"train": 62_445, "validation": 3_451, "test": 3_498},
}
_COLUMNS = ("id", "article", "questions", "options")


def _race(name: str, schools: tuple[str, ...], accuracy: float) -> DataSet:
    """RACE of some schools; `accuracy` is the paper's (table 3)."""

    def layout(form: str, pattern: str, reader: str, folders: tuple[str, ...] = ()) -> Layout:
        return Layout(
            name=form,
            files={
                split: tuple(pattern.format(split=theirs, school=school) for school in schools)
                for split, theirs in _SPLITS.items()
            },
            fields={"context": "article", "question": "question", "answers": "options"},
            label="answer",
            folders=folders,
            of_folders=True,
            ids=dict.fromkeys(_SPLITS, "id"),
            reader=reader,
        )

    return DataSet(
        name=name,
        kind="multiple_choice",
        labels=("A", "B", "C", "D"),
        homepage="https://www.cs.cmu.edu/~glai1/data/race",
        layouts=(layout("RACE", "{split}/{school}", "race", folders=("RACE",)),),
        tfds=(layout("TFDS race", "race/{school}/{split}", "race_tfds"),),
        sizes={"RACE": {split: sum(_SIZES[school][split] for school in schools) for split in _SPLITS}},
        paper={"test": {"accuracy": accuracy}},
        instead=", or say task.name=race_middle or race_high for one school alone",
    )


RACE = _race("race", ("middle", "high"), 59.0)
RACE_MIDDLE = _race("race_middle", ("middle",), 62.9)
RACE_HIGH = _race("race_high", ("high",), 57.4)


def read_files(source: Source, columns: tuple[str, ...]) -> Iterator[Row]:
    """The questions of all passages in some folders.

    Raises:
      InputError: a folder without passages, or a file that is not such an object; it is named.
    """
    del columns  # they are always the same
    for folder in source.paths:
        files = sorted(Path(folder).glob("*.txt"), key=_number)
        if not files:
            raise InputError(f"{folder}: no .txt file in it; RACE has a file for each passage")
        for file in files:
            values = parse_object(f"{file}:1", "".join(read_lines(file)))
            yield from _questions(Row(str(file), 1, values))


def read_from_tfds(source: Source, columns: tuple[str, ...]) -> Iterator[Row]:
    """The questions of the passages that TensorFlow Datasets has.

    Raises:
      InputError: a split cannot be had, or a passage is not as described.
    """
    del columns
    for row in read_tfds(source, ("example_id", *_COLUMNS[1:], "answers")):
        yield from _questions(row._replace(values={**row.values, "id": row.values["example_id"]}))


def _questions(row: Row) -> Iterator[Row]:
    """A row for each question of a passage."""
    values = row.values
    for column in (*_COLUMNS, "answers"):
        if column not in values:
            raise InputError(f"{row.where}: no {column!r}; the passage has {quoted(values) or 'nothing'}")
    questions, options, answers = (_list(row, column) for column in ("questions", "options", "answers"))
    if not len(questions) == len(options) == len(answers):
        raise InputError(
            f"{row.where}: {len(questions)} questions, {len(options)} lists of options and {len(answers)} answers; "
            "there must be as many of each"
        )
    for i, (question, texts, answer) in enumerate(zip(questions, options, answers, strict=True), 1):
        question = {"article": values["article"], "question": question, "options": texts, "answer": answer}
        yield row._replace(values={**question, "id": f"{values['id']}:{i}"}, part=f"question {i}")


def _list(row: Row, column: str) -> list[Any]:
    value = row.values[column]
    if not isinstance(value, list) or not value:
        raise InputError(f"{row.where}: {column!r} is {value!r:.80}; a list with an item for each question is expected")
    return value


def _number(path: Path) -> tuple[int, int, str]:
    """Sorts 2.txt before 10.txt."""
    return (0, int(path.stem), path.name) if path.stem.isdecimal() else (1, 0, path.name)
