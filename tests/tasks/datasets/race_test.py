"""RACE from its folders of passages."""

from __future__ import annotations

import json
import shutil

import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.examples import label_index


def test_every_question_of_every_passage_is_an_example(race, official):
    spec, examples = official.load("race", race)
    assert [example.id for example in examples["train"]] == [
        *("middle2.txt:1", "middle2.txt:2", "middle10.txt:1"),
        *("high2.txt:1", "high2.txt:2", "high10.txt:1"),
    ]
    first, second = examples["validation"][:2]
    assert first.fields == {
        "context": 'dev middle 2\nShe read "much.',
        "question": "What did she _ ?",
        "answers": ("one", "two", "three", "foür dev"),
    }
    assert (first.label, second.label) == ("A", "D")
    assert second.where == f"{race}/RACE/dev/middle/2.txt:1 (question 2)"
    assert label_index(second, spec.labels) == 3


@pytest.mark.parametrize(("name", "score"), [("race_middle", 62.9), ("race_high", 57.4)])
def test_one_school(race, official, name, score, caplog):
    spec, examples = official.load(name, race / "RACE")
    school = name.removeprefix("race_")
    assert {example.id for example in examples["test"]} == {f"{school}2.txt:1", f"{school}2.txt:2", f"{school}10.txt:1"}
    assert spec.paper == {"test": {"accuracy": score}}
    assert f"split test has 3 examples; published are {dict(middle=1436, high=3498)[school]} (RACE)" in caplog.text


def test_published_sizes_of_both_schools_add_up(race, official):
    spec, _ = official.load("race", race, ["test"])
    assert spec.sizes == {"RACE": {"train": 87_866, "validation": 4_887, "test": 4_934}}


def test_a_split_or_school_that_is_not_there(race, official, tmp_path):
    shutil.copytree(race / "RACE" / "dev", tmp_path / "dev")
    assert official.load("race", tmp_path)[0].splits == ("validation",)
    shutil.rmtree(tmp_path / "dev" / "high")
    assert official.load("race_middle", tmp_path)[0].splits == ("validation",)
    with pytest.raises(InputError, match=r"dev/high: no such folder, though .*dev/middle is there.*race_middle"):
        official.load("race", tmp_path)
    shutil.copytree(race / "RACE" / "test", tmp_path / "test")
    with pytest.raises(InputError, match=r"dev/high: no such folder.*the validation split of race is both"):
        official.load("race", tmp_path)
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(InputError, match=r"has no files of race_high: expected train/high, dev/high.*It has dev/"):
        official.load("race_high", tmp_path)
    for file in (tmp_path / "dev" / "middle").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"dev/middle: no \.txt file in it"):
        official.load("race_middle", tmp_path)


PASSAGE = {"article": "a", "id": "middle1.txt", "questions": ["q"], "options": [["1", "2", "3", "4"]], "answers": ["B"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"1\.txt:1: not JSON"),
        ("[]", r"1\.txt:1: a JSON list"),
        (b'{"article": "\xe9"}', r"1\.txt:1: byte 0xe9"),
        ({"answers": None}, r"1\.txt:1: 'answers' is None; a list"),
        ({"questions": []}, r"1\.txt:1: 'questions' is \[\]; a list"),
        ({"questions": ["q", "r"]}, r"1\.txt:1: 2 questions, 1 lists of options and 1 answers"),
        ({"answers": ["E"]}, r"1\.txt:1 \(question 1\): label 'E' is not one of 'A', 'B', 'C', 'D'"),
        ({"answers": ["D"], "options": [["1", "2", "3"]]}, r"label 'D' is not one of 'A', 'B', 'C'"),
        ({"options": [["1", "2", "3", "4", "5"]]}, r"\(question 1\): 5 answers, and labels for 4"),
        ({"options": [["1"]]}, r"\(question 1\): 'options': 1 answer given"),
        ({"options": ["1234"]}, r"\(question 1\): column 'options': answers are a JSON list"),
        ({"article": 3}, r"\(question 1\): column 'article': a text is expected, got 3"),
    ],
)
def test_damaged_passages_are_named(tmp_path, official, content, message):
    path = tmp_path / "train" / "middle" / "1.txt"
    path.parent.mkdir(parents=True)
    if isinstance(content, dict):
        content = json.dumps({**PASSAGE, **content})
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        official.load("race_middle", tmp_path)


def test_a_key_that_is_missing_is_named(tmp_path, official):
    path = tmp_path / "train" / "high" / "1.txt"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({key: value for key, value in PASSAGE.items() if key != "options"}), encoding="utf-8")
    with pytest.raises(InputError, match=r"1\.txt:1: no 'options'; the passage has 'article', 'id'"):
        official.load("race_high", tmp_path)


def test_an_empty_answer_is_kept_and_counted(tmp_path, official, caplog):
    path = tmp_path / "test" / "high" / "1.txt"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**PASSAGE, "options": [["", "2", "3", "4"]]}), encoding="utf-8")
    _, examples = official.load("race_high", tmp_path)
    assert examples["test"][0].fields["answers"] == ("", "2", "3", "4")
    assert "1 example with an empty text kept" in caplog.text
