"""What is told of a classifier: data, tables, and pictures that show them."""

import json
import struct
import warnings

import numpy as np
import pytest

from gpt1_jax.tasks.report import class_report, confusion_table, per_class_table, write_report

# Confusion: bad 3 right, 1 taken for good; good 2 right, 2 taken for bad.
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1])
PROBABILITIES = np.array([[0.9, 0.1]] * 3 + [[0.2, 0.8]] * 3 + [[0.6, 0.4]] * 2)


def random_report(names, n=500, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(names), size=n)
    logits = rng.normal(size=(n, len(names))) + 2 * np.eye(len(names))[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return class_report(labels, probabilities, names)


def size_of_png(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def test_the_report_is_what_json_can_hold():
    report = class_report(LABELS, PROBABILITIES, ["bad", "good", "unused answer name"])
    assert json.loads(json.dumps(report)) == report
    assert report["labels"] == ["bad", "good"]
    assert report["confusion"] == [[3, 1], [2, 2]]
    assert report["per_class"]["good"] == pytest.approx({"precision": 2 / 3, "recall": 0.5, "f1": 4 / 7, "support": 4})
    assert report["reliability"]["count"] == [0] * 8 + [2] + [0] * 2 + [3] + [0] + [3] + [0]


def test_tables():
    report = class_report(LABELS, PROBABILITIES, ["bad", "good"])
    assert per_class_table(report).splitlines() == [
        "      precision  recall      f1  support",
        "bad      0.6000  0.7500  0.6667        4",
        "good     0.6667  0.5000  0.5714        4",
        "mean     0.6333  0.6250  0.6190        8",
    ]
    assert confusion_table(report).splitlines() == [
        "true \\ predicted  bad  good",
        "bad                 3     1",
        "good                2     2",
    ]


def test_tables_of_a_model_that_is_never_right():
    report = class_report(np.array([0, 0, 1]), np.eye(2)[[1, 1, 0]], ["bad", "good"])
    assert per_class_table(report).splitlines()[1:] == [
        "bad      0.0000  0.0000  0.0000        2",
        "good     0.0000  0.0000  0.0000        1",
        "mean     0.0000  0.0000  0.0000        3",
    ]
    assert json.loads(json.dumps(report)) == report


def test_many_or_long_names_become_numbers_in_the_head():
    names = [f"a rather long label name\nnumber {i}" for i in range(20)]
    report = random_report(names)
    lines = confusion_table(report).splitlines()
    assert len(lines) == 21
    assert lines[0].split() == ["true", "\\", "predicted", *map(str, range(1, 21))]
    assert lines[1].startswith(" 1 a rather long label name number 0  ")
    assert len({len(line) for line in lines}) == 1
    assert [int(cell) for cell in lines[20].split()[-20:]] == report["confusion"][19]


@pytest.mark.parametrize(
    "names",
    [
        ["bad", "good"],
        ["costs $5 and $6", "a label of a customer who writes a whole sentence into the column", "größe", "\ttab"],
        [f"topic {i}" for i in range(20)],
    ],
)
def test_pictures(names, drawing, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that does not fit is one
        write_report(tmp_path / "new", "test", report := random_report(names))
    text, *pictures = sorted((tmp_path / "new").iterdir())
    assert text.name == "classes_test.txt"
    assert text.read_text(encoding="utf-8") == f"{per_class_table(report)}\n\n{confusion_table(report)}\n"
    assert [path.name for path in pictures] == ["confusion_test.png", "reliability_test.png"]
    for path in pictures:
        width, height = size_of_png(path)
        assert 500 < width < 2500
        assert 400 < height < 2500


@pytest.mark.filterwarnings("error")
def test_a_class_without_examples_and_equal_pictures_of_equal_reports(drawing, tmp_path):
    report = class_report(np.array([0, 0]), np.array([[1.0, 0, 0], [0, 0, 1.0]]), ["a", "b", "c"])
    for name in ("first", "second"):
        write_report(tmp_path / name, "test", report)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()
