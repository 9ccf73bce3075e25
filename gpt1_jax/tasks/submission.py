"""Files for benchmark servers, which keep the labels of their test sets: one TSV per test set, GLUE's in one zip.

A file has a header and one line per example, `index<TAB>prediction`, each ended by LF, in the order of the index. A
prediction is a class's word or a score with six decimals. `ROCStories.tsv` is what the official code of the paper
writes for the Story Cloze Test: the example's row, and 0 or 1 for its first or second ending.

A run leaves its files in `submission/` of its workdir (`write`); `write_glue_zip` puts those of several runs together.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import logging

from gpt1_jax.errors import InputError, quoted
from gpt1_jax.files import first_missing, make_directory, similar, write_atomically
from gpt1_jax.tasks.predictions import Prediction, read_predictions
from gpt1_jax.tasks.spec import TaskSpec

FOLDER = "submission"
HEADER = ("index", "prediction")

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_SCORE = ()


class GlueFile(NamedTuple):
    """A file of a GLUE submission.

    Attributes:
      n_rows: examples in the official test set.
      words: what a prediction may be; none: a number.
    """

    n_rows: int
    words: tuple[str, ...]


GLUE_FILES: Mapping[str, GlueFile] = {
    "CoLA.tsv": GlueFile(1_063, _BINARY),
    "SST-2.tsv": GlueFile(1_821, _BINARY),
    "MRPC.tsv": GlueFile(1_725, _BINARY),
    "STS-B.tsv": GlueFile(1_379, _SCORE),
    "QQP.tsv": GlueFile(390_965, _BINARY),
    "MNLI-m.tsv": GlueFile(9_796, _NLI),
    "MNLI-mm.tsv": GlueFile(9_847, _NLI),
    "QNLI.tsv": GlueFile(5_463, _ENTAILMENT),
    "RTE.tsv": GlueFile(3_000, _ENTAILMENT),
    "WNLI.tsv": GlueFile(146, _BINARY),
    "AX.tsv": GlueFile(1_104, _NLI),
}
"""The server takes all of them or none; AX is the diagnostic set, labelled by the MNLI model."""


def write(spec: TaskSpec, workdir: str | os.PathLike[str]) -> list[Path]:
    """Writes a task's submission files from the predictions in a workdir.

    Args:
      spec: the task.
      workdir: has `predictions/<split>.jsonl`; gets `submission/<file>` for each such split that
        `spec.submission.files` names.

    Returns:
      the files; none for a task without a submission.

    Raises:
      InputError: predictions are damaged or do not fit the task.
    """
    workdir = Path(workdir)
    paths = []
    for split, name in spec.submission.files.items() if spec.submission is not None else ():
        source = workdir / "predictions" / f"{split}.jsonl"
        if not source.exists():
            logging.info("submission: no predictions for split %r, so no %s", split, name)
            continue
        content = render(spec, read_predictions(source), str(source))
        path = workdir / FOLDER / name
        make_directory(path.parent, "workdir")
        write_atomically(path, content)
        paths.append(path)
    return paths


def render(spec: TaskSpec, predictions: Sequence[Prediction], where: str = "predictions") -> bytes:
    """The content of a submission file.

    A score outside `spec.score_range` is set to the end of the range, which the log counts.

    Args:
      spec: a task with a `submission`.
      predictions: of one split, in any order if the index is the examples' id.
      where: what they are called in messages.

    Raises:
      InputError: the task has no submission, an id is no whole number or occurs twice, a label is not the task's, or
        there is none or no score.
    """
    submission = spec.submission
    if submission is None:
        raise InputError(f"task {spec.name!r} has no submission file; its predictions are in predictions/")
    if submission.index == "row":
        rows = list(enumerate(predictions))
    else:
        rows = sorted(((_index(prediction, where), prediction) for prediction in predictions), key=lambda row: row[0])
        if twice := [a for (a, _), (b, _) in itertools.pairwise(rows) if a == b]:
            raise InputError(f"{where}: index {twice[0]} occurs twice; a submission has one line for each example")
    if submission.labels:
        words = dict(zip(spec.labels or (), submission.labels, strict=True))
        texts = [_word(prediction, words, where) for _, prediction in rows]
    else:
        texts = _scores(spec, [prediction for _, prediction in rows], where)
    cells = [HEADER, *((str(index), text) for (index, _), text in zip(rows, texts, strict=True))]
    return "".join(f"{first}\t{second}\n" for first, second in cells).encode("utf-8")


def write_glue_zip(
    sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str], *, fill_missing: bool = False
) -> dict[str, Path | None]:
    """Puts the submission files of several runs into the zip that GLUE's server takes.

    Files are checked before anything is written: names, header, index 0..N-1 with the official N, words. The same
    files give the same zip, byte by byte.

    Args:
      sources: workdirs with a `submission/` folder, or single `.tsv` files.
      target: ends in `.zip`.
      fill_missing: adds a file of one constant prediction, the first word or 0, for each that is missing, because
        the server takes nothing less than all. What it then shows for such a task, and its average, means nothing.

    Returns:
      file to where it came from; None for a constant one. A missing file is not in it, and the log warns.

    Raises:
      InputError: a source has no such files, two have the same, or one is not what the server takes.
    """
    target = Path(target)
    if target.suffix != ".zip":
        raise InputError(f"target={str(target)!r}: a submission is written as .zip; change the suffix")
    if not sources:
        raise InputError("runs: none given; name the workdirs of finished runs, or .tsv files")
    found: dict[str, Path] = {}
    for path in (path for source in sources for path in _files_of(Path(source))):
        if path.name in found:
            raise InputError(f"{path}: {found[path.name]} is the same file of a submission; give one of the two")
        found[path.name] = path
    contents = {name: _checked(path, GLUE_FILES[name]) for name, path in found.items()}
    missing = [name for name in GLUE_FILES if name not in contents]
    if missing and fill_missing:
        contents |= {name: _constant(GLUE_FILES[name]) for name in missing}
        logging.warning("%s: constant predictions, no results of any model, in %s", target, ", ".join(missing))
    elif missing:
        logging.warning(
            "%s: %s missing; GLUE's server takes all %d files only (fill_missing adds constant predictions)",
            target,
            ", ".join(missing),
            len(GLUE_FILES),
        )
    make_directory(target.parent, "target")
    write_atomically(target, _zip({name: contents[name] for name in GLUE_FILES if name in contents}))
    return {name: found.get(name) for name in GLUE_FILES if name in contents}


def _index(prediction: Prediction, where: str) -> int:
    if not (prediction.id.isascii() and prediction.id.isdecimal()):
        raise InputError(
            f"{where}: id {prediction.id!r}: a submission's index is a whole number; read the official files with "
            "their index column as the id"
        )
    return int(prediction.id)


def _word(prediction: Prediction, words: Mapping[str, str], where: str) -> str:
    if prediction.label is None or prediction.label not in words:
        raise InputError(f"{where}: id {prediction.id!r}: label {prediction.label!r} is not one of {quoted(words)}")
    return words[prediction.label]


def _scores(spec: TaskSpec, predictions: Sequence[Prediction], where: str) -> list[str]:
    low, high = spec.score_range or (-math.inf, math.inf)
    scores = []
    for prediction in predictions:
        if prediction.score is None:
            raise InputError(
                f"{where}: id {prediction.id!r} has a label, no score; the submission of {spec.name} has scores"
            )
        scores.append(prediction.score)
    outside = sum(not low <= score <= high for score in scores)
    if outside:
        logging.info("%s: %d of %d scores set to the end of %g..%g", where, outside, len(predictions), low, high)
    return [f"{min(max(score, low), high):.6f}" for score in scores]


def _files_of(source: Path) -> list[Path]:
    """The submission files of a workdir, or the one file itself."""
    if not source.exists():
        missing = first_missing(source)
        close = similar(missing, folder=missing != source or not source.suffix)
        meant = "".join(f"; did you mean {path}?" for path in close)
        raise InputError(f"{source}: neither a workdir nor a .tsv file; {missing} does not exist{meant}")
    paths = sorted((source / FOLDER).glob("*.tsv")) if source.is_dir() else [source]
    if not paths:
        runs = sorted(folder.parent for folder in source.glob(f"**/{FOLDER}"))
        hint = "a fine-tuning run on a GLUE task with its test split leaves them there"
        if runs:
            hint = f"give one of the runs in it, such as {runs[0]}"
        raise InputError(f"{source}: has no {FOLDER}/*.tsv; {hint}")
    for path in paths:
        if path.name not in GLUE_FILES:
            raise InputError(f"{path}: is not a file of a GLUE submission, which are {', '.join(GLUE_FILES)}")
    return paths


def _checked(path: Path, expected: GlueFile) -> bytes:
    """The content of a file, once it is clear that the server would take it."""
    content = path.read_bytes()
    try:
        lines = content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8; write it again") from None
    if lines[0] != "\t".join(HEADER):
        raise InputError(f"{path}:1: {lines[0]!r:.60}: the header is {HEADER[0]!r}, a tab, {HEADER[1]!r}")
    if len(lines) - 1 != expected.n_rows:
        raise InputError(
            f"{path}: {len(lines) - 1} rows, GLUE's test set has {expected.n_rows}; predict the whole official file"
        )
    for i, line in enumerate(lines[1:]):
        index, tab, prediction = line.partition("\t")
        if index != str(i) or not tab:
            raise InputError(f"{path}:{i + 2}: {line!r:.60}: index {i} and a tab are expected")
        if not (prediction in expected.words if expected.words else _is_number(prediction)):
            allowed = quoted(expected.words) if expected.words else "a number"
            raise InputError(f"{path}:{i + 2}: prediction {prediction!r:.60}: allowed is {allowed}")
    return content


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _constant(expected: GlueFile) -> bytes:
    word = expected.words[0] if expected.words else "0.000000"
    return ("\t".join(HEADER) + "\n" + "".join(f"{i}\t{word}\n" for i in range(expected.n_rows))).encode("utf-8")


def _zip(contents: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            info = zipfile.ZipInfo(name)  # dated 1980: equal files make equal zips
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return file.getvalue()
