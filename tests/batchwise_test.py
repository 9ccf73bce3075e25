"""Many batches, one after the other: each once, in order, given to the devices ahead of time."""

import types

import jax
import numpy as np
import pytest

from gpt1_jax import batchwise
from gpt1_jax.batchwise import MAX_AHEAD, outputs_of
from gpt1_jax.sharding import MeshConfig, make_mesh
from gpt1_jax.stop import Interrupted


@pytest.fixture
def mesh():
    mesh = make_mesh(MeshConfig(data=1), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        yield mesh


class Batches:
    """Batches that note which were made."""

    def __init__(self, n):
        self.n, self.made = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.made.append(i)
        return {"x": np.full((2,), i)}


@pytest.mark.parametrize("n", [1, MAX_AHEAD, 3 * MAX_AHEAD])
def test_all_outputs_in_order_and_later_batches_before_the_first_output(mesh, n):
    batches = Batches(n)
    outputs = outputs_of(lambda params, batch: params * batch["x"], 10, batches, mesh, label="test")
    assert next(outputs).tolist() == [0, 0]
    assert batches.made == list(range(min(n, MAX_AHEAD + 1)))
    assert [output.tolist() for output in outputs] == [[10 * i] * 2 for i in range(1, n)]
    assert batches.made == list(range(n))


def test_it_stops_between_two_batches(mesh, monkeypatch):
    asked = []

    def stop_at_the_third(given):
        asked.append(given)
        if len(asked) == 3:
            raise Interrupted(15)

    monkeypatch.setattr(batchwise, "raise_if_stopped", stop_at_the_third)
    batches = Batches(9)
    with pytest.raises(Interrupted):
        list(outputs_of(lambda params, batch: batch["x"], None, batches, mesh, label="test"))
    assert batches.made == [0, 1]
    assert asked == [mesh] * 3


def test_what_takes_long_tells_how_far_it_is(mesh, monkeypatch, caplog):
    clock = iter(range(0, 100_000, 20))
    monkeypatch.setattr("gpt1_jax.progress.time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    caplog.set_level("INFO")
    list(outputs_of(lambda params, batch: batch["x"], None, Batches(4), mesh, label="evaluation of split dev"))
    assert "evaluation of split dev: 2 of 4 batches (50%), 0.1 batches/s" in caplog.text
