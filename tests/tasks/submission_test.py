"""Submission files byte by byte, and the zip of several runs."""

import logging
import zipfile

import numpy as np
import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.config import DATA_SETS
from gpt1_jax.tasks.predictions import Prediction, prediction_lines, score_lines, write_lines
from gpt1_jax.tasks.spec import Source, Submission, TaskSpec
from gpt1_jax.tasks.submission import GLUE_FILES, render, write, write_glue_zip


def task(submission, labels=("bad", "good"), **changes):
    settings = {
        "name": "reviews",
        "kind": "classification",
        "sources": {"train": Source(("train.tsv",)), "test": Source(("test.tsv",), labelled=False)},
        "fields": {"text": "sentence"},
        "labels": labels,
        "submission": submission,
    }
    return TaskSpec(**{**settings, **changes})


SST = task(Submission({"test": "SST-2.tsv"}, labels=("0", "1")))
STS = task(Submission({"test": "STS-B.tsv"}), labels=None, score_range=(0.0, 5.0), metrics=("pearson",))


def official(name, n_rows=None, prediction=None):
    n_rows = GLUE_FILES[name].n_rows if n_rows is None else n_rows
    prediction = prediction or (GLUE_FILES[name].words or ("2.5",))[-1]
    return ("index\tprediction\n" + "".join(f"{i}\t{prediction}\n" for i in range(n_rows))).encode()


def run_folder(folder, *names):
    (folder / "submission").mkdir(parents=True)
    for name in names:
        (folder / "submission" / name).write_bytes(official(name))
    return folder


def test_rows_come_in_the_order_of_the_index():
    predictions = [Prediction(id_, label) for id_, label in [("10", "good"), ("2", "bad"), ("0", "good"), ("1", "bad")]]
    assert render(SST, predictions) == b"index\tprediction\n0\t1\n1\t0\n2\t0\n10\t1\n"


def test_words_of_a_class_are_the_benchmarks():
    spec = task(
        Submission({"test": "MNLI-m.tsv"}, labels=("contradiction", "entailment", "neutral")),
        labels=("no", "yes", "maybe"),
    )
    predictions = [Prediction("0", "maybe"), Prediction("1", "no"), Prediction("2", "yes")]
    assert render(spec, predictions) == b"index\tprediction\n0\tneutral\n1\tcontradiction\n2\tentailment\n"


def test_what_the_tasks_write_is_what_the_server_takes():
    written = set()
    for data_set in DATA_SETS:
        for split, file in data_set.submission.files.items() if data_set.submission is not None else ():
            if file in GLUE_FILES:
                written.add(file)
                assert GLUE_FILES[file].n_rows in [sizes.get(split) for sizes in data_set.sizes.values()]
                assert set(GLUE_FILES[file].words) == set(data_set.submission.labels)
    assert set(GLUE_FILES) - written == {"WNLI.tsv"}


def test_scores_stay_in_their_range(caplog):
    caplog.set_level(logging.INFO)
    scores = [3.14159265, -0.1, 5.5, 5.0]
    content = render(STS, [Prediction(str(i), score=score) for i, score in enumerate(scores)])
    assert content == b"index\tprediction\n0\t3.141593\n1\t0.000000\n2\t5.000000\n3\t5.000000\n"
    assert "2 of 4 scores set to the end of 0..5" in caplog.text


@pytest.mark.parity
def test_the_story_cloze_file_is_the_original_programs(goldens):
    with np.load(goldens / "e2e" / "e2e.npz") as file:
        logits, expected = file["test_logits"], str(file["predictions_tsv"])
    spec = task(
        Submission({"test": "ROCStories.tsv"}, labels=("0", "1"), index="row"),
        kind="multiple_choice",
        fields={"context": "story", "answers": ("first", "second")},
        labels=("1", "2"),
    )
    predictions = [Prediction(f"story {i}", spec.labels[k]) for i, k in enumerate(logits.argmax(axis=1))]
    # The program ends every line with LF, the last one too, which the reference text has lost.
    assert render(spec, predictions) == (expected.rstrip("\n") + "\n").encode()


@pytest.mark.parametrize(
    ("spec", "prediction", "message"),
    [
        (SST, Prediction("test.tsv:2", "good"), "id 'test.tsv:2': a submission's index is a whole number"),
        (SST, Prediction("-1", "good"), "id '-1'"),
        (SST, Prediction("0", "great"), "label 'great' is not one of 'bad', 'good'"),
        (SST, Prediction("0", score=1.0), "label None is not one of"),
        (SST, Prediction("7", "good"), "index 7 occurs twice"),
        (STS, Prediction("0", "good"), "'0' has a label, no score"),
    ],
)
def test_predictions_that_cannot_be_submitted(spec, prediction, message):
    fine = Prediction("07", "good", score=1.0)
    with pytest.raises(InputError, match=f"dev.jsonl: .*{message}"):
        render(spec, [fine, prediction], "dev.jsonl")


def test_a_run_leaves_the_files_of_its_splits(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    submission = Submission({"test_m": "MNLI-m.tsv", "test_mm": "MNLI-mm.tsv"}, labels=("entailment", "neutral"))
    spec = task(submission)
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    write_lines(
        tmp_path / "predictions" / "test_mm.jsonl", prediction_lines(["1", "0"], ["bad", "good"], probabilities)
    )
    paths = write(spec, tmp_path)
    assert paths == [tmp_path / "submission" / "MNLI-mm.tsv"]
    assert paths[0].read_bytes() == b"index\tprediction\n0\tneutral\n1\tentailment\n"
    assert "no predictions for split 'test_m', so no MNLI-m.tsv" in caplog.text
    assert write(task(None), tmp_path) == []


def test_a_run_of_scores(tmp_path):
    write_lines(tmp_path / "predictions" / "test.jsonl", score_lines(["0", "1"], np.array([1.25, 4.0], np.float32)))
    (path,) = write(STS, tmp_path)
    assert path.read_bytes() == b"index\tprediction\n0\t1.250000\n1\t4.000000\n"


def test_the_zip_of_all_runs(tmp_path, caplog):
    runs = [run_folder(tmp_path / name[:-4], name) for name in GLUE_FILES if name not in ("MNLI-mm.tsv", "WNLI.tsv")]
    (tmp_path / "MNLI-m" / "submission" / "MNLI-mm.tsv").write_bytes(official("MNLI-mm.tsv"))
    single = tmp_path / "WNLI.tsv"
    single.write_bytes(official("WNLI.tsv").rstrip(b"\n"))  # without the last LF, as some programs leave it
    target = tmp_path / "new" / "glue.zip"
    sources = write_glue_zip([*runs, single], target)
    assert list(sources) == list(GLUE_FILES)
    assert sources["MNLI-mm.tsv"] == tmp_path / "MNLI-m" / "submission" / "MNLI-mm.tsv"
    assert not caplog.records
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == list(GLUE_FILES)
        assert archive.read("RTE.tsv") == official("RTE.tsv")
        assert archive.read("RTE.tsv").endswith(b"2999\tnot_entailment\n")
    before = target.read_bytes()
    write_glue_zip([single, *reversed(runs)], target)
    assert target.read_bytes() == before


def test_missing_files_are_named_or_filled_with_a_constant(tmp_path, caplog):
    run = run_folder(tmp_path / "run", "RTE.tsv", "WNLI.tsv")
    target = tmp_path / "glue.zip"
    assert list(write_glue_zip([run], target)) == ["RTE.tsv", "WNLI.tsv"]
    missing = "CoLA.tsv, SST-2.tsv, MRPC.tsv, STS-B.tsv, QQP.tsv, MNLI-m.tsv, MNLI-mm.tsv, QNLI.tsv, AX.tsv"
    assert f"{missing} missing; GLUE's server takes all 11 files only" in caplog.text
    caplog.clear()
    sources = write_glue_zip([run], target, fill_missing=True)
    assert [name for name, source in sources.items() if source is None] == missing.split(", ")
    assert f"constant predictions, no results of any model, in {missing}" in caplog.text
    with zipfile.ZipFile(target) as archive:
        assert archive.read("AX.tsv") == official("AX.tsv", prediction="entailment")
        assert archive.read("STS-B.tsv").splitlines()[-1] == b"1378\t0.000000"
        assert archive.read("WNLI.tsv") == official("WNLI.tsv", prediction="1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("WNLI.tsv", official("WNLI.tsv", 145), "145 rows, GLUE's test set has 146"),
        (
            "WNLI.tsv",
            official("WNLI.tsv", prediction="entailment"),
            r":2: prediction 'entailment': allowed is '0', '1'",
        ),
        ("WNLI.tsv", official("WNLI.tsv").replace(b"\n7\t", b"\n8\t"), r":9: '8\\t1': index 7 and a tab"),
        ("WNLI.tsv", official("WNLI.tsv").replace(b"\n7\t", b"\n7 "), r":9: '7 1': index 7 and a tab"),
        ("WNLI.tsv", official("WNLI.tsv").replace(b"\n", b"\r\n"), ":1: 'index.tprediction.r'"),
        ("WNLI.tsv", official("WNLI.tsv").replace(b"index", b"id"), ":1: 'id.tprediction': the header"),
        ("WNLI.tsv", official("WNLI.tsv") + b"\xff", "not UTF-8"),
        ("WNLI.tsv", b"", ":1: '': the header"),
        ("STS-B.tsv", official("STS-B.tsv", prediction="nan"), ":2: prediction 'nan': allowed is a number"),
        ("RTE.tsv", official("RTE.tsv", prediction="neutral"), "allowed is 'entailment', 'not_entailment'"),
        ("ROCStories.tsv", official("WNLI.tsv"), "is not a file of a GLUE submission"),
    ],
)
def test_a_file_the_server_would_not_take(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{name}.*{message}"):
        write_glue_zip([path], tmp_path / "glue.zip", fill_missing=True)
    assert not (tmp_path / "glue.zip").exists()


def test_sources_that_are_none(tmp_path):
    first, second = (run_folder(tmp_path / name, "WNLI.tsv") for name in ("first", "second"))
    (tmp_path / "empty").mkdir()
    run_folder(tmp_path / "seeds" / "seed_0", "WNLI.tsv")
    for sources, target, message in [
        ([first, second], "a.zip", r"second.submission.WNLI.tsv: .*first.submission.WNLI.tsv is the same file"),
        ([tmp_path / "frist"], "a.zip", "frist does not exist; did you mean .*first"),
        ([tmp_path / "empty"], "a.zip", r"empty: has no submission/\*.tsv"),
        ([tmp_path / "seeds"], "a.zip", r"seeds: has no .* give one of the runs in it, such as .*seeds/seed_0$"),
        ([], "a.zip", "runs: none given"),
        ([first], "a.tar", r"a.tar': a submission is written as \.zip"),
    ]:
        with pytest.raises(InputError, match=message):
            write_glue_zip(sources, tmp_path / target)
        assert not (tmp_path / target).exists()
