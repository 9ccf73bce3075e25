"""Which task a zero-shot heuristic is asked about: one that is named, the user's files, or that of a fine-tuned run."""

from __future__ import annotations

import dataclasses

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.config import TaskConfig, make_spec
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.tasks.zero_shot import Heuristic


def zero_shot_spec(
    heuristic: Heuristic,
    *,
    task: TaskConfig | None,
    own: TaskConfig | None,
    data: tuple[str, ...] = (),
    unlabelled: bool = False,
) -> TaskSpec:
    """The task of a heuristic.

    Args:
      heuristic: says what a custom task leaves out (fields, labels, metrics), and its kind.
      task: the task; None takes the run's own where that can be asked.
      own: the task that the model was fine-tuned on, if any.
      data: files, which become the split "test" and take the place of the task's.
      unlabelled: `data` have no labels.

    Raises:
      InputError: there is no task, `data` are given for a named data set, or the task's parts do not fit together.
    """
    given = task is not None
    if task is None:
        if data:
            task = own if own and own.name == "custom" and own.kind == heuristic.kind else TaskConfig()
        elif own:
            return make_spec(own)
        else:
            raise InputError(f"zero_shot={heuristic.name!r} is asked about labelled examples; give data, or a task")
    if data:
        if task.name != "custom":
            raise InputError(f"data={list(data)}: the files of task.name={task.name!r} are in task.data")
        task = dataclasses.replace(
            task,
            train=task.train if given or heuristic.by_threshold else (),  # a run's own are needed for a threshold only
            validation=(),
            test=data,
            unlabelled=("test",) if unlabelled else (),
            validation_fraction=0.0,
            test_fraction=0.0,
        )
    if task.name == "custom":
        task = dataclasses.replace(
            task,
            kind=heuristic.kind,
            fields=task.fields | {f: c for f, c in heuristic.columns.items() if not task.fields.get(f)},
            labels=task.labels or heuristic.labels,
            metrics=task.metrics or heuristic.metrics,
        )
    return make_spec(task)
