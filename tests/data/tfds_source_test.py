"""Reads a data set that TFDS itself prepared here; nothing is downloaded."""

import sys

import numpy as np
import pytest

from gpt1_jax.data import tfds_source
from gpt1_jax.data.sources import describe_source, read_documents
from gpt1_jax.errors import InputError

pytest.importorskip("importlib_resources", reason="tensorflow-datasets 4.9 needs it to prepare a data set")


@pytest.fixture(scope="module", autouse=True)
def data_dir(tmp_path_factory):
    """A folder with a prepared data set of two configs."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import dataset_builder

    class Gpt1JaxFables(dataset_builder.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [  # noqa: RUF012
            tfds.core.BuilderConfig(name="short", version="1.0.0", description="."),
            tfds.core.BuilderConfig(name="long", version="1.0.0", description="."),
            tfds.core.BuilderConfig(name="parquet", version="1.0.0", description="."),
            tfds.core.BuilderConfig(name="unprepared", version="1.0.0", description="."),
        ]

        def _info(self):
            text, year = tfds.features.Text(), tfds.features.Scalar(np.int32)
            features = {"title": text, "year": year, "text" if self.builder_config.name == "long" else "fable": text}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(5), "test": self._generate_examples(2)}

        def _generate_examples(self, n):
            for i in range(n):
                field = "text" if self.builder_config.name == "long" else "fable"
                yield i, {"title": f"title {i}", "year": i, field: f"fäble {i} " * (9 if field == "text" else 1)}

    directory = tmp_path_factory.mktemp("tfds")
    for config in ("short", "long", "parquet"):
        builder = Gpt1JaxFables(config=config, data_dir=directory)
        builder.download_and_prepare(file_format="parquet" if config == "parquet" else "array_record")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds.core.constants, "DATA_DIR", str(directory))  # $TFDS_DATA_DIR, which was read at import
        patch.setattr(tfds_source, "_online", lambda: False)
        yield directory


def read(source, **kwargs):
    return list(read_documents(f"tfds:{source}", **kwargs))


def test_reads_configs_splits_and_fields():
    assert sorted(read("gpt1_jax_fables/test#title")) == ["title 0", "title 1"]
    assert len(read("gpt1_jax_fables#fable")) == 5
    assert sorted(read("gpt1_jax_fables/short/test#fable")) == ["fäble 0 ", "fäble 1 "]
    assert sorted(read("gpt1_jax_fables/long/test")) == ["fäble 0 " * 9, "fäble 1 " * 9]
    assert len(read("gpt1_jax_fables/short:1.0.0/train[:2]#fable")) == 2
    assert len(read("gpt1_jax_fables/long/train[:2]+test")) == 4
    assert "tensorflow" not in sys.modules


def test_parts_and_description():
    whole = read("gpt1_jax_fables/long")
    assert [read("gpt1_jax_fables/long", part=part, parts=2) for part in (0, 1)] == [whole[:2], whole[2:]]
    assert describe_source("tfds:gpt1_jax_fables/long") == {
        "kind": "tfds",
        "name": "gpt1_jax_fables/long/1.0.0",
        "split": "train",
        "field": "text",
        "documents": 5,
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gpt1_jax_fable", "no such data set; did you mean gpt1_jax_fables"),
        ("../x", "is no name of a data set"),
        ("gpt1_jax_fables", "which text. Add #FIELD, one of fable, title"),
        ("gpt1_jax_fables#year", "no text field 'year'; there are fable, title"),
        ("gpt1_jax_fables/validation#fable", "no split 'validation'; there are test, train"),
        ("gpt1_jax_fables/train[:300%]#fable", "cannot be read"),
        ("gpt1_jax_fables/short/train/x", "its configs are long, parquet, short, unprepared"),
        ("gpt1_jax_fables/short:2.0.0#fable", "cannot be opened"),
        ("gpt1_jax_fables/parquet", "cannot be opened .*has to be in the format array_record: prepare it again"),
        (
            "gpt1_jax_fables/unprepared",
            "there is no network to download it. Prepare it on .* set TFDS_DATA_DIR .* text:GLOB",
        ),
        ("snli", "there is no network to download it"),
    ],
)
def test_what_cannot_be_read_is_explained(source, message):
    with pytest.raises(InputError, match=message):
        read(source)


@pytest.mark.parametrize("name", tfds_source.NEEDS_TENSORFLOW)
def test_data_sets_that_need_tensorflow_say_what_to_do(name, data_dir):
    with pytest.raises(InputError, match=rf"tfds build {name}\S* --file_format=array_record .*now it is {data_dir}\)"):
        read(name)
    assert "tensorflow" not in sys.modules
