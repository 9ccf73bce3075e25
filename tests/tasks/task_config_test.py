"""A task as a config writes it: every way of reading a file can be reached from there."""

from __future__ import annotations

import pytest

from gpt1_jax.config import from_config
from gpt1_jax.errors import InputError
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.examples import load_examples


def read(path, **settings):
    config = from_config(TaskConfig, {"train": [str(path)], "validation_fraction": 0.0, **settings})
    return load_examples(make_spec(config))["train"]


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


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(InputError, match="custom"):
        make_spec(TaskConfig(name="costum"))
