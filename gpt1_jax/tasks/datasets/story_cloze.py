"""Story Cloze Test (ROCStories): which of two endings belongs to a story of four sentences.

Files, as the authors send them (https://cs.rochester.edu/nlp/rocstories); what follows the release may differ::

    cloze_test_val__spring2016 - cloze_test_ALL_val.csv       1871 stories
    cloze_test_test__spring2016 - cloze_test_ALL_test.csv     1871 stories
    cloze_test_val__winter2018-cloze_test_ALL_val - 1 - 1.csv    1571 stories
    cloze_test_test__winter2018-cloze_test_ALL_test - 1.csv      1571 stories, no labels

There are no training stories with two endings. Like the official code of the paper we learn from the validation file,
of which 374 stories are set aside to choose the checkpoint: with spring2016, of which the paper's figure is, that is
1497 / 374 / 1871 for training, validation and test, the paper's numbers.

Not from TensorFlow Datasets: it needs the same files, and does not keep their order, which the official split goes by.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpt1_jax.data.tables import Row, read_rows
from gpt1_jax.errors import InputError
from gpt1_jax.tasks.datasets.official import DataSet, Layout
from gpt1_jax.tasks.spec import Source, Submission

N_VALIDATION = 374
SPLIT_SEED = 3535999445
"""Of the official code: with them both sides of the split have the very same stories, in the same order."""


def _release(name: str, unlabelled: tuple[str, ...] = ()) -> Layout:
    files = {"train": "val", "validation": "val", "test": "test"}
    return Layout(
        name=name,
        files={split: (f"cloze_test_{file}__{name}*.csv",) for split, file in files.items()},
        fields={
            "context": tuple(f"InputSentence{i}" for i in range(1, 5)),
            "answers": ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
        },
        label="AnswerRightEnding",
        reader="story_cloze",
        split_options={split: {"part": split} for split in files},
        unlabelled=unlabelled,
        ids=dict.fromkeys(files, "InputStoryid"),
        submits=True,
    )


STORY_CLOZE = DataSet(
    name="story_cloze",
    kind="multiple_choice",
    labels=("1", "2"),
    homepage="https://cs.rochester.edu/nlp/rocstories",
    layouts=(_release("spring2016"), _release("winter2018", unlabelled=("test",))),
    tfds=(),
    sizes={
        "spring2016": {"train": 1497, "validation": 374, "test": 1871},
        "winter2018": {"train": 1197, "validation": 374, "test": 1571},
    },
    submission=Submission({"test": "ROCStories.tsv"}, labels=("0", "1"), index="row"),
    paper={"test": {"accuracy": 86.5}},
)


def read_part(source: Source, columns: tuple[str, ...]) -> Iterator[Row]:
    """The rows of one side of the official split, in its order; of the test set all.

    It is scikit-learn's `train_test_split(..., test_size=374, random_state=3535999445)`: the first rows of a
    permutation are set aside, and the others are what is learned from.

    Raises:
      InputError: as `read_rows`; and for a file of 374 rows or fewer to be split.
    """
    part = source.options["part"]
    if part == "test":
        return read_rows(source.paths, columns=columns)
    rows = list(read_rows(source.paths, columns=columns))
    if len(rows) <= N_VALIDATION:
        raise InputError(
            f"{source.paths[0]}: {len(rows)} stories; there must be more than the {N_VALIDATION} that are set aside"
        )
    order = np.random.RandomState(SPLIT_SEED).permutation(len(rows))
    return (rows[i] for i in (order[:N_VALIDATION] if part == "validation" else order[N_VALIDATION:]))
