"""What is said about a folder: which files were found, which are not there, and whether the sizes are the published."""

from __future__ import annotations

import dataclasses

import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.datasets.official import DataSet, Layout
from gpt1_jax.tasks.datasets.official import make_spec as from_data_set
from gpt1_jax.tasks.examples import load_examples

MINE = DataSet(
    name="mine",
    kind="classification",
    labels=("0", "1"),
    homepage="https://example.org",
    layouts=(
        Layout(
            name="first",
            files={"train": ("a.tsv",), "validation": ("b.tsv", "c.tsv")},
            fields={"text": "t"},
            label="y",
            folders=("sub", "sub/sub"),
        ),
        Layout(name="second", files={"train": ("a.csv",)}, fields={"text": "t"}, label="y"),
    ),
    tfds=(),
    sizes={"one": {"train": 2, "validation": 4}, "two": {"train": 3}},
)


@pytest.mark.parametrize("folder", ["", "sub", "sub/sub"])
def test_a_split_of_two_files_has_both_or_is_left_out(tmp_path, official, folder, caplog):
    rows = ("t", "y"), ("a", 0), ("b", 1)
    official.write_tsv(tmp_path / folder / "a.tsv", *rows)
    with caplog.at_level("INFO", logger="absl"):
        assert from_data_set(MINE, str(tmp_path)).splits == ("train",)
    where = tmp_path / folder
    assert f"task mine: the first files in {where}, splits train; absent: validation (b.tsv, c.tsv)" in caplog.text
    official.write_tsv(where / "b.tsv", *rows)
    (where / "c.tsv").mkdir()  # which is no file
    refused = rf"{where}/c\.tsv: no such file, though {where}/b\.tsv is there; the validation split of mine is both"
    with pytest.raises(InputError, match=refused):
        from_data_set(MINE, str(tmp_path))
    (where / "a.tsv").rename(where / "a")  # nor are there other splits
    with pytest.raises(InputError, match=refused):
        from_data_set(MINE, str(tmp_path))
    (where / "a").rename(where / "a.tsv")
    (where / "c.tsv").rmdir()
    official.write_tsv(where / "c.tsv", *rows)
    examples = load_examples(from_data_set(MINE, str(tmp_path)))
    assert [example.id for example in examples["validation"]] == ["b.tsv:2", "b.tsv:3", "c.tsv:2", "c.tsv:3"]


def test_of_two_forms_the_one_with_more_splits_is_read(tmp_path, official):
    (tmp_path / "a.csv").write_text("t,y\na,0\nb,1\n")
    assert from_data_set(MINE, str(tmp_path)).sources["train"].paths == (f"{tmp_path}/a.csv",)
    official.write_tsv(tmp_path / "sub" / "a.tsv", ("t", "y"), ("a", 0))
    assert from_data_set(MINE, str(tmp_path)).sources["train"].paths == (f"{tmp_path}/sub/a.tsv",)


@pytest.mark.parametrize(
    ("n", "level", "message"),
    [
        (2, "INFO", "split train has 2 examples, as published (one)"),
        (3, "INFO", "split train has 3 examples, as published (two)"),
        (4, "WARNING", "split train has 4 examples; published are 2 (one) or 3 (two)"),
    ],
)
def test_sizes_are_compared_with_the_published(tmp_path, official, caplog, n, level, message):
    official.write_tsv(tmp_path / "a.tsv", ("t", "y"), *((f"text {i}", i % 2) for i in range(n)))
    with caplog.at_level("INFO", logger="absl"):
        load_examples(from_data_set(MINE, str(tmp_path)))
    assert [record.levelname for record in caplog.records if message in record.getMessage()] == [level]


def test_what_is_missing_is_said_with_what_is_there_and_where_to_get_it(tmp_path):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError) as caught:
        from_data_set(MINE, str(tmp_path))
    for part in (
        "a.tsv, b.tsv, c.tsv (first) or a.csv (second)",
        "sub/sub",
        "notes.txt, other/",
        "https://example.org",
    ):
        assert part in str(caught.value)
    with pytest.raises(InputError, match=rf"does not exist; .* Did you mean {tmp_path}/other\? .*https://example.org"):
        from_data_set(MINE, f"{tmp_path}/othre")


def test_a_name_with_a_star_is_one_file(tmp_path, official):
    form = Layout(name="starred", files={"train": ("a*.tsv",)}, fields={"text": "t"}, label="y")
    starred = dataclasses.replace(MINE, layouts=(form,))
    official.write_tsv(tmp_path / "a - copy 1.tsv", ("t", "y"), ("a", 0))
    assert from_data_set(starred, str(tmp_path)).sources["train"].paths == (f"{tmp_path}/a - copy 1.tsv",)
    official.write_tsv(tmp_path / "a.tsv", ("t", "y"), ("a", 0))
    with pytest.raises(InputError, match=rf"{tmp_path}/a - copy 1.tsv, {tmp_path}/a.tsv: one of them is meant"):
        from_data_set(starred, str(tmp_path))


def test_a_data_set_that_tfds_does_not_have(tmp_path):
    with pytest.raises(InputError, match=r"task\.data='tfds:x': mine is read from a folder only\. .*example\.org$"):
        from_data_set(MINE, "tfds:x")
