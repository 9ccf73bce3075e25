"""Data sets that lie in a folder as their authors publish them, or come from TensorFlow Datasets.

A `DataSet` says what never changes about a task, a `Layout` how its files look in one of the forms in which they are
handed out, and `make_spec` finds out which of them a folder has. A split whose files are not there is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from absl import logging

from gpt1_jax.data import tfds_source
from gpt1_jax.data.tables import Row
from gpt1_jax.errors import InputError
from gpt1_jax.files import first_missing, similar
from gpt1_jax.tasks.spec import Kind, Source, Submission, TaskSpec

NO_QUOTES: Mapping[str, Any] = {"quoting": "none"}
"""How nearly all of these tables are read: a row is a line, and quotes belong to the text."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """One form of a data set's files.

    Attributes:
      name: how messages and the log call it.
      files: split to its files, all of which are needed; `*` in a name stands for what differs between copies.
      extra: further split to the names that its one file may have; it need not be there.
      fields: see `TaskSpec`.
      label: the label's column.
      folders: where in the folder given the files may be, beside the folder itself.
      of_folders: `files` are folders, whose files the reader finds.
      options: for the reader of every split.
      split_options: for the reader of one split, instead of `options`.
      unlabelled: splits without labels.
      ids: split to the column of its identifiers.
      renames: see `Source`.
      reader: see `Source`.
      held_out: see `TaskSpec`; for a form that has no validation split.
      submits: whether predictions of its test splits may be sent in: its `ids` are the server's.
    """

    name: str
    files: Mapping[str, tuple[str, ...]]
    fields: Mapping[str, str | tuple[str, ...]]
    label: str
    folders: tuple[str, ...] = ()
    of_folders: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    split_options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    unlabelled: tuple[str, ...] = ()
    ids: Mapping[str, str] = dataclasses.field(default_factory=dict)
    renames: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reader: str = "table"
    held_out: Mapping[str, float] = dataclasses.field(default_factory=dict)
    submits: bool = False
    extra: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DataSet:
    """What is the same in all forms of a data set; for the attributes see `TaskSpec`.

    Attributes:
      layouts: forms of the official files; the one that has most splits is taken, the first of several.
      tfds: what TensorFlow Datasets has: `files` are NAME[/CONFIG]/SPLIT. Of several the first one that is prepared is
        taken, or else the first; none: it has to be a folder.
      instead: the end of the message about a split of which some files are not there: what else one may do.
    """

    name: str
    kind: Kind
    layouts: tuple[Layout, ...]
    tfds: tuple[Layout, ...]
    homepage: str
    metrics: tuple[str, ...] = ("accuracy",)
    labels: tuple[str, ...] | None = None
    score_range: tuple[float, float] | None = None
    drop_labels: tuple[str, ...] = ()
    sizes: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    submission: Submission | None = None
    paper: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    instead: str = ""


def make_spec(data_set: DataSet, data: str) -> TaskSpec:
    """The task, with the splits that are there.

    Official rows are all kept: an empty text is counted and logged, not refused.

    Args:
      data_set: what it is.
      data: a folder, "tfds", or "tfds:DIR" with TFDS' own folder of data sets.

    Raises:
      InputError: nothing is given, or there are no such files; the message says where to get them.
    """
    layout, sources = _from_tfds(data_set, data) if _is_tfds(data) else _from_folder(data_set, data)
    return TaskSpec(
        name=data_set.name,
        kind=data_set.kind,
        sources=sources,
        fields=layout.fields,
        label=layout.label,
        labels=data_set.labels,
        metrics=data_set.metrics,
        held_out=layout.held_out if "train" in sources else {},
        drop_labels=data_set.drop_labels,
        allow_empty=True,
        score_range=data_set.score_range,
        sizes=data_set.sizes,
        submission=data_set.submission if layout.submits else None,
        paper=data_set.paper,
        homepage=data_set.homepage,
    )


def _from_folder(data_set: DataSet, data: str) -> tuple[Layout, dict[str, Source]]:
    ways = _where_to_get(data_set.homepage, in_tfds=bool(data_set.tfds))
    folder = _check_folder(data_set.name, data, ways)
    candidates = [
        _Files.find(layout, place)
        for layout in data_set.layouts
        for place in (folder, *(folder / name for name in layout.folders))
    ]
    best = max(candidates, key=lambda files: len(files.complete))
    for files in [best] if best.complete else candidates:
        files.refuse_halves(data_set)
    if not best.complete:
        raise _missing_files(data_set, folder, ways)
    layout, found = best.layout, dict(best.complete)
    for split, names in layout.extra.items():
        if there := [best.folder / name for name in names if (best.folder / name).is_file()]:
            found[split] = (str(there[0]),)
    logging.info(
        "task %s: the %s files in %s, splits %s%s",
        *(data_set.name, layout.name, best.folder, ", ".join(found)),
        "".join(f"; absent: {split} ({', '.join(names)})" for split, names in best.absent.items()),
    )
    return layout, _sources(layout, found, {})


def _check_folder(name: str, data: str, ways: str) -> Path:
    """Returns `data` as a folder, or refuses it with what is meant or how to get it."""
    if not data:
        raise InputError(f"task.data is empty: {name} needs a folder with its official files. {ways}")
    folder = Path(data)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        near = [] if folder.exists() else similar(first_missing(folder), folder=True)
        hint = "".join(f" Did you mean {path}?" for path in near)
        raise InputError(f"task.data={data!r} {what}; {name} needs a folder with its official files.{hint} {ways}")
    return folder


def _where_to_get(homepage: str, *, in_tfds: bool) -> str:
    """The end of a message about official files that are not there."""
    otherwise = ", or say task.data=tfds to have them from TensorFlow Datasets" if in_tfds else ""
    return f"Get the official files from {homepage}{otherwise}"


def _missing_files(data_set: DataSet, folder: Path, ways: str) -> InputError:
    """The error for a folder without the files of a data set."""
    forms = " or ".join(
        f"{', '.join(dict.fromkeys(name for names in layout.files.values() for name in names))} ({layout.name})"
        for layout in data_set.layouts
    )
    places = ", ".join(dict.fromkeys(name for layout in data_set.layouts for name in layout.folders))
    expected = forms + (f", in the folder itself or in {places}" if places else "")
    there = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir())
    listed = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    return InputError(
        f"task.data={str(folder)!r} has no files of {data_set.name}: expected {expected}. It has "
        f"{listed or 'nothing'}. {ways}"
    )


@dataclasses.dataclass(frozen=True)
class _Files:
    """What a folder has of a layout: for each split its files' names, each with the path, or None if it is absent."""

    layout: Layout
    folder: Path
    splits: Mapping[str, Mapping[str, Path | None]]

    @classmethod
    def find(cls, layout: Layout, folder: Path) -> Self:
        def path_of(name: str) -> Path | None:
            paths = [path for path in sorted(folder.glob(name)) if path.is_dir() == layout.of_folders]
            if len(paths) > 1:
                raise InputError(f"{', '.join(map(str, paths))}: one of them is meant; move the others elsewhere")
            return paths[0] if paths else None

        return cls(
            layout, folder, {split: {name: path_of(name) for name in names} for split, names in layout.files.items()}
        )

    @property
    def complete(self) -> dict[str, tuple[str, ...]]:
        """The splits all of whose files are there, with their paths."""
        return {split: tuple(map(str, files.values())) for split, files in self.splits.items() if all(files.values())}

    @property
    def absent(self) -> dict[str, list[str]]:
        """The other splits, with the names of the files that are not there."""
        return {
            split: [name for name, path in files.items() if path is None]
            for split, files in self.splits.items()
            if not all(files.values())
        }

    def refuse_halves(self, data_set: DataSet) -> None:
        """Refuses a split of which some files are there and others are not."""
        for split, names in self.absent.items():
            there = [path for path in self.splits[split].values() if path is not None]
            if there:
                raise InputError(
                    f"{self.folder / names[0]}: no such {'folder' if self.layout.of_folders else 'file'}, though "
                    f"{there[0]} is there; the {split} split of {data_set.name} is both: add the one, or move the "
                    f"other away to go without this split{data_set.instead}"
                )


def _is_tfds(data: str) -> bool:
    return data == "tfds" or data.startswith("tfds:")


def _from_tfds(data_set: DataSet, data: str) -> tuple[Layout, dict[str, Source]]:
    if not data_set.tfds:
        ways = _where_to_get(data_set.homepage, in_tfds=False)
        raise InputError(f"task.data={data!r}: {data_set.name} is read from a folder only. {ways}")
    data_dir = data.removeprefix("tfds").removeprefix(":") or None
    layout = data_set.tfds[0]
    if len(data_set.tfds) > 1:
        ready = (
            layout
            for layout in data_set.tfds
            if tfds_source.is_prepared(layout.files["train"][0].rpartition("/")[0], data_dir)
        )
        layout = next(ready, layout)
    logging.info("task %s: %s, splits %s", data_set.name, layout.name, ", ".join(layout.files))
    options = {"data": data, "data_dir": data_dir, "homepage": data_set.homepage}
    return layout, _sources(layout, layout.files, options)


def _sources(layout: Layout, found: Mapping[str, tuple[str, ...]], options: Mapping[str, Any]) -> dict[str, Source]:
    return {
        split: Source(
            paths,
            labelled=split not in layout.unlabelled,
            reader=layout.reader,
            options={**layout.split_options.get(split, layout.options), **options},
            id=layout.ids.get(split),
            renames=layout.renames,
        )
        for split, paths in found.items()
    }


def read_tfds(source: Source, columns: tuple[str, ...]) -> Iterator[Row]:
    """Reads splits of TensorFlow Datasets: texts as strings, classes by name (-1 where unknown), lists as lists.

    Raises:
      InputError: a split cannot be had, or a column is not in it.
    """
    options = source.options
    for path in source.paths:
        name, _, split = path.rpartition("/")
        features, examples = tfds_source.open_split(
            name,
            split,
            asked=f"task.data={options['data']!r} ({name})",
            otherwise=f"or give the folder with the official files (from {options['homepage']}) as task.data",
            data_dir=options["data_dir"],
        )
        missing = [column for column in columns if column not in features]
        if missing:
            raise InputError(f"tfds:{path}: no column {missing[0]!r}; there are {', '.join(features)}")
        for i in range(len(examples)):
            example, where = examples[i], f"tfds:{path}:{i + 1}"
            try:
                values = {column: _plain(example[column], features[column]) for column in columns}
            except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise InputError(f"{where}: is not as TFDS describes it ({error!r}); prepare it again") from None
            yield Row(f"tfds:{path}", i + 1, values)


def _plain(value: Any, feature: Any) -> Any:
    """A NumPy value as a Python one."""
    names = getattr(feature, "names", None)
    if names is not None:
        return names[int(value)] if int(value) >= 0 else str(int(value))
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [_plain(item, None) for item in value]
    if getattr(feature, "np_dtype", None) == np.float32:
        return float(str(np.float32(value)))  # 3.8 stays 3.8
    return value.item() if isinstance(value, np.generic | np.ndarray) else value
