"""GLUE's tables and the other official forms of its tasks: what is read, kept, dropped and counted."""

from __future__ import annotations

import csv
import shutil

import pytest

from gpt1_jax.errors import InputError

CAPTIONS = ("main-captions", "MSRvid", "2012test", "0001")


def test_cola_has_a_header_in_its_test_set_only(glue, official):
    spec, examples = official.load("cola", glue)
    assert official.shown(examples["train"]) == [('Bill said: "Go home.', "1"), ("Home the go Bill.", "0")]
    assert official.shown(examples["validation"]) == [("Water boiled.", "1")]
    assert [(example.id, example.label) for example in examples["test"]] == [("0", None), ("1", None)]
    assert spec.metrics == ("matthews", "accuracy")
    assert spec.submission.files == {"test": "CoLA.tsv"}


def test_colas_own_files(tmp_path, official):
    for name, text in (("in_domain_train", "A."), ("in_domain_dev", "B."), ("out_of_domain_dev", "C.")):
        official.write_tsv(
            tmp_path / "cola_public" / "raw" / f"{name}.tsv", ("x", 1, "", text), ("x", 0, "*", text + text)
        )
    spec, examples = official.load("cola", tmp_path)
    assert official.shown(examples["train"]) == [("A.", "1"), ("A.A.", "0")]
    assert official.shown(examples["validation"]) == [("B.", "1"), ("B.B.", "0"), ("C.", "1"), ("C.C.", "0")]
    assert spec.submission is None  # these have no test set


def test_sst2(glue, official):
    spec, examples = official.load("sst2", glue)
    assert official.shown(examples["train"]) == [('a "warm , tender film ', "1"), ("dull ", "0")]
    assert not spec.is_labelled("test")
    assert spec.paper == {"test": {"accuracy": 91.3}}


def test_mrpc_in_glues_form(glue, official):
    _, examples = official.load("mrpc", glue / "MRPC")
    assert official.shown(examples["train"]) == [('He said "yes.', "He agreed.", "1"), ("A", "B", "0")]
    assert [(example.id, example.label) for example in examples["test"]] == [("0", None)]


@pytest.fixture
def microsoft(tmp_path, official):
    header = ("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    rows = [(i % 2, i, 100 + i, f'He said "{i}.', f"He says {i}.") for i in range(40)]
    official.write_tsv(tmp_path / "msr_paraphrase_train.txt", header, *rows, end="\r\n")
    official.write_tsv(tmp_path / "msr_paraphrase_test.txt", header, (1, 50, 51, "A", "B"), end="\r\n")
    return tmp_path


def test_mrpc_in_microsofts_form_with_glues_list_of_validation_rows(microsoft, official):
    official.write_tsv(microsoft / "dev_ids.tsv", (3, 103), (8, 108))
    spec, examples = official.load("mrpc", microsoft)
    assert official.shown(examples["validation"]) == [
        ('He said "3.', "He says 3.", "1"),
        ('He said "8.', "He says 8.", "0"),
    ]
    assert len(examples["train"]) == 38
    assert examples["train"][3].where.endswith("msr_paraphrase_train.txt:6")
    assert official.shown(examples["test"]) == [("A", "B", "1")]
    assert spec.submission is None


def test_a_list_that_does_not_fit_the_table_is_refused(microsoft, official):
    official.write_tsv(microsoft / "dev_ids.tsv", (3, 103), (99, 100))
    with pytest.raises(
        InputError, match=r"dev_ids\.tsv:2: .*msr_paraphrase_train\.txt has no row with the ids 99 and 100"
    ):
        official.load("mrpc", microsoft)


def test_mrpc_in_microsofts_form_alone_holds_a_tenth_out(microsoft, official, caplog):
    with caplog.at_level("INFO", logger="absl"):
        _, examples = official.load("mrpc", microsoft)
    assert {split: len(part) for split, part in examples.items()} == {"train": 36, "validation": 4, "test": 1}
    assert "split validation is 4 of the 40 training rows" in caplog.text
    assert "split train has 40 examples; published are 3668 (GLUE) or 4076 (MSR)" in caplog.text


def test_broken_rows_of_qqp_are_left_out_and_empty_questions_kept_both_counted(glue, official, caplog):
    _, examples = official.load("qqp", glue)
    assert official.shown(examples["train"]) == [('Who is "he ?', "Who is that ?", "1"), ("", "What ?", "0")]
    assert "3 rows left out for not having 6 fields: line 3, 4, 6" in caplog.text
    assert "split train: 1 example with an empty text kept" in caplog.text
    assert official.shown(examples["test"]) == [("How ?", "In what way ?", None)]


def test_no_row_of_a_test_set_is_left_out(glue, official, tmp_path):
    shutil.copytree(glue / "QQP", tmp_path / "QQP")
    with open(tmp_path / "QQP" / "test.tsv", "a", encoding="utf-8") as file:
        file.write("1\tHalf of a row\n")
    with pytest.raises(InputError, match=r"test\.tsv:3: too few columns"):
        official.load("qqp", tmp_path)


@pytest.mark.parametrize(("name", "delimiter"), [("quora_duplicate_questions.tsv", "\t"), ("train.csv", ",")])
def test_quoras_and_kaggles_table_is_quoted(tmp_path, official, name, delimiter):
    with open(tmp_path / name, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerow(("id", "qid1", "qid2", "question1", "question2", "is_duplicate"))
        writer.writerows((i, i, i, f'What,\t"{i}"\nthen?', f"Why {i}?", i % 2) for i in range(20))
    _, examples = official.load("qqp", tmp_path)
    both = examples["train"] + examples["validation"]
    assert len(examples["validation"]) == 2
    assert sorted(official.shown(both)) == sorted((f'What,\t"{i}"\nthen?', f"Why {i}?", str(i % 2)) for i in range(20))


def test_the_label_of_stsb_is_a_score(glue, official):
    spec, examples = official.load("stsb", glue)
    assert official.shown(examples["train"]) == [
        ("A plane is taking off.", 'An "air plane is taking off.', 5.0),
        ("A man is smoking.", "A man is skating.", 0.5),
    ]
    assert [(example.label, example.score) for example in examples["validation"]] == [(None, 3.8)]
    assert [(example.id, example.score) for example in examples["test"]] == [("0", None), ("1", None)]
    assert spec.score_range == (0.0, 5.0)
    assert spec.labels is None


def test_the_sts_benchmarks_own_files(tmp_path, official, caplog):
    long = (*CAPTIONS, "3.750", 'A "cat.', "A dog.", "http://a", "http://b")
    for name in ("train", "dev", "test"):
        official.write_tsv(
            tmp_path / "stsbenchmark" / f"sts-{name}.csv", long, (*CAPTIONS, "0.000", "One, two.", "Three, four.")
        )
    spec, examples = official.load("stsb", tmp_path)
    assert official.shown(examples["test"]) == [('A "cat.', "A dog.", 3.75), ("One, two.", "Three, four.", 0.0)]
    assert caplog.text.count("1 rows lost their surplus fields for not having 7 fields: line 1") == 3
    assert spec.is_labelled("test")


@pytest.mark.parametrize("score", ["5.1", "-0.1", "nan", "inf", "", "good", "1,5"])
def test_a_score_that_is_none_is_refused(tmp_path, official, score):
    official.write_tsv(tmp_path / "sts-train.csv", (*CAPTIONS, "1.0", "A", "B"), (*CAPTIONS, score, "A", "B"))
    with pytest.raises(
        InputError, match=rf"sts-train\.csv:2: column 'score': the score is '{score}', not a number from 0 to 5"
    ):
        official.load("stsb", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "row", "message"),
    [
        ("cola", "CoLA/train.tsv", "x\t2\t\tWhat?", r"train\.tsv:3: label '2' is not one of '0', '1'"),
        ("cola", "CoLA/dev.tsv", "x\t1\tWhat?", r"dev\.tsv:2: too few columns: 3"),
        ("sst2", "SST-2/train.tsv", "good\tpositive", r"train\.tsv:4: label 'positive' is not one of '0', '1'"),
        ("sst2", "SST-2/dev.tsv", "good\t", r"dev\.tsv:3: column 'label': the label is empty"),
        ("sst2", "SST-2/test.tsv", "1", r"test\.tsv:4: too few columns"),
        ("sst2", "SST-2/test.tsv", "1\tagain", r"test\.tsv:4: identifier '1' was used at .*test\.tsv:3"),
        ("mrpc", "MRPC/train.tsv", "1\t2\t3\tA\tB\tC", r"train\.tsv:4: too many columns: 6"),
        ("qqp", "QQP/dev.tsv", "1\t2\t3\tA\tB\tmaybe", r"dev\.tsv:3: label 'maybe' is not one of '0', '1'"),
    ],
)
def test_bad_rows_are_named(glue, official, tmp_path, name, file, row, message):
    shutil.copytree(glue, tmp_path / "glue")
    with open(tmp_path / "glue" / file, "a", encoding="utf-8") as damaged:
        damaged.write(row + "\n")
    with pytest.raises(InputError, match=message):
        official.load(name, tmp_path / "glue")


def test_a_table_of_another_task_lacks_columns(glue, official):
    with pytest.raises(
        InputError, match=r"SST-2/dev\.tsv:1: no column 'sentence1'; the header has 'sentence', 'label'"
    ):
        official.load("rte", glue / "SST-2")
