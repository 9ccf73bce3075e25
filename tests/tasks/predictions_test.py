"""Prediction files: written whole, read back."""

import json

import numpy as np
import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.predictions import (
    Prediction,
    append_lines,
    prediction_lines,
    read_predictions,
    score_lines,
    write_lines,
)


def test_what_was_written_is_read_back(tmp_path):
    path = tmp_path / "predictions" / "test.jsonl"
    write_lines(path, prediction_lines(["a", "b.csv:2"], ["schlecht", "größe"], np.array([[0.25, 0.75], [1.0, 0.0]])))
    assert read_predictions(path) == [
        Prediction("a", "größe", {"schlecht": 0.25, "größe": 0.75}),
        Prediction("b.csv:2", "schlecht", {"schlecht": 1.0, "größe": 0.0}),
    ]
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["id"] == "a"
    assert [entry.name for entry in path.parent.iterdir()] == ["test.jsonl"]  # no temporary file is left


def test_the_bytes_of_a_file_and_known_labels(tmp_path):
    path = tmp_path / "a.jsonl"
    probabilities = np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    write_lines(path, prediction_lines(["a", "b", "c"], ["no", "ja, “yes”"], probabilities, gold=np.array([0, 1, -1])))
    assert path.read_bytes().decode() == (
        '{"id": "a", "label": "ja, “yes”", "gold": "no", "probabilities": {"no": 0.25, "ja, “yes”": 0.75}}\n'
        '{"id": "b", "label": "no", "gold": "ja, “yes”", "probabilities": {"no": 1.0, "ja, “yes”": 0.0}}\n'
        '{"id": "c", "label": "no", "probabilities": {"no": 0.5, "ja, “yes”": 0.5}}\n'  # the first on a tie
    )
    assert [prediction.gold for prediction in read_predictions(path)] == ["no", "ja, “yes”", None]


def test_scores(tmp_path):
    path = tmp_path / "a.jsonl"
    write_lines(path, score_lines(["0", "1"], np.array([3.5, -0.25]), gold=np.array([4.0, np.nan])))
    assert path.read_bytes() == b'{"id": "0", "score": 3.5, "gold": 4.0}\n{"id": "1", "score": -0.25}\n'
    assert read_predictions(path) == [Prediction("0", score=3.5, gold=4.0), Prediction("1", score=-0.25)]
    before = path.read_bytes()
    for ids, scores, gold, message in [
        (["0", "0"], [1.0, 2.0], None, "id '0' occurs twice"),
        (["0"], [np.nan], None, "not all are finite"),
        (["0"], [1.0], [np.inf], "not all are finite"),
        (["0"], [1.0, 2.0], None, r"scores \(2,\)"),
        (["0"], [1.0], [1.0, 2.0], r"gold \(2,\)"),
    ]:
        with pytest.raises(InputError, match=message):
            write_lines(path, score_lines(ids, scores, gold))
    assert path.read_bytes() == before


def test_float32_probabilities_and_ragged_answers(tmp_path):
    path = tmp_path / "a.jsonl"
    probabilities = np.array([[0.1, 0.9, 0.0], [0.2, 0.3, 0.5]], np.float32)
    n_choices, gold = np.array([2, 3]), np.array([0, 2])
    write_lines(path, prediction_lines(["a", "b"], ["A", "B", "C"], probabilities, n_choices, gold))
    first, second = read_predictions(path)
    assert list(first.probabilities) == ["A", "B"]
    assert first.label == "B"
    assert (first.gold, second.gold) == ("A", "C")
    assert second.probabilities == pytest.approx({"A": 0.2, "B": 0.3, "C": 0.5})
    for n_choices, gold, message in [
        ([2, 3], [2, 0], r"gold\[0\]=2: the labels allow -1 to 1"),
        ([2, 4], [0, 0], r"n_choices\[1\]=4: the labels allow 1 to 3"),
        ([2], [0, 0], r"n_choices \(1,\): 2 ids"),
        ([2, 3], [0], r"gold \(1,\): 2 ids"),
    ]:
        with pytest.raises(InputError, match=message):
            prediction_lines(["a", "b"], ["A", "B", "C"], probabilities, np.array(n_choices), np.array(gold))


def test_lines_that_are_added_are_there_at_once(tmp_path):
    path = tmp_path / "predictions" / "a.partial.jsonl"
    for id_, score in (("7", 0.5), ("2", 1.5)):
        append_lines(path, score_lines([id_], np.array([score])))
        assert read_predictions(path)[-1] == Prediction(id_, score=score)
    assert [prediction.id for prediction in read_predictions(path)] == ["7", "2"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.jsonl"
    write_lines(path, prediction_lines(["a"], ["x", "y"], np.array([[1, 0]])))
    before = path.read_bytes()
    for ids, probabilities, message in [
        (["b", "b"], np.ones((2, 2)), "id 'b' occurs twice"),
        (["b"], np.array([[np.nan, 1]]), "not all are finite"),
        (["b"], np.ones((1, 3)), r"\(1, 3\): 1 ids and 2 labels"),
    ]:
        with pytest.raises(InputError, match=message):
            write_lines(path, prediction_lines(ids, ["x", "y"], probabilities))
    assert path.read_bytes() == before
    with pytest.raises(InputError, match=r"written as \.jsonl"):
        write_lines(tmp_path / "a.csv", prediction_lines(["b"], ["x", "y"], np.ones((1, 2))))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a", "label": "x", "probabilities": {"y": 1}}', "probabilities: .*label 'x'"),
        ('{"id": "a", "label": ["x"], "probabilities": {"x": 1}}', "probabilities: .*label"),
        ('{"id": "a", "label": "x"}', "no column 'probabilities'"),
        ('{"id": "a", "probabilities": {"x": 1}}', "no column 'label'"),
        ('{"label": "x", "probabilities": {"x": 1}}', "no column 'id'"),
        ('{"id": 1, "label": "x", "probabilities": {"x": 1}}', "id: 1 is not a string"),
        ('{"id": "a", "label": "x", "probabilities": {"x": "1"}}', "probabilities: .*not a number"),
        ('{"id": "a", "label": "x", "probabilities": {"x": 1}, "gold": 1}', "gold: 1 is not a label"),
        ('{"id": "a", "score": "high"}', "score: 'high' is not a number"),
        ('{"id": "a", "score": null}', "score: None is not a number"),
        ('{"id": "a", "score": 1, "gold": true}', "gold: True is not a number"),
    ],
)
def test_damaged_files_are_named_with_their_line(line, message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "ok", "score": 1}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"a\.jsonl:2: {message}"):
        read_predictions(path)
