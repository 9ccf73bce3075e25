"""Story Cloze Test (ROCStories): which of two endings belongs to a story of four sentences.

Files, as the authors send them (https://cs.rochester.edu/nlp/rocstories); what follows the release may differ::

    cloze_test_val__spring2016 - cloze_test_ALL_val.csv       1871 stories
    cloze_test_test__spring2016 - cloze_test_ALL_test.csv     1871 stories
    cloze_test_val__winter2018-cloze_test_ALL_val - 1 - 1.csv    1571 stories
    cloze_test_test__winter2018-cloze_test_ALL_test - 1.csv      1571 stories, no labels

There are no training stories with two endings. Like the official code of the paper we learn from the validation file,
of which 374 stories are set aside to choose the checkpoint: with spring2016 that is 1497 / 374 / 1871 for training,
validation and test, the paper's numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import logging

from gpt1_jax.data.tables import Row, read_rows
from gpt1_jax.errors import InputError
from gpt1_jax.tasks.spec import Source, Submission, TaskSpec

RELEASES = ("spring2016", "winter2018")
"""Best first: the paper's is spring2016."""

SIZES = {
    "spring2016": {"train": 1497, "validation": 374, "test": 1871},
    "winter2018": {"train": 1197, "validation": 374, "test": 1571},
}
HOMEPAGE = "https://cs.rochester.edu/nlp/rocstories"

N_VALIDATION = 374
SPLIT_SEED = 3535999445
"""Of the official code: with them both sides of the split have the very same stories, in the same order."""

_PARTS = ("train", "validation")
_FILE = re.compile(rf"cloze_test_(val|test)__({'|'.join(RELEASES)})(?: ?- ?cloze_test_ALL_\1.*)?\.csv")


def make_spec(data: str) -> TaskSpec:
    """The task.

    Args:
      data: the folder with the files of a release.

    Raises:
      InputError: the folder does not have them.
    """
    release, files = _find(data)
    official = {split: Source((files["val"],), reader="story_cloze", options={"part": split}) for split in _PARTS}
    return TaskSpec(
        name="story_cloze",
        kind="multiple_choice",
        sources={**official, "test": Source((files["test"],), labelled=release != "winter2018")},
        fields={
            "context": tuple(f"InputSentence{i}" for i in range(1, 5)),
            "answers": ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
        },
        label="AnswerRightEnding",
        labels=("1", "2"),
        metrics=("accuracy",),
        id="InputStoryid",
        sizes={release: SIZES[release]},
        submission=Submission({"test": "ROCStories.tsv"}, labels=("0", "1"), index="row"),
        paper={"test": {"accuracy": 86.5}} if release == "spring2016" else {},
        homepage=HOMEPAGE,
    )


def read_part(source: Source, columns: tuple[str, ...]) -> Iterator[Row]:
    """The rows of one side of the official split, in its order.

    It is scikit-learn's `train_test_split(..., test_size=374, random_state=3535999445)`: the first rows of a
    permutation are set aside, and the others are what is learned from.

    Raises:
      InputError: as `read_rows`; and for a file of 374 rows or fewer.
    """
    rows = list(read_rows(source.paths, columns=columns))
    if len(rows) <= N_VALIDATION:
        raise InputError(
            f"{source.paths[0]}: {len(rows)} stories; there must be more than the {N_VALIDATION} that are set aside"
        )
    order = np.random.RandomState(SPLIT_SEED).permutation(len(rows))
    part = order[:N_VALIDATION] if source.options["part"] == "validation" else order[N_VALIDATION:]
    return (rows[i] for i in part)


def _find(data: str) -> tuple[str, dict[str, str]]:
    """The release in a folder, and its files by "val" and "test"."""
    if data == "tfds":
        raise InputError(
            "task.data='tfds': TensorFlow Datasets reads Story Cloze from the very files that its authors send, and "
            "does not keep their order, which the official split needs; give the folder of the files instead"
        )
    folder = Path(data)
    if not data or not folder.is_dir():
        raise InputError(
            f"task.data={data!r} is no folder; give the one with the files of the Story Cloze Test, see {HOMEPAGE}"
        )
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    found: dict[str, dict[str, list[str]]] = {release: {"val": [], "test": []} for release in RELEASES}
    for name in names:
        if match := _FILE.fullmatch(name):
            found[match[2]][match[1]].append(name)
    whole = [release for release in RELEASES if all(found[release].values())]
    if not whole:
        raise InputError(
            f"task.data={data!r} needs two files, such as 'cloze_test_val__spring2016 - cloze_test_ALL_val.csv' and "
            f"'cloze_test_test__spring2016 - cloze_test_ALL_test.csv' (or those of winter2018); it has "
            f"{', '.join(map(repr, names[:20])) or 'no files'}"
        )
    for files in found[whole[0]].values():
        if len(files) > 1:
            raise InputError(
                f"task.data={data!r} has {', '.join(map(repr, files))}, of which one is meant; move the other"
            )
    if len(whole) > 1:
        logging.info("story_cloze: of the releases in %s, %s is used, the paper's", data, whole[0])
    return whole[0], {kind: str(folder / files[0]) for kind, files in found[whole[0]].items()}
