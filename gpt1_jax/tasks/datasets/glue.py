"""The GLUE benchmark (Wang et al., 2018): acceptability, sentiment, similarity; for entailment see `nli`.

GLUE hands out a folder per task with train.tsv, dev.tsv and test.tsv: tables with a header, tabs and no quoting. Labels
of the test sets are secret; the server takes `Submission` files. The column `index` of a test set, its rows' number, is
the identifier. What is special, and which other forms are read:

| task | |
|---|---|
| cola | train.tsv and dev.tsv have no header (source, label, author's mark, sentence), test.tsv has; also CoLA's own form: in_domain_train.tsv, and in_domain_dev.tsv + out_of_domain_dev.tsv as validation |
| sst2 | |
| mrpc | also Microsoft's form: msr_paraphrase_train.txt and msr_paraphrase_test.txt, the latter with labels. dev_ids.tsv, pairs of ids, takes GLUE's validation rows out of the former; without it a tenth is held out |
| qqp | questions with line ends or tabs in them break a few rows of train.tsv and dev.tsv: left out and counted. Empty questions are kept and counted. Also Quora's and Kaggle's one labelled table (quoted; a tenth is held out) |
| stsb | the label is a score from 0 to 5; also the STS benchmark's form: sts-train.csv and the like are tables with tabs and no header, some rows have two more fields, and the test set has scores |

F1 is that of the class 1.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpt1_jax.data.tables import Row, read_rows
from gpt1_jax.errors import InputError
from gpt1_jax.tasks.datasets.official import NO_QUOTES, DataSet, Layout
from gpt1_jax.tasks.spec import Source, Submission

HOMEPAGE = "https://gluebenchmark.com/tasks"
_TSV = {"train": ("train.tsv",), "validation": ("dev.tsv",), "test": ("test.tsv",)}
_HELD_OUT = {"validation": 0.1}


def glue_layout(
    folder: str, fields: Mapping[str, str], label: str, *, files: Mapping[str, tuple[str, ...]] = _TSV, **more: Any
) -> Layout:
    """GLUE's tables of a task; `more` are other attributes of the `Layout`."""
    tests = tuple(split for split in files if split.startswith("test"))
    glue = {
        "folders": (folder, f"glue_data/{folder}"),
        "options": NO_QUOTES,
        "unlabelled": tests,
        "ids": dict.fromkeys(tests, "index"),
        "submits": True,
    }
    return Layout(name="GLUE", files=files, fields=fields, label=label, **{**glue, **more})


def tfds_layout(
    name: str,
    fields: Mapping[str, str],
    *,
    splits: tuple[str, ...] = tuple(_TSV),
    renames: Mapping[str, str] | None = None,
) -> Layout:
    """What TensorFlow Datasets makes of GLUE's tables; `renames` are its names for the tables' 0 and 1."""
    tests = tuple(split for split in splits if split.startswith("test"))
    return Layout(
        name=f"TFDS {name}",
        files={split: (f"{name}/{split}",) for split in splits},
        fields=fields,
        label="label",
        unlabelled=tests,
        ids=dict.fromkeys(tests, "idx"),
        renames=renames or {},
        reader="tfds",
        submits=True,
    )


def three_splits(train: int, validation: int, test: int) -> dict[str, int]:
    """Sizes of the usual splits."""
    return {"train": train, "validation": validation, "test": test}


_COLA_COLUMNS = {**NO_QUOTES, "header": ("source", "label", "mark", "sentence")}

COLA = DataSet(
    name="cola",
    kind="classification",
    labels=("0", "1"),
    metrics=("matthews", "accuracy"),
    homepage="https://gluebenchmark.com/tasks or https://nyu-mll.github.io/CoLA",
    layouts=(
        glue_layout("CoLA", {"text": "sentence"}, "label", options=_COLA_COLUMNS, split_options={"test": NO_QUOTES}),
        Layout(
            name="CoLA 1.1",
            files={
                "train": ("in_domain_train.tsv",),
                "validation": ("in_domain_dev.tsv", "out_of_domain_dev.tsv"),
            },
            fields={"text": "sentence"},
            label="label",
            folders=("raw", "cola_public/raw"),
            options=_COLA_COLUMNS,
        ),
    ),
    tfds=(tfds_layout("glue/cola", {"text": "sentence"}, renames={"unacceptable": "0", "acceptable": "1"}),),
    sizes={"GLUE": three_splits(8_551, 1_043, 1_063)},
    submission=Submission({"test": "CoLA.tsv"}, ("0", "1")),
    paper={"test": {"matthews": 45.4}},
)

SST2 = DataSet(
    name="sst2",
    kind="classification",
    labels=("0", "1"),
    homepage=HOMEPAGE,
    layouts=(glue_layout("SST-2", {"text": "sentence"}, "label"),),
    tfds=(tfds_layout("glue/sst2", {"text": "sentence"}, renames={"negative": "0", "positive": "1"}),),
    sizes={"GLUE": three_splits(67_349, 872, 1_821)},
    submission=Submission({"test": "SST-2.tsv"}, ("0", "1")),
    paper={"test": {"accuracy": 91.3}},
)

_MSR = {"text_a": "#1 String", "text_b": "#2 String"}
_MSR_OPTIONS = {**NO_QUOTES, "format": "tsv"}


def _msr(ids: str | None) -> Layout:
    """Microsoft's form of MRPC, with GLUE's list of validation rows or without."""
    train, test = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"
    if ids is None:
        return Layout(
            name="MSR",
            files={"train": (train,), "test": (test,)},
            fields=_MSR,
            label="Quality",
            folders=("MRPC", "glue_data/MRPC"),
            options=_MSR_OPTIONS,
            held_out=_HELD_OUT,
        )
    return Layout(
        name=f"MSR with {ids}",
        files={"train": (train, ids), "validation": (train, ids), "test": (test,)},
        fields=_MSR,
        label="Quality",
        folders=("MRPC", "glue_data/MRPC"),
        reader="mrpc",
        split_options={part: {"part": part} for part in ("train", "validation", "test")},
    )


MRPC = DataSet(
    name="mrpc",
    kind="similarity",
    labels=("0", "1"),
    metrics=("f1", "accuracy"),
    homepage="https://www.microsoft.com/en-us/download/details.aspx?id=52398",
    layouts=(glue_layout("MRPC", _MSR, "Quality"), _msr("dev_ids.tsv"), _msr("mrpc_dev_ids.tsv"), _msr(None)),
    tfds=(
        tfds_layout(
            "glue/mrpc",
            {"text_a": "sentence1", "text_b": "sentence2"},
            renames={"not_equivalent": "0", "equivalent": "1"},
        ),
    ),
    sizes={"GLUE": three_splits(3_668, 408, 1_725), "MSR": {"train": 4_076, "test": 1_725}},
    submission=Submission({"test": "MRPC.tsv"}, ("0", "1")),
    paper={"test": {"f1": 82.3}},
)

_QUESTIONS = {"text_a": "question1", "text_b": "question2"}

QQP = DataSet(
    name="qqp",
    kind="similarity",
    labels=("0", "1"),
    metrics=("f1", "accuracy"),
    homepage=HOMEPAGE,
    layouts=(
        glue_layout(
            "QQP",
            _QUESTIONS,
            "is_duplicate",
            options={**NO_QUOTES, "repair": "drop_rows"},
            split_options={"test": NO_QUOTES},
            ids={"test": "id"},
        ),
        Layout(
            name="Quora",
            files={"train": ("quora_duplicate_questions.tsv",)},
            fields=_QUESTIONS,
            label="is_duplicate",
            options={"quoting": "csv"},
            held_out=_HELD_OUT,
        ),
        Layout(
            name="Kaggle",
            files={"train": ("train.csv",)},
            fields=_QUESTIONS,
            label="is_duplicate",
            folders=("quora-question-pairs",),
            held_out=_HELD_OUT,
        ),
    ),
    tfds=(tfds_layout("glue/qqp", _QUESTIONS, renames={"not_duplicate": "0", "duplicate": "1"}),),
    sizes={
        "GLUE": three_splits(363_846, 40_430, 390_965),
        "GLUE before 2020": three_splits(363_849, 40_430, 390_965),
        "Quora": {"train": 404_290},
    },
    submission=Submission({"test": "QQP.tsv"}, ("0", "1")),
    paper={"test": {"f1": 70.3}},
)

_SENTENCES = {"text_a": "sentence1", "text_b": "sentence2"}

STSB = DataSet(
    name="stsb",
    kind="similarity",
    score_range=(0.0, 5.0),
    metrics=("pearson", "spearman"),
    homepage="https://gluebenchmark.com/tasks or http://ixa2.si.ehu.eus/stswiki/index.php/STSbenchmark",
    layouts=(
        glue_layout("STS-B", _SENTENCES, "score"),
        Layout(
            name="STS benchmark",
            files={"train": ("sts-train.csv",), "validation": ("sts-dev.csv",), "test": ("sts-test.csv",)},
            fields=_SENTENCES,
            label="score",
            folders=("stsbenchmark",),
            options={
                **NO_QUOTES,
                "format": "tsv",
                "header": ("genre", "file", "year", "number", "score", "sentence1", "sentence2"),
                "repair": "drop_fields",
            },
        ),
    ),
    tfds=(tfds_layout("glue/stsb", _SENTENCES),),
    sizes={"GLUE": three_splits(5_749, 1_500, 1_379)},
    submission=Submission({"test": "STS-B.tsv"}),
    paper={"test": {"pearson": 82.0}},
)


def read_mrpc(source: Source, columns: tuple[str, ...]) -> Iterator[Row]:
    """One part of Microsoft's training table: the rows whose pairs of ids are in a list, or the others.

    Raises:
      InputError: as `read_rows`; and for a pair of the list that the table does not have.
    """
    table, *lists = source.paths
    ids = ("#1 ID", "#2 ID")
    rows = read_rows(table, columns=(*columns, *ids), **_MSR_OPTIONS)
    listed = {
        tuple(row.values[column].strip() for column in ids): row.where
        for path in lists
        for row in read_rows(path, header=ids, **_MSR_OPTIONS)
    }
    seen = set()
    for row in rows:
        pair = tuple(row.values[column].strip() for column in ids)
        seen.add(pair)
        if source.options["part"] == "test" or (pair in listed) == (source.options["part"] == "validation"):
            yield row
    for pair, where in listed.items():
        if pair not in seen:
            raise InputError(f"{where}: {table} has no row with the ids {' and '.join(pair)}; is the table whole?")
