"""The step that is compiled ahead of time is the trainer's, with the trainer's arguments."""

import jax
import numpy as np
import pytest

from gpt1_jax import finetune, pretrain
from gpt1_jax.aot.programs import make_program
from gpt1_jax.config import from_config, to_config_dict
from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.labelled import train_batches
from gpt1_jax.data.windows import train_windows
from gpt1_jax.errors import InputError
from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.pretrain import PretrainConfig
from gpt1_jax.tasks.config import TASKS, TaskConfig
from gpt1_jax.tasks.readout import readout_without_data

SMALL = {"vocab_size": 380, "n_ctx": 32, "n_embd": 32, "n_head": 4, "n_layer": 2}


def shapes(tree):
    return jax.tree.map(lambda x: (np.shape(x), str(x.dtype)), tree)


def recorded(monkeypatch, workflow):
    """The arguments of each step that a workflow trains with."""
    real, seen = workflow.jit_step, []

    def jit_step(*args):
        optimizer, step = real(*args)

        def recording(state, batch, schedules):
            seen.append((shapes(state), shapes(batch), shapes(schedules)))
            return step(state, batch, schedules)

        return optimizer, recording

    monkeypatch.setattr(workflow, "jit_step", jit_step)
    return seen


class Stream:
    n_tokens = 1000

    def read(self, start, stop):
        return np.arange(start, stop, dtype=np.uint16)


def test_batches_of_pretraining(devices):
    program = make_program({"model": SMALL, "batch_size": 8}, devices)
    windows = train_windows(Stream(), n_ctx=32, batch_size=8, seed=0)
    assert shapes(program.arguments[1]) == shapes(windows[0])
    assert program.batch_shape == (8, 32)


@pytest.mark.parametrize(("mesh", "sharded"), [({}, True), ({"shard_optimizer": False}, False), ({"tensor": 4}, True)])
def test_whether_the_optimizer_is_sharded_is_resolved(devices, mesh, sharded):
    program = make_program({"model": SMALL, "batch_size": 8, "mesh": mesh}, devices)
    assert program.shard_optimizer is sharded


@pytest.mark.parametrize(("task", "n_choices", "labels"), [("race", 4, np.int32), ("stsb", 2, np.float64)])
def test_batches_of_tasks(devices, task, n_choices, labels):
    config = to_config_dict(FinetuneConfig(task=TaskConfig(name=task), batch_size=8))
    for name, value in SMALL.items():
        config.model[name] = value
    program = make_program(config, devices, length=16)
    starts = np.arange(10 * n_choices + 1)
    split = EncodedSplit(
        name="train",
        tokens=np.ones(16 * starts[-1], np.int32),
        stream_starts=16 * starts,
        example_starts=n_choices * np.arange(11),
        labels=np.zeros(10, labels),
        ids=tuple(map(str, range(10))),
        n_ctx=32,
        n_truncated=0,
        n_cut=0,
    )
    batches = train_batches(split, batch_size=8, seed=0, buckets=(16,))
    assert shapes(program.arguments[1]) == shapes(batches[0])
    assert program.batch_shape == (8, n_choices, 16)
    assert program.model.config.n_special == 3
    with pytest.raises(InputError, match="length=64 must be from 2 to n_ctx=32"):
        make_program(config, devices, length=64)


@pytest.mark.slow
def test_pretraining(monkeypatch, pretrain_settings, tmp_path, devices):
    config = pretrain_settings(n_steps=3, loop={"eval_every": 0, "save_every": 0}, heldout_fraction=0.0)
    seen = recorded(monkeypatch, pretrain)
    pretrain.run(config, tmp_path)
    program = make_program(config, devices)
    assert shapes(program.arguments) == seen[0]


@pytest.mark.slow
def test_finetuning(monkeypatch, corpus, pretrained, tmp_path, devices):
    config = {
        "task": {"train": [str(corpus / "validation.csv")], "validation_fraction": 0.0},
        "model": SMALL,
        "batch_size": 8,
        "epochs": 1,
        "buckets": (16, 32),
        "lm_coef": 0.0,
    }
    seen = recorded(monkeypatch, finetune)
    finetune.run(config, tmp_path, pretrained)
    program = make_program(config, devices, length=seen[0][1]["tokens"][0][-1])
    assert shapes(program.arguments) == seen[0]
    assert program.arguments[1]["tokens"].shape[:2] == (8, 1)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_a_step_without_its_data(name):
    readout = readout_without_data(TaskConfig(name=name))
    n_outputs = {"stsb": 6, "snli": 3, "mnli": 3, "story_cloze": 1, "race": 1, "race_middle": 1, "race_high": 1}
    assert readout.n_outputs == n_outputs.get(name, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 12}, "use a multiple of 8"),
        ({"mesh": {"data": 3}}, "does not fit 8 devices"),
        ({"mesh": {"tensor": 8}}, "use one of [1, 2, 4]"),
        ({"batch_size": 16, "accumulation_steps": 3}, "accumulation_steps=3"),
        ({"modell": {}}, "did you mean 'model'?"),
    ],
)
def test_refused_before_anything_is_compiled(changes, words, devices):
    with pytest.raises(InputError) as error:
        make_program({"model": SMALL, "batch_size": 8, **changes}, devices)
    assert words in str(error.value)


def test_length_is_for_tasks(devices):
    with pytest.raises(InputError, match="for the windows of pre-training"):
        make_program(from_config(PretrainConfig, {"model": SMALL}), devices, length=16)
