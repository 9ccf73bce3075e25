"""The Story Cloze Test from its official files: names, the official split, and what is refused."""

from __future__ import annotations

import csv

import pytest
from sklearn.model_selection import train_test_split

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.datasets.story_cloze import N_VALIDATION, SPLIT_SEED
from gpt1_jax.tasks.examples import load_examples

SPRING = (
    "cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
    "cloze_test_test__spring2016 - cloze_test_ALL_test.csv",
)
WINTER = (
    "cloze_test_val__winter2018-cloze_test_ALL_val - 1 - 1.csv",
    "cloze_test_test__winter2018-cloze_test_ALL_test - 1.csv",
)
SHORT = ("cloze_test_val__spring2016.csv", "cloze_test_test__spring2016.csv")
COLUMNS = (
    "InputStoryid",
    *(f"InputSentence{i}" for i in range(1, 5)),
    *(f"RandomFifthSentenceQuiz{i}" for i in (1, 2)),
    "AnswerRightEnding",
)


def row(i, key="s"):
    return [f"{key}{i}", *(f"{key}{i} sentence {j}." for j in range(1, 5)), f"good, {i}", f"bad {i}", str(1 + i % 2)]


def write(path, n, key="s", labelled=True):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        for cells in (COLUMNS, *(row(i, key) for i in range(n))):
            writer.writerow(cells if labelled else cells[:-1])


def load(folder, **settings):
    spec = make_spec(TaskConfig(name="story_cloze", data=str(folder), **settings))
    return spec, load_examples(spec)


@pytest.mark.parametrize("names", [SPRING, WINTER, SHORT])
def test_the_official_split_in_its_order(tmp_path, names):
    labelled = "winter2018" not in names[1]
    write(tmp_path / names[0], N_VALIDATION + 30)
    write(tmp_path / names[1], 7, key="t", labelled=labelled)
    (tmp_path / "ROCStories_winter2017.csv").write_text("storyid\n")
    spec, examples = load(tmp_path)
    sides = train_test_split(list(range(N_VALIDATION + 30)), test_size=N_VALIDATION, random_state=SPLIT_SEED)
    for split, rows in zip(("train", "validation"), sides, strict=True):
        assert [example.id for example in examples[split]] == [f"s{i}" for i in rows]
        assert [example.label for example in examples[split]] == [str(1 + i % 2) for i in rows]
    assert examples["test"][3].fields == {
        "context": "t3 sentence 1. t3 sentence 2. t3 sentence 3. t3 sentence 4.",
        "question": "",
        "answers": ("good, 3", "bad 3"),
    }
    assert [example.label for example in examples["test"]] == ["1", "2", "1", "2", "1", "2", "1"] if labelled else True
    assert spec.is_labelled("test") == labelled


def test_of_two_releases_the_papers_is_used(tmp_path):
    for names, n in ((SPRING, 3), (WINTER, 5)):
        write(tmp_path / names[0], N_VALIDATION + n)
        write(tmp_path / names[1], 2)
    assert len(load(tmp_path)[1]["train"]) == 3


def test_what_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match=r"task\.data='tfds:/d': story_cloze is read from a folder only"):
        make_spec(TaskConfig(name="story_cloze", data="tfds:/d"))
    (tmp_path / "ROCStories_winter2017.csv").touch()
    with pytest.raises(InputError, match=r"expected cloze_test_val__spring2016\*\.csv.*It has ROCStories_winter"):
        load(tmp_path)
    write(tmp_path / SPRING[0], 3)
    with pytest.raises(InputError, match="3 stories; there must be more than the 374"):
        load(tmp_path)
    write(tmp_path / SHORT[0], 3)
    with pytest.raises(InputError, match="one of them is meant"):
        load(tmp_path)


def test_without_the_test_file_there_is_no_test_split(tmp_path):
    write(tmp_path / SPRING[0], N_VALIDATION + 3)
    assert load(tmp_path)[0].splits == ("train", "validation")


def test_a_named_data_set_says_everything_but_the_metrics(tmp_path):
    write(tmp_path / SPRING[0], N_VALIDATION + 3)
    write(tmp_path / SPRING[1], 2)
    assert load(tmp_path, metrics=("f1",))[0].metrics == ("f1",)
    with pytest.raises(InputError, match=r"task.validation_fraction=0.2: task.name='story_cloze' says this itself"):
        load(tmp_path, validation_fraction=0.2)
    with pytest.raises(InputError, match=r"task.name='custom' has its files in task.train"):
        make_spec(TaskConfig(data=str(tmp_path)))
