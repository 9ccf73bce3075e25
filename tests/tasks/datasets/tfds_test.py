"""The same tasks from TensorFlow Datasets: prepared by its own code from miniature official files, and mocked."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gpt1_jax.data import tfds_source
from gpt1_jax.errors import InputError
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.examples import load_examples

pytest.importorskip("importlib_resources", reason="tensorflow-datasets 4.9 needs it to prepare a data set")


@pytest.fixture(scope="module")
def prepared(glue, race, official, tmp_path_factory):
    """TFDS' folder of data sets, filled by its own readers of the official files; and the folder of these files."""
    from etils import epath
    from tensorflow_datasets.core.download import download_manager
    from tensorflow_datasets.core.features import feature

    archive = tmp_path_factory.mktemp("archive")
    for folder in (*glue.iterdir(), race / "RACE"):
        (archive / folder.name).symlink_to(folder)
    for file in ("train", "dev", "test"):
        pairs = ("Heat moves.", "It moves.", "entails"), ("Ice is cold.", "Ice melts.", "neutral")
        official.write_tsv(archive / "SciTailV1.1" / "tsv_format" / f"scitail_1.0_{file}.tsv", *pairs)
        header = ("gold_label", "sentence1", "sentence2")
        rows = ("neutral", 'A "b', "C"), ("-", "D", "E"), ("contradiction", "F", "G")
        official.write_tsv(archive / "snli_1.0" / f"snli_1.0_{file}.txt", header, *rows)
    data_dir = tmp_path_factory.mktemp("tfds")
    manager = download_manager.DownloadManager
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds_source, "_online", lambda: True)
        patch.setattr(tfds_source, "NEEDS_TENSORFLOW", ())
        patch.setattr(manager, "download_and_extract", lambda self, url: epath.Path(archive))
        # TFDS wants TensorFlow for the type of a list of lists, in writing only.
        patch.setattr(feature.TensorInfo, "dtype", property(lambda info: info.np_dtype))
        for name in SAME:
            official.load(name, f"tfds:{data_dir}")
        official.load("snli", f"tfds:{data_dir}")
    return data_dir, archive


SAME = ("cola", "sst2", "stsb", "mnli", "qnli", "rte", "scitail", "race", "race_high")


@pytest.mark.parametrize("name", SAME)
def test_tfds_and_the_folder_give_the_same_examples(prepared, official, name):
    data_dir, archive = prepared
    from_folder, expected = official.load(name, archive)
    from_tfds, examples = official.load(name, f"tfds:{data_dir}")
    assert from_tfds.splits == from_folder.splits
    for split in from_folder.splits:
        assert from_tfds.is_labelled(split) == from_folder.is_labelled(split)
        assert sorted(map(repr, official.shown(examples[split]))) == sorted(map(repr, official.shown(expected[split])))
    # What the server takes: its index for every text.
    texts = [{e.id: e.fields for e in loaded.get("test", ())} for loaded in (examples, expected)]
    if from_folder.submission is not None:
        assert texts[0] == texts[1]
    for attribute in ("labels", "metrics", "submission", "paper", "sizes", "score_range"):
        assert getattr(from_tfds, attribute) == getattr(from_folder, attribute)
    assert "tensorflow" not in sys.modules


def test_snlis_label_minus_one_is_left_out_and_counted(prepared, official, caplog):
    with caplog.at_level("INFO", logger="absl"):
        _, examples = official.load("snli", f"tfds:{prepared[0]}")
    assert sorted(official.shown(examples["test"])) == [('A "b', "C", "neutral"), ("F", "G", "contradiction")]
    assert "split test: 1 row with label '-1' dropped" in caplog.text


@pytest.mark.parametrize("name", ["mrpc", "qqp", "snli", "mnli", "scitail"])
def test_the_fields_that_are_asked_for_are_those_of_tfds(name):
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(num_examples=3):
        spec = make_spec(TaskConfig(name=name, data="tfds"))
        examples = load_examples(spec, ["train"])["train"]
    assert len(examples) == 3
    assert all(example.label in spec.labels for example in examples)


def passages(options):
    return [
        {
            "article": b"caf\xc3\xa9",
            "example_id": b"high1.txt",
            "questions": np.array([b"What _ ?", b"Why?"], dtype=object),
            "answers": np.array([b"B", b"C"], dtype=object),
            "options": options,
        }
    ]


@pytest.mark.parametrize(
    "options",
    [
        np.array([[b"1", b"2", b"3", b"4"], [b"5", b"6", b"7", b"8"]], dtype=object),
        [np.array(["1", "2", "3", "4"]), np.array(["5", "6", "7", "8"])],
    ],
)
def test_the_passages_of_race_come_apart_into_questions(official, options):
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(as_data_source_fn=lambda builder, split: passages(options)):
        _, examples = official.load("race_high", "tfds", ["test"])
    assert official.shown(examples["test"]) == [
        ("café", "What _ ?", ("1", "2", "3", "4"), "B"),
        ("café", "Why?", ("5", "6", "7", "8"), "C"),
    ]
    assert [example.id for example in examples["test"]] == ["high1.txt:1", "high1.txt:2"]


def test_a_prepared_multi_nli_is_taken_where_glues_is_not_there(official, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds_source, "is_prepared", lambda name, data_dir: name == "multi_nli")
    rows = [{"premise": b"P", "hypothesis": b"H", "label": 2}]
    with tfds.testing.mock_data(as_data_source_fn=lambda builder, split: rows):
        spec, examples = official.load("mnli", "tfds")
    assert spec.splits == ("train", "validation_matched", "validation_mismatched")
    assert official.shown(examples["train"]) == [("P", "H", "contradiction")]


@pytest.mark.parametrize("name", ["sst2", "snli", "race", "mnli"])
def test_without_network_the_official_page_and_the_folder_are_named(name, official, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_source, "_online", lambda: False)
    with pytest.raises(InputError, match=r"task\.data='tfds:.* is not prepared.*or give the folder .*\(from https://"):
        official.load(name, f"tfds:{tmp_path}")


def test_a_folder_of_data_sets_that_is_not_there(official, tmp_path):
    with pytest.raises(InputError, match=r"task\.data='tfds:.*nowhere' \(glue/sst2\): .*nowhere is no folder"):
        official.load("sst2", f"tfds:{tmp_path}/nowhere")


def test_a_damaged_row_is_named(official):
    import tensorflow_datasets as tfds

    rows = [{"sentence1": b"a", "sentence2": b"b", "label": 3.0}, {"sentence1": b"a", "sentence2": b"b", "label": 7.5}]
    with (
        tfds.testing.mock_data(as_data_source_fn=lambda builder, split: rows),
        pytest.raises(InputError, match=r"tfds:glue/stsb/train:2: column 'label': the score is 7\.5"),
    ):
        official.load("stsb", "tfds", ["train"])
