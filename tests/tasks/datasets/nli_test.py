"""Inference data from GLUE's tables, JSON lines and SciTail's two forms."""

from __future__ import annotations

import shutil

import pytest

from gpt1_jax.errors import InputError

SNLI = {
    "annotator_labels": ["neutral"],
    "captionID": "3.jpg#4",
    "gold_label": "neutral",
    "pairID": "3.jpg#4r1n",
    "sentence1": "A person on a horse.",
    "sentence1_binary_parse": "( ( A person ) )",
    "sentence1_parse": "(ROOT)",
    "sentence2": "A person is training his horse.",
    "sentence2_binary_parse": "( ( A person ) )",
    "sentence2_parse": "(ROOT)",
}


@pytest.mark.parametrize("folder", ["", "snli_1.0"])
def test_pairs_without_a_majority_are_left_out_and_counted(tmp_path, official, caplog, folder):
    for file in ("train", "dev", "test"):
        official.write_jsonl(
            tmp_path / folder / f"snli_1.0_{file}.jsonl",
            SNLI,
            {**SNLI, "gold_label": "-"},
            {**SNLI, "gold_label": "entailment", "sentence2": ""},
            {**SNLI, "gold_label": "-"},
        )
    with caplog.at_level("INFO", logger="absl"):
        spec, examples = official.load("snli", tmp_path)
    pair = (SNLI["sentence1"], SNLI["sentence2"])
    for split in ("train", "validation", "test"):
        assert official.shown(examples[split]) == [(*pair, "neutral"), (pair[0], "", "entailment")]
        assert f"task snli: split {split}: 2 rows with label '-' dropped" in caplog.text
        assert f"task snli: split {split}: 1 example with an empty text kept" in caplog.text
    assert "split train has 2 examples; published are 549367 (SNLI 1.0)" in caplog.text
    assert spec.labels == ("entailment", "neutral", "contradiction")
    assert spec.submission is None


def test_mnli_in_glues_form(glue, official):
    spec, examples = official.load("mnli", glue)
    assert tuple(examples) == (
        *("train", "validation_matched", "validation_mismatched"),
        *("test_matched", "test_mismatched"),
    )
    assert official.shown(examples["train"]) == [
        ("It rains.", "Water falls.", "entailment"),
        ('She said "no', "She left.", "neutral"),
    ]
    assert official.shown(examples["validation_matched"]) == [("He ran.", "He sat.", "contradiction")]
    assert official.shown(examples["validation_mismatched"]) == [("He sat.", "He ran.", "contradiction")]
    assert [(example.id, example.label) for example in examples["test_matched"]] == [("0", None), ("1", None)]
    assert spec.selection_split == "validation_matched"
    assert spec.submission.files["test_mismatched"] == "MNLI-mm.tsv"


@pytest.mark.parametrize("name", ["MNLI/diagnostic.tsv", "diagnostic/diagnostic.tsv", "AX.tsv"])
def test_glues_diagnostic_set_is_one_more_split_where_it_is(glue, official, tmp_path, name):
    shutil.copytree(glue / "MNLI", tmp_path / "MNLI")
    official.write_tsv(
        tmp_path / name, ("index", "sentence1", "sentence2"), (0, "The cat sat.", "The cat did not sit.")
    )
    spec, examples = official.load("mnli", tmp_path, ["diagnostic"])
    assert official.shown(examples["diagnostic"]) == [("The cat sat.", "The cat did not sit.", None)]
    assert spec.submission.files["diagnostic"] == "AX.tsv"


def test_multinlis_own_files(tmp_path, official):
    rows = {**SNLI, "gold_label": "contradiction"}, {**SNLI, "gold_label": "-"}
    for file in ("train", "dev_matched", "dev_mismatched"):
        official.write_jsonl(tmp_path / "multinli_1.0" / f"multinli_1.0_{file}.jsonl", *rows)
    hidden = {"pairID": "7", "sentence1": "P", "sentence2": "H", "gold_label": "hidden"}
    official.write_jsonl(tmp_path / "multinli_1.0" / "multinli_0.9_test_matched_unlabeled.jsonl", hidden)
    spec, examples = official.load("mnli", tmp_path)
    assert [len(examples[split]) for split in ("train", "validation_matched", "validation_mismatched")] == [1, 1, 1]
    assert official.shown(examples["test_matched"]) == [("P", "H", None)]
    assert "test_mismatched" not in examples
    assert spec.submission is None  # these files do not have the server's index


def test_the_question_of_qnli_is_the_hypothesis(glue, official):
    spec, examples = official.load("qnli", glue / "QNLI")
    assert examples["train"][0].fields == {"premise": 'Anna "Nan" came.', "hypothesis": "Who came?"}
    assert [example.label for example in examples["validation"]] == ["not_entailment"]
    assert set(spec.sizes) == {"QNLIv2", "the first release"}


def test_rte(glue, official):
    _, examples = official.load("rte", glue)
    assert official.shown(examples["train"]) == [("Anna came.", "Somebody came.", "entailment")]
    assert official.shown(examples["test"]) == [("Bert came.", "He came.", None)]


@pytest.mark.parametrize("form", ["tsv_format", "SciTailV1.1/tsv_format", "SciTailV1.1/snli_format", "jsonl"])
def test_both_forms_of_scitail_are_the_same_task(tmp_path, official, form):
    for file in ("train", "dev", "test"):
        if form.endswith("tsv_format"):
            rows = ('Heat "moves.', "Heat moves.", "entails"), ("Ice is cold.", "Ice melts.", "neutral")
            official.write_tsv(tmp_path / form / f"scitail_1.0_{file}.tsv", *rows)
        else:
            name = (
                f"scitail_1.0_{file}.txt" if form.endswith("snli_format") else f"snli_format/scitail_1.0_{file}.jsonl"
            )
            official.write_jsonl(
                tmp_path / (form if form.endswith("snli_format") else "") / name,
                {"sentence1": 'Heat "moves.', "sentence2": "Heat moves.", "gold_label": "entailment"},
                {"sentence1": "Ice is cold.", "sentence2": "Ice melts.", "gold_label": "neutral"},
            )
    spec, examples = official.load("scitail", tmp_path)
    for split in ("train", "validation", "test"):
        assert official.shown(examples[split]) == [
            ('Heat "moves.', "Heat moves.", "entails"),
            ("Ice is cold.", "Ice melts.", "neutral"),
        ]
    assert spec.labels == ("entails", "neutral")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gold_label": "maybe"}, r"jsonl:2: label 'maybe' is not one of 'entailment', 'neutral', 'contradiction'"),
        ({"gold_label": None}, r"jsonl:2: column 'gold_label': the label is empty"),
        ({"sentence1": None}, r"jsonl:2: column 'sentence1': a text is expected, got None"),
        ({"sentence2": ["a"]}, r"jsonl:2: column 'sentence2': a text is expected"),
    ],
)
def test_bad_rows_are_named(tmp_path, official, change, message):
    official.write_jsonl(tmp_path / "snli_1.0_train.jsonl", SNLI, {**SNLI, **change})
    with pytest.raises(InputError, match=message):
        official.load("snli", tmp_path)


def test_a_missing_column_is_named(tmp_path, official):
    official.write_jsonl(tmp_path / "snli_1.0_train.jsonl", SNLI, {"sentence1": "a", "gold_label": "neutral"})
    with pytest.raises(InputError, match=r"jsonl:2: no column 'sentence2'"):
        official.load("snli", tmp_path)
