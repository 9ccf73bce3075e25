"""TaskSpec: what it refuses, and the tasks that are made of the user's own files."""

import dataclasses
from pathlib import Path

import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.spec import Source, Submission, TaskSpec


def test_custom_defaults(custom):
    spec = custom(train="train.csv")
    assert spec.kind == "classification"
    assert spec.fields == {"text": "text"}
    assert spec.sources == {"train": Source(("train.csv",))}
    assert spec.held_out == {"validation": 0.1}
    assert spec.splits == ("train", "validation")
    assert spec.metrics == ("accuracy", "f1")
    assert spec.columns("validation") == ("text", "label")


def test_custom_with_files_for_each_split(custom):
    spec = custom(
        train=["a.csv", Path("b.tsv")],
        validation="v.jsonl",
        test="t.csv",
        kind="entailment",
        fields={"premise": "title,body", "hypothesis": "claim"},
        label="gold",
        labels=["no", "yes"],
        unlabelled=["test"],
        id="key",
        quoting="none",
    )
    assert spec.held_out == {}
    assert spec.sources["train"].paths == ("a.csv", "b.tsv")
    assert spec.sources["train"].options == {"quoting": "none"}
    assert spec.columns("train") == ("title", "body", "claim", "gold", "key")
    assert spec.columns("test") == ("title", "body", "claim", "key")
    assert spec.is_labelled("validation")
    assert not spec.is_labelled("test")


def test_a_task_without_training_files_is_for_evaluation(custom):
    assert custom(test="t.csv").splits == ("test",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "regression"}, "kind: 'regression' is not one of 'classification', 'entailment'"),
        ({"fields": {"txt": "text"}}, "fields of kind 'classification': 'txt' is not one of 'text'"),
        ({"kind": "multiple_choice"}, "multiple choice needs the answers' names"),
        ({"labels": ("yes",)}, "at least two names"),
        ({"labels": ("yes", "yes")}, "each once"),
        ({"labels": ("", "yes")}, "'' is not a non-empty string"),
        ({"metrics": ("acuracy",)}, "metrics: 'acuracy' is not one of 'accuracy', 'f1'.*; did you mean 'accuracy'"),
        ({"metrics": ("calibration_error", "f1")}, "'calibration_error' is smaller the better it is"),
        ({"train": []}, "task.train is empty; name the CSV"),
        ({"unlabelled": ("test",)}, "unlabelled: 'test' is not one of 'train'"),
        (
            {"validation": "v.csv", "validation_fraction": 0.2},
            "validation: the split has files of its own, and validation_fraction=0.2 would",
        ),
        ({"validation_fraction": 1.5}, r"validation_fraction=1\.5"),
        ({"validation_fraction": 0.5, "test_fraction": 0.5}, "leave nothing to train on"),
        ({"train": [], "test": "t.csv", "validation_fraction": 0.1}, "from a labelled 'train' split"),
        ({"unlabelled": ("train",), "test_fraction": 0.1}, "from a labelled 'train' split"),
    ],
)
def test_parts_that_do_not_fit_are_refused(custom, change, message):
    with pytest.raises(InputError, match=message):
        custom(**{"train": "train.csv", **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": {}}, "fields: kind 'classification' needs text"),
        ({"kind": "entailment", "fields": {"premise": "a"}}, "needs hypothesis; have 'premise'"),
        ({"kind": "multiple_choice", "labels": ("0", "1"), "fields": {"answers": "a"}}, "needs context or question"),
        ({"label": None}, "label: no column given, yet a split is labelled"),
        ({"labels": (0, 1)}, "0 is not a non-empty string"),
        ({"metrics": ()}, "metrics: none given"),
        ({"sources": {}}, "sources: no split given"),
        ({"sources": {"train": Source(())}}, r"sources\['train'\]: no file given"),
    ],
)
def test_a_spec_that_no_config_makes_is_refused(custom, change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(custom(train="train.csv"), **change)


def test_metrics_of_scores(custom):
    scores = {"labels": None, "score_range": (0.0, 5.0)}
    spec = dataclasses.replace(custom(train="train.csv"), **scores, metrics=("pearson", "spearman"))
    with pytest.raises(InputError, match="metrics of scores: 'accuracy' is not one of 'pearson', 'spearman'"):
        dataclasses.replace(spec, metrics=("pearson", "accuracy"))


@pytest.mark.parametrize(
    ("splits", "selection"),
    [
        (("train", "validation", "test"), "validation"),
        (("train", "validation_mismatched", "validation_matched", "validation"), "validation"),
        (("train", "validation_matched", "validation_mismatched", "test"), "validation_matched"),
        (("train", "test"), None),
        (("train", "validation-"), None),
    ],
)
def test_the_split_that_chooses_the_checkpoint(splits, selection):
    sources = {split.rstrip("-"): Source(("a.csv",), labelled=not split.endswith("-")) for split in splits}
    spec = TaskSpec("mine", "classification", sources, {"text": "text"})
    assert spec.selection_split == selection


def test_a_held_out_split_chooses_the_checkpoint(custom):
    assert custom(train="train.csv").selection_split == "validation"


def test_a_split_may_have_identifiers_of_its_own():
    sources = {"train": Source(("a.csv",)), "test": Source(("b.csv",), labelled=False, id="index")}
    spec = TaskSpec("mine", "classification", sources, {"text": "text"}, held_out={"validation": 0.1})
    assert spec.columns("train") == spec.columns("validation") == ("text", "label")
    assert spec.columns("test") == ("text", "index")
    assert dataclasses.replace(spec, id="key").columns("train") == ("text", "label", "key")


def test_a_submission_has_a_word_for_each_label(custom):
    spec = custom(train="train.csv", labels=("no", "yes"))
    submission = Submission({"test": "mine.tsv"}, ("0", "1"))
    spec = dataclasses.replace(spec, submission=submission)
    with pytest.raises(InputError, match="one word for each of the labels"):
        dataclasses.replace(spec, labels=("no", "yes", "maybe"))


def test_an_unknown_split(custom):
    with pytest.raises(InputError, match="split: 'dev' is not one of 'train', 'validation'"):
        custom(train="train.csv").is_labelled("dev")
