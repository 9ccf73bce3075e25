"""Prediction files: written whole, read back."""

import json

import numpy as np
import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.predictions import Prediction, read_predictions, write_predictions


def test_what_was_written_is_read_back(tmp_path):
    path = tmp_path / "predictions" / "test.jsonl"
    write_predictions(path, ["a", "b.csv:2"], ["schlecht", "größe"], np.array([[0.25, 0.75], [1.0, 0.0]]))
    assert read_predictions(path) == [
        Prediction("a", "größe", {"schlecht": 0.25, "größe": 0.75}),
        Prediction("b.csv:2", "schlecht", {"schlecht": 1.0, "größe": 0.0}),
    ]
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["id"] == "a"
    assert [entry.name for entry in path.parent.iterdir()] == ["test.jsonl"]  # no temporary file is left


def test_float32_probabilities_and_ragged_answers(tmp_path):
    path = tmp_path / "a.jsonl"
    probabilities = np.array([[0.1, 0.9, 0.0], [0.2, 0.3, 0.5]], np.float32)
    write_predictions(path, ["a", "b"], ["A", "B", "C"], probabilities, n_choices=np.array([2, 3]))
    first, second = read_predictions(path)
    assert list(first.probabilities) == ["A", "B"]
    assert first.label == "B"
    assert second.probabilities == pytest.approx({"A": 0.2, "B": 0.3, "C": 0.5})


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.jsonl"
    write_predictions(path, ["a"], ["x", "y"], np.array([[1, 0]]))
    before = path.read_bytes()
    for ids, probabilities, message in [
        (["b", "b"], np.ones((2, 2)), "1 of 2 occur twice"),
        (["b"], np.array([[np.nan, 1]]), "not all are finite"),
        (["b"], np.ones((1, 3)), r"\(1, 3\): 1 ids and 2 labels"),
    ]:
        with pytest.raises(InputError, match=message):
            write_predictions(path, ids, ["x", "y"], probabilities)
    assert path.read_bytes() == before
    with pytest.raises(InputError, match=r"written as \.jsonl"):
        write_predictions(tmp_path / "a.csv", ["b"], ["x", "y"], np.ones((1, 2)))


def test_damaged_files_are_named_with_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a", "label": "x", "probabilities": {"y": 1}}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.jsonl:1: probabilities: .*label 'x'"):
        read_predictions(path)
    path.write_text('{"id": "a", "label": "x"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.jsonl:1: no column 'probabilities'"):
        read_predictions(path)
