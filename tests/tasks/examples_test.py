"""Rows to examples: fields, labels, ids and held-out splits."""

import dataclasses
import json
from collections import Counter

import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.examples import label_index, label_names, load_examples, make_examples


def write(folder, name, *lines):
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def write_jsonl(folder, name, *rows):
    return write(folder, name, *map(json.dumps, rows))


def test_classification_from_csv(custom, tmp_path):
    train = write(tmp_path, "train.csv", "review,stars", '"good, really",5', "bad,1")
    test = write(tmp_path, "test.csv", "review", "who knows")
    spec = custom(
        train=train, test=test, fields={"text": "review"}, label="stars", unlabelled=("test",), validation_fraction=0.0
    )
    examples = load_examples(spec)
    assert [(e.id, e.fields, e.label) for e in examples["train"]] == [
        ("train.csv:2", {"text": "good, really"}, "5"),
        ("train.csv:3", {"text": "bad"}, "1"),
    ]
    assert [(e.id, e.label, e.where) for e in examples["test"]] == [("test.csv:2", None, f"{test}:2")]
    assert label_names(spec, examples["train"]) == ("1", "5")


def test_multiple_choice_from_json_lists_and_from_columns(custom, tmp_path):
    rows = [
        {"story": "s", "ask": "q", "ends": ["a", "b", "c"], "gold": 2},
        {"story": "", "ask": "q", "ends": ["a", "b"], "gold": 0},
    ]
    spec = custom(
        train=write_jsonl(tmp_path, "a.jsonl", *rows),
        kind="multiple_choice",
        fields={"context": "story", "question": "ask", "answers": "ends"},
        label="gold",
        labels=("0", "1", "2"),
        validation_fraction=0.0,
    )
    train = load_examples(spec)["train"]
    assert train[0].fields == {"context": "s", "question": "q", "answers": ("a", "b", "c")}
    assert [label_index(example, spec.labels) for example in train] == [2, 0]

    table = write(tmp_path, "a.tsv", "one\ttwo\tend1\tend2\tlabel", "It rained.\tWe left.\tWet.\tDry.\t1")
    spec = custom(
        train=table,
        kind="multiple_choice",
        fields={"context": "one,two", "answers": "end1,end2"},
        labels=("1", "2"),
        validation_fraction=0.0,
    )
    assert load_examples(spec)["train"][0].fields == {
        "context": "It rained. We left.",
        "question": "",
        "answers": ("Wet.", "Dry."),
    }


def test_labels_are_learned_from_train_only_and_others_are_errors(custom, tmp_path):
    train = write(tmp_path, "train.csv", "text,label", "a,yes", "b,no")
    validation = write(tmp_path, "v.csv", "text,label", "c,no", "d,maybe")
    spec = custom(train=train, validation=validation)
    examples = load_examples(spec)
    labels = label_names(spec, examples["train"])
    assert labels == ("no", "yes")
    assert label_index(examples["validation"][0], labels) == 0
    with pytest.raises(InputError, match=r"v\.csv:3: label 'maybe' is not one of 'no', 'yes'"):
        label_index(examples["validation"][1], labels)


def test_label_order_and_spelling(custom, tmp_path):
    numbers = write(tmp_path, "a.csv", "text,label", "a,10", "b,9", "c,-1")
    spec = custom(train=numbers, validation_fraction=0.0)
    assert label_names(spec, load_examples(spec)["train"]) == ("-1", "9", "10")
    mixed = write_jsonl(tmp_path, "a.jsonl", {"text": "a", "label": True}, {"text": "b", "label": False})
    spec = custom(train=mixed, validation_fraction=0.0)
    assert label_names(spec, load_examples(spec)["train"]) == ("false", "true")


def test_labels_that_cannot_be_learned(custom, tmp_path, caplog):
    path = write(tmp_path, "a.csv", "text,label", "a,x", "b,x")
    spec = custom(train=path, validation_fraction=0.0)
    with pytest.raises(InputError, match="all training examples of task 'custom' have the label 'x'"):
        label_names(spec, load_examples(spec)["train"])
    with pytest.raises(InputError, match="name them"):
        label_names(custom(test=path))
    spec = custom(train=path, labels=("x", "y"), validation_fraction=0.0)
    assert label_names(spec, load_examples(spec)["train"]) == ("x", "y")
    assert "no training example has the label 'y'" in caplog.text


def test_dropped_labels_are_counted(custom, tmp_path, caplog):
    path = write(tmp_path, "a.csv", "text,label", "a,x", "b,-", "c,-", "d,y")
    with caplog.at_level("INFO", logger="absl"):
        train = load_examples(custom(train=path, drop_labels=("-",), validation_fraction=0.0))["train"]
    assert [example.label for example in train] == ["x", "y"]
    assert "2 rows with label '-' dropped" in caplog.text
    with pytest.raises(InputError, match="no examples left"):
        load_examples(custom(train=path, drop_labels=("-", "x", "y"), validation_fraction=0.0))


def test_ids(custom, tmp_path):
    (tmp_path / "b").mkdir()
    one = write(tmp_path, "a.csv", "text,label,key", "a,x,k1", "b,y,k2")
    other = write(tmp_path / "b", "a.csv", "text,label,key", "c,x,k1", "d,y,k3")
    by_line = load_examples(custom(train=[one, other], validation_fraction=0.0))["train"]
    assert len({example.id for example in by_line}) == 4
    by_column = load_examples(custom(train=one, id="key", validation_fraction=0.0))["train"]
    assert [example.id for example in by_column] == ["k1", "k2"]
    with pytest.raises(InputError, match=r"b/a\.csv:2: identifier 'k1' was used at .*a\.csv:2"):
        load_examples(custom(train=[one, other], id="key", validation_fraction=0.0))


CHOICE = {"kind": "multiple_choice", "labels": ("0", "1")}


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"text": "a", "label": ""}, {}, r"a\.jsonl:2: column 'label': the label is empty"),
        ({"text": "a", "label": None}, {}, r"a\.jsonl:2: column 'label': the label is empty"),
        ({"text": "a", "label": 0.5}, {}, r"a\.jsonl:2: column 'label': the label is 0\.5, not a string or an integer"),
        ({"text": "a", "label": 1.0}, {}, r"the label is 1\.0, not a string or an integer; write it as one"),
        ({"text": "a"}, {}, r"a\.jsonl:2: no column 'label'.*; name the label's column in task\.label .*--label="),
        ({"text": "a"}, {}, r"a\.jsonl:2: no column 'label'.*declare .* in task\.unlabelled \(--unlabelled\)"),
        (
            {"label": "x"},
            {},
            r"no column 'text'.*; name the column of 'text' in task\.fields\.text .*--field=text=COLUMN",
        ),
        (
            {"label": "x"},
            {"fields": {"text": "review"}},
            r"no column 'review'.*; task\.fields\.text says so: correct it",
        ),
        ({"question": "q", "answers": ["a", "b"], "label": 0}, CHOICE, "or that of 'question' alone to do without"),
        ({"text": " ", "label": "x"}, {}, r"a\.jsonl:2: column 'text': the text is empty.*allow_empty"),
        ({"text": 3, "label": "x"}, {}, r"a\.jsonl:2: column 'text': a text is expected, got 3 \(int\)"),
        ({"context": "", "question": "", "answers": ["a", "b"], "label": 0}, CHOICE, "both empty"),
        ({"context": "c", "question": "", "answers": ["a"], "label": 0}, CHOICE, "1 answer given; .* at least two"),
        ({"context": "c", "question": "", "answers": ["a", ""], "label": 0}, CHOICE, "answer 2 of 2 is empty"),
        (
            {"context": "c", "question": "", "answers": "a", "a": "x", "b": "", "label": 0},
            {**CHOICE, "fields": {"context": "context", "answers": "a,b"}},
            "'a, b': answer 2 of 2 is empty; .* as JSONL with a list",
        ),
        ({"context": "c", "question": "", "answers": "a", "label": 0}, CHOICE, "answers are a JSON list"),
        ({"context": "c", "question": "", "answers": ["a", 1], "label": 0}, CHOICE, "a text is expected, got 1"),
    ],
)
def test_bad_rows_are_named(custom, tmp_path, row, options, message):
    good = {"text": "a", "context": "c", "question": "q", "answers": ["a", "b"], "a": "x", "b": "y", "label": 0}
    path = write_jsonl(tmp_path, "a.jsonl", good, row)
    with pytest.raises(InputError, match=message):
        load_examples(custom(train=path, validation_fraction=0.0, **options))


def test_empty_texts_are_kept_and_counted_when_asked_for(custom, tmp_path, caplog):
    path = write_jsonl(
        tmp_path, "a.jsonl", {"text_a": "a", "text_b": "", "label": 0}, {"text_a": "a", "text_b": "b", "label": 1}
    )
    spec = custom(train=path, kind="similarity", allow_empty=True, validation_fraction=0.0)
    assert [example.fields["text_b"] for example in load_examples(spec)["train"]] == ["", "b"]
    assert "1 example with an empty text kept" in caplog.text


def test_held_out_splits_are_logged_stratified_and_apart(custom, tmp_path, caplog):
    rows = [f"sentence {i % 90},{'xy'[i % 90 < 30]}" for i in range(100)]  # ten sentences twice
    spec = custom(train=write(tmp_path, "a.csv", "text,label", *rows), test_fraction=0.2, validation_fraction=0.1)
    with caplog.at_level("INFO", logger="absl"):
        examples = load_examples(spec)
    assert {split: len(part) for split, part in examples.items()} == {"train": 70, "validation": 10, "test": 20}
    counts = Counter(example.label for example in examples["test"])
    assert counts == {"x": 12, "y": 8}
    texts = {split: {example.fields["text"] for example in part} for split, part in examples.items()}
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert "split test is 20 of the 100 training rows (fraction 0.2 asked" in caplog.text
    assert load_examples(spec, ["test"]) == {"test": examples["test"]}


def test_options_reach_the_reader(custom, tmp_path):
    path = write(tmp_path, "a.tsv", 'x\t"one', 'y\ttwo"')
    options = {"header": ["label", "text"], "quoting": "none"}
    train = load_examples(custom(train=path, **options, validation_fraction=0.0))["train"]
    assert [(example.label, example.fields["text"]) for example in train] == [("x", '"one'), ("y", 'two"')]
    spec = custom(train=path)
    sources = {"train": dataclasses.replace(spec.sources["train"], options={"sep": ";"})}
    with pytest.raises(InputError, match="options: 'sep' is not one of 'header', 'quoting'"):
        load_examples(dataclasses.replace(spec, sources=sources))


def test_too_few_rows_to_hold_any_out(custom, tmp_path):
    path = write(tmp_path, "a.csv", "text,label", "a,x", "b,y")
    with pytest.raises(InputError, match="split 'validation' would be empty with 2 training rows"):
        load_examples(custom(train=path))


def test_examples_from_python_values():
    assert [example.fields for example in make_examples("classification", ["a", {"text": "b"}])] == [
        {"text": "a"},
        {"text": "b"},
    ]
    choice = make_examples("multiple_choice", [{"question": "q", "answers": ["a", "b"]}])[0]
    assert choice.fields == {"context": "", "question": "q", "answers": ("a", "b")}
    with pytest.raises(InputError, match=r"examples\[1\]: no field 'hypothesis'"):
        make_examples("entailment", [{"premise": "a", "hypothesis": "b"}, {"premise": "a"}])
    with pytest.raises(InputError, match=r"examples\[0\]: kind 'entailment' takes a mapping"):
        make_examples("entailment", ["a"])
    with pytest.raises(InputError, match=r"examples\[0\]: column 'text': the text is empty"):
        make_examples("classification", [""])
