"""Text of TensorFlow Datasets through `tfds.data_source`: random access, and no TensorFlow.

Most data sets are downloaded and prepared on first use. Those of `NEEDS_TENSORFLOW` can be read here, but have to be
prepared once where TensorFlow is installed.
"""

from __future__ import annotations

import difflib
import importlib
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from gpt1_jax.errors import InputError

NEEDS_TENSORFLOW = ("lm1b", "multi_nli", "pg19", "race", "wiki40b")

# Modules of data sets that TFDS registers only once they are imported.
_COLLECTIONS = ("text", "summarization", "question_answering", "text_simplification", "translate")
_LOCAL_WAY = "or use text from a folder of your own: text:GLOB or jsonl:GLOB#FIELD"


@dataclass(frozen=True)
class TfdsSource:
    """One text field of one split of a prepared data set."""

    name: str  # name/config/version
    split: str
    field: str
    examples: Sequence[Any]

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.examples)

    def read(self, stretch: slice = slice(None)) -> Iterator[str]:
        """Consecutive documents."""
        for index in range(len(self))[stretch]:
            value = self.examples[index][self.field]
            yield value.decode("utf-8") if isinstance(value, bytes) else str(value)

    def describe(self) -> dict[str, Any]:
        """What identifies the corpus."""
        return {
            "kind": "tfds",
            "name": self.name,
            "split": self.split,
            "field": self.field,
            "documents": len(self.examples),
        }


def open_tfds(target: str, field: str | None = None) -> TfdsSource:
    """Opens `NAME[:VERSION][/CONFIG[:VERSION]][/SPLIT]`, preparing it first where that is possible.

    Args:
      target: the split is "train" if not given; TFDS' slices such as `train[:10%]` are understood.
      field: a text feature; None takes the only one, or the one called "text".

    Raises:
      InputError: no such data set, split or field; it has to be prepared elsewhere; there is no network.
    """
    name, *rest = target.split("/")
    asked = _Asked(f"source='tfds:{target}'", _LOCAL_WAY)
    configs = _builder_class(name, asked).builder_configs
    config = rest.pop(0) if rest and rest[0].partition(":")[0] in configs else None
    if len(rest) > 1 or (rest and not rest[0]):
        known = f"its configs are {', '.join(sorted(configs)[:20])}" if configs else "it has no configs"
        raise InputError(f"source='tfds:{target}' must be tfds:NAME[/CONFIG][/SPLIT]; {known}")
    split = rest[0] if rest else "train"
    full_name = name if config is None else f"{name}/{config}"
    builder = _builder(full_name, None, asked)
    if not builder.is_prepared():
        _prepare(builder, full_name, asked)
    field = _choose_field(builder.info.features, target, field)
    splits = sorted(builder.info.splits)
    if any(name.partition("[")[0] not in splits for name in split.split("+")):
        raise InputError(f"source='tfds:{target}': no split {split!r}; there are {', '.join(splits)}")
    try:
        examples = builder.as_data_source(split=split)
    except ValueError as error:
        raise InputError(f"source='tfds:{target}': split {split!r} cannot be read: {error}") from None
    return TfdsSource(builder.info.full_name, split, field, examples)


def open_split(
    full_name: str, split: str, *, asked: str, otherwise: str, data_dir: str | None = None
) -> tuple[Any, Sequence[Any]]:
    """Opens a split with all its fields, preparing the data set first where that is possible.

    Args:
      full_name: NAME or NAME/CONFIG.
      split: one of its splits.
      asked: how messages name what the user asked for.
      otherwise: what the user can do without TFDS, as the end of a sentence: "or ...".
      data_dir: TFDS' folder of data sets; None is $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Returns:
      its features, and its examples: dicts of NumPy values.

    Raises:
      InputError: no such data set or split; it has to be prepared elsewhere; there is no network.
    """
    words = _Asked(asked, otherwise)
    builder = _builder(full_name, data_dir, words)
    # Read before anything is prepared: `tfds.testing.mock_data` answers here, and its data sets never are.
    for prepared in (False, True):
        try:
            return builder.info.features, builder.as_data_source(split=split)
        except (AssertionError, KeyError, NotImplementedError, ValueError) as error:
            if prepared or builder.is_prepared():
                raise InputError(f"{asked}: {full_name} has no split {split!r} that can be read: {error}") from None
        _prepare(builder, full_name, words)
    raise AssertionError("the second attempt returns or raises")


def is_prepared(full_name: str, data_dir: str | None = None) -> bool:
    """Whether a data set can be read without any preparation."""
    return bool(_builder(full_name, data_dir, _Asked(f"tfds:{full_name}", _LOCAL_WAY)).is_prepared())


@dataclass(frozen=True)
class _Asked:
    """What the user asked for, as messages name it, and what else could be done."""

    what: str
    otherwise: str


def _builder(full_name: str, data_dir: str | None, asked: _Asked) -> Any:
    """The data set's builder for files of random access."""
    import tensorflow_datasets as tfds

    _builder_class(full_name.partition("/")[0], asked)
    if data_dir is not None and not Path(data_dir).is_dir():
        raise InputError(f"{asked.what}: {data_dir} is no folder; it is TFDS' folder of data sets")
    try:
        return tfds.builder(full_name, file_format="array_record", data_dir=data_dir)
    except ImportError as error:
        raise InputError(
            f"{asked.what}: cannot even be opened without TensorFlow ({error}); {asked.otherwise}"
        ) from None
    except (ValueError, AssertionError) as error:  # another version or file format is there
        raise InputError(
            f"{asked.what}: cannot be opened ({error}). It has to be in the format array_record: prepare it again "
            f"(tfds build {full_name} --file_format=array_record), convert it (tfds convert_format), {asked.otherwise}"
        ) from None


def _builder_class(name: str, asked: _Asked) -> Any:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    name = name.partition(":")[0]
    if not name.isidentifier():
        raise InputError(f"{asked.what}: {name!r} is no name of a data set; give tfds:NAME[/CONFIG][/SPLIT][#FIELD]")
    try:
        return tfds.builder_cls(name)
    except DatasetNotFoundError:
        pass
    for collection in _COLLECTIONS:
        module = f"tensorflow_datasets.{collection}.{name}"
        try:
            importlib.import_module(module)
            return tfds.builder_cls(name)
        except DatasetNotFoundError:
            continue
        except ModuleNotFoundError as error:
            if error.name != module:
                raise InputError(
                    f"{asked.what}: cannot be read without the module {error.name}; {asked.otherwise}"
                ) from None
    close = difflib.get_close_matches(name, set(tfds.list_builders(with_community_datasets=False)), n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else "; see tensorflow.org/datasets/catalog"
    raise InputError(f"{asked.what}: TensorFlow Datasets has no such data set{hint}")


def _prepare(builder: Any, full_name: str, asked: _Asked) -> None:
    """Downloads and prepares a data set in TFDS' own folder."""
    if builder.name in NEEDS_TENSORFLOW:
        raise InputError(f"{asked.what}: is not prepared. {_elsewhere(builder, full_name, asked)}")
    if not _online():
        raise InputError(
            f"{asked.what}: is not prepared in {_data_dir(builder)}, and there is no network to "
            f"download it. Prepare it on a machine with network (tfds build {full_name} --file_format=array_record), "
            f"copy the folder {builder.name} and set TFDS_DATA_DIR to the folder it is in, {asked.otherwise}"
        )
    logging.info("tfds: downloading and preparing %s in %s", full_name, builder.data_path)
    try:
        builder.download_and_prepare(file_format="array_record")
    except ModuleNotFoundError as error:
        # TFDS may raise it anew with a longer message, and then without the module's name.
        if not any(f"'{module}" in str(error) for module in ("tensorflow", "apache_beam")):
            raise
        raise InputError(f"{asked.what}: is not prepared. {_elsewhere(builder, full_name, asked)}") from None
    except Exception as error:  # downloads fail in many ways; all of them end here, with their own words
        raise InputError(
            f"{asked.what}: could not be downloaded and prepared ({type(error).__name__}: {error}). Try "
            f"again, or prepare it on another machine (tfds build {full_name} --file_format=array_record), copy the "
            f"folder {builder.name} and set TFDS_DATA_DIR to the folder it is in, {asked.otherwise}"
        ) from error


def _elsewhere(builder: Any, full_name: str, asked: _Asked) -> str:
    return (
        "Preparing it needs TensorFlow (reading it does not). Once, on a machine with TensorFlow: `pip install "
        f"tensorflow tensorflow-datasets apache-beam`, `tfds build {full_name} --file_format=array_record "
        f"--data_dir=DIR`. Then copy DIR/{builder.name} here and set TFDS_DATA_DIR=DIR (now it is "
        f"{_data_dir(builder)}), {asked.otherwise}"
    )


def _data_dir(builder: Any) -> Any:
    """The folder of all data sets: that of this one is NAME/CONFIG/VERSION or NAME/VERSION in it."""
    return builder.data_path.parents[2 if builder.builder_config else 1]


def _online() -> bool:
    """Whether names can be resolved (or a proxy does it): downloads would otherwise retry for many minutes."""
    if urllib.request.getproxies():
        return True
    for host in ("storage.googleapis.com", "github.com"):
        try:
            socket.getaddrinfo(host, 443)
            return True
        except OSError:
            continue
    return False


def _choose_field(features: Any, target: str, field: str | None) -> str:
    from tensorflow_datasets.core.features import Text

    texts = sorted(name for name, feature in features.items() if isinstance(feature, Text))
    if field is None and "text" in texts:
        return "text"
    if field is None and len(texts) == 1:
        return texts[0]
    if field is None:
        raise InputError(
            f"source='tfds:{target}': which text? Add #FIELD, one of {', '.join(texts) or 'none (no text here)'}"
        )
    if field not in texts:
        raise InputError(
            f"source='tfds:{target}#{field}': no text field {field!r}; there are {', '.join(texts) or 'none'}"
        )
    return field
