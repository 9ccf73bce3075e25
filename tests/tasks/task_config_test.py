"""A task as a config writes it: every way of reading a file, and every kind, can be reached from a command line."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from absl import flags
from ml_collections import config_flags

from gpt1_jax import cli
from gpt1_jax.config import from_config
from gpt1_jax.errors import InputError
from gpt1_jax.tasks.config import DATA_SETS, TASKS, TaskConfig, make_spec
from gpt1_jax.tasks.examples import load_examples

CONFIG = Path(__file__).parents[2] / "configs" / "finetune.py"


def read(path, **settings):
    config = from_config(TaskConfig, {"train": [str(path)], "validation_fraction": 0.0, **settings})
    return load_examples(make_spec(config))["train"]


def typed(*overrides, task="custom"):
    """The task of configs/finetune.py with `--config.task.` before each override."""
    spec = importlib.util.spec_from_file_location("finetune_config", CONFIG)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cli.register_parsers()
    values, argv = flags.FlagValues(), ["program", *(f"--config.task.{override}" for override in overrides)]
    holder = config_flags.DEFINE_config_dict("config", module.get_config(task), flag_values=values, sys_argv=argv)
    values(argv)
    return make_spec(from_config(TaskConfig, holder.value.task))


def test_a_table_without_a_header_and_with_plain_quotes(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text('7\t"so so\tbad\n8\tgood "film"\t good \n9\t\tgood\n10\tnone\t-\n', encoding="utf-8")
    settings = {"header": ["key", "text", "label"], "quoting": "none", "id": "key", "drop_labels": ["-"]}
    with pytest.raises(InputError, match=r"rows.tsv:3.*text.*empty"):
        read(path, **settings)
    examples = read(path, allow_empty=True, **settings)
    assert [(e.id, e.fields["text"], e.label) for e in examples] == [
        ("7", '"so so', "bad"),
        ("8", 'good "film"', "good"),
        ("9", "", "good"),
    ]


def test_another_suffix_and_broken_rows(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("text\tlabel\na\tx\nhalf\nb\ty\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"suffix '\.txt'"):
        read(path)
    with pytest.raises(InputError, match=r"rows\.txt:3: too few columns"):
        read(path, format="tsv")
    assert [example.label for example in read(path, format="tsv", repair="drop_rows")] == ["x", "y"]


@pytest.mark.parametrize(
    ("header", "row", "overrides", "fields"),
    [
        ("text,label", "a,x", [], {"text": "a"}),
        ("title,body,label", "a,b,x", ["fields.text=title,body"], {"text": "a b"}),
        ("premise,hypothesis,label", "a,b,x", ["kind=entailment"], {"premise": "a", "hypothesis": "b"}),
        (
            "passage,question,label",
            "a,b,x",
            ["kind=entailment", "fields.premise=passage", "fields.hypothesis=question"],
            {"premise": "a", "hypothesis": "b"},
        ),
        ("one,text_b,label", "a,b,x", ["kind=similarity", "fields.text_a=one"], {"text_a": "a", "text_b": "b"}),
        (
            "context,question,e1,e2,e3,label",
            "a,b,c,d,e,x",
            ["kind=multiple_choice", "fields.answers=e1,e2,e3", "labels=x,y,z"],
            {"context": "a", "question": "b", "answers": ("c", "d", "e")},
        ),
        (
            "goal,sol1,sol2,label",
            "a,b,c,0",
            ["kind=multiple_choice", "fields.question=goal", "fields.answers=sol1, sol2", "labels=0,1"],
            {"context": "", "question": "a", "answers": ("b", "c")},
        ),
        (
            "s1,s2,e1,e2,gold",
            "a,b,c,d,2",
            ["kind=multiple_choice", "fields.context=s1,s2", "fields.answers=e1,e2", "labels=1,2", "label=gold"],
            {"context": "a b", "question": "", "answers": ("c", "d")},
        ),
    ],
)
def test_the_columns_of_every_kind_can_be_typed(tmp_path, header, row, overrides, fields):
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}\n{row}\n", encoding="utf-8")
    spec = typed(f"train={path}", "validation_fraction=0.0", *overrides)
    assert [example.fields for example in load_examples(spec)["train"]] == [fields]


def test_answers_of_any_number_from_jsonl(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = {"q": "a", "choices": ["b", "c", "d"], "label": 2}, {"q": "a", "choices": ["b", "c"], "label": 1}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    names = "fields.question=q", "fields.answers=choices", "labels=0,1,2"
    spec = typed(f"train={path}", "validation_fraction=0.0", "kind=multiple_choice", *names)
    assert [len(example.fields["answers"]) for example in load_examples(spec)["train"]] == [3, 2]


@pytest.mark.parametrize("score_range", ["0,5", "0.0,5.0", "(0, 5)", "-0.5,5e0"])
def test_scores_can_be_typed(tmp_path, score_range):
    path = tmp_path / "rows.csv"
    path.write_text("text_a,text_b,label\na,b,2.5\nc,d,5\n", encoding="utf-8")
    spec = typed(f"train={path}", "validation_fraction=0.0", "kind=similarity", f"score_range={score_range}")
    assert [example.score for example in load_examples(spec)["train"]] == [2.5, 5.0]
    assert spec.score_range[1] == 5.0
    assert spec.metrics == ("pearson", "spearman")


def test_scores_are_held_out_over_their_whole_range(tmp_path):
    path = tmp_path / "rows.csv"
    rows = "".join(f"a{i},b{i},{i % 6}\n" for i in range(120))
    path.write_text(f"text_a,text_b,label\n{rows}", encoding="utf-8")
    spec = typed(f"train={path}", "kind=similarity", "score_range=0,5", "validation_fraction=0.1")
    held_out = [example.score for example in load_examples(spec)["validation"]]
    assert sorted(held_out) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["kind=entailment", "fields.text=review"], "fields of kind 'entailment': 'text' is not one of 'premise'"),
        (["fields.text=a,,b"], r"task\.fields\.text='a,,b': a column between two commas has no name"),
        (["kind=multiple_choice", "fields.answers=a,b"], "multiple choice needs the answers' names"),
        (["kind=regression"], "kind: 'regression' is not one of"),
        (["score_range=5,0"], r"score_range=\(5\.0, 0\.0\): two numbers"),
        (["score_range=1"], r"score_range=\(1\.0,\): two numbers"),
        (["score_range=0,5", "labels=a,b"], "a label is a number or a name"),
        (["score_range=0,5", "metrics=accuracy"], "metrics of scores: 'accuracy'"),
        (["kind=multiple_choice", "labels=a,b", "score_range=0,5"], "multiple choice has answers, not scores"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        typed("train=rows.csv", *overrides)


def test_an_unknown_task_is_refused_with_those_there_are():
    for refused in (lambda: make_spec(TaskConfig(name="mnlii")), lambda: typed(task="mnlii")):
        with pytest.raises(InputError, match=r"task\.name='mnlii' is unknown; .*'custom'.*did you mean 'mnli'"):
            refused()


PAPER = {
    "snli": ("test", "accuracy", 89.9),
    "scitail": ("test", "accuracy", 88.3),
    "qnli": ("test", "accuracy", 88.1),
    "rte": ("test", "accuracy", 56.0),
    "cola": ("test", "matthews", 45.4),
    "sst2": ("test", "accuracy", 91.3),
    "mrpc": ("test", "f1", 82.3),
    "stsb": ("test", "pearson", 82.0),
    "qqp": ("test", "f1", 70.3),
    "story_cloze": ("test", "accuracy", 86.5),
}


def test_the_papers_metric_comes_first():
    by_name = {data_set.name: data_set for data_set in DATA_SETS}
    for name, (split, metric, score) in PAPER.items():
        assert by_name[name].metrics[0] == metric
        assert by_name[name].paper == {split: {metric: score}}
    assert by_name["mnli"].paper == {"test_matched": {"accuracy": 82.1}, "test_mismatched": {"accuracy": 81.4}}


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"custom"}))
def test_a_data_set_without_data_says_where_to_get_it(name, tmp_path):
    with pytest.raises(InputError, match=r"task\.data.*https?://"):
        typed(task=name)
    with pytest.raises(InputError, match=rf"task\.data='{tmp_path}/no' .*https?://"):
        typed(f"data={tmp_path}/no", task=name)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"task\.data='.*file' is a file; "):
        typed(f"data={tmp_path}/file", task=name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"task\.data='.*empty' .*It has nothing"):
        typed(f"data={tmp_path}/empty", task=name)


def test_what_a_data_set_says_itself_cannot_be_said_again(tmp_path):
    with pytest.raises(InputError, match=r"task\.label='gold': task\.name='sst2' says this itself"):
        typed(f"data={tmp_path}", "label=gold", task="sst2")
    with pytest.raises(InputError, match=r"task\.fields=\{'text': 'review'\}: .* says this itself"):
        typed(f"data={tmp_path}", "fields.text=review", task="sst2")


def test_a_file_in_two_splits_is_warned_of(tmp_path, caplog):
    one, other = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    make_spec(TaskConfig(train=(one,), validation=(other,)))
    assert not caplog.records
    make_spec(TaskConfig(train=(one, other), validation=(other,)))
    assert "b.csv is in train and in validation" in caplog.text
