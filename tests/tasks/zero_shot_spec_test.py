"""Which task is asked, of the one that is given, the run's own, and files alone."""

import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.config import TaskConfig
from gpt1_jax.tasks.zero_shot import ZERO_SHOT, prompt
from gpt1_jax.tasks.zero_shot_spec import zero_shot_spec

SST2, COLA, WINOGRAD = (ZERO_SHOT[name] for name in ("sst2", "cola", "winograd"))
OWN = TaskConfig(
    train=("train.csv",), validation=("dev.csv",), fields={"text": "review"}, labels=("bad", "good"), metrics=("f1",)
)
DATA = ("new.csv",)


def test_a_run_is_asked_about_its_own_task_as_it_is():
    spec = zero_shot_spec(SST2, task=None, own=OWN)
    assert (spec.splits, spec.labels, spec.metrics) == (("train", "validation"), ("bad", "good"), ("f1",))
    # The heuristic is of another kind: what that means is for the caller to say.
    assert zero_shot_spec(WINOGRAD, task=None, own=OWN).kind == "classification"


def test_files_take_the_place_of_a_run_s_own():
    spec = zero_shot_spec(SST2, task=None, own=OWN, data=DATA)
    assert (spec.splits, spec.sources["test"].paths) == (("test",), DATA)
    assert (spec.fields["text"], spec.labels, spec.metrics) == ("review", ("bad", "good"), ("f1",))


def test_training_files_stay_where_a_threshold_or_the_user_wants_them():
    assert zero_shot_spec(COLA, task=None, own=OWN, data=DATA).splits == ("train", "test")
    assert zero_shot_spec(SST2, task=OWN, own=None, data=DATA).splits == ("train", "test")


@pytest.mark.parametrize("own", [None, OWN, TaskConfig(name="race", data="folder")])
def test_files_alone_are_read_as_the_heuristic_says(own):
    spec = zero_shot_spec(WINOGRAD, task=None, own=own, data=DATA)
    assert (spec.kind, spec.labels, spec.metrics) == ("multiple_choice", ("0", "1"), ("accuracy",))
    assert (spec.fields["context"], spec.fields["answers"]) == ("text", "options")


def test_a_task_that_is_given_comes_first():
    task = TaskConfig(test=DATA, fields={"context": "story"}, labels=("A", "B"))
    spec = zero_shot_spec(WINOGRAD, task=task, own=OWN)
    assert (spec.kind, spec.labels) == ("multiple_choice", ("A", "B"))
    assert (spec.fields["context"], spec.fields["answers"]) == ("story", "options")


def test_without_anything_to_ask_about():
    with pytest.raises(InputError, match=r"zero_shot='prompt' .* give data, or a task"):
        zero_shot_spec(prompt("{text} It was {label}"), task=None, own=None)
    with pytest.raises(InputError, match=r"data=\['new.csv'\]: the files of task.name='sst2' are in task.data"):
        zero_shot_spec(SST2, task=TaskConfig(name="sst2"), own=None, data=DATA)
