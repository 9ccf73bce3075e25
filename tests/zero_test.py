"""ZeRO-1 by default: where, and that nothing of a run changes but the places of arrays. See also mesh_test.py."""

import shutil

import jax
import numpy as np
import pytest

from gpt1_jax import finetune, pretrain
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.mirror import checkpoints_of
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.sharding import MeshConfig, make_mesh
from gpt1_jax.zero import ShardedOverData, is_sharded

EVERY_OTHER = {"eval_every": 2, "save_every": 2}


@pytest.mark.parametrize(
    ("mesh", "n_embd", "sharded"),
    [
        (MeshConfig(), 24, True),
        (MeshConfig(), 12, False),  # does not divide
        (MeshConfig(data=4, tensor=2), 12, True),
        (MeshConfig(data=4, fsdp=2), 12, False),  # FSDP has its part of the columns, too
        (MeshConfig(data=1, fsdp=8), 24, False),  # there are no copies
        (MeshConfig(data=1, tensor=8), 24, False),
        (MeshConfig(shard_optimizer=False), 24, False),
        (MeshConfig(data=1, fsdp=8, shard_optimizer=True), 24, True),
    ],
    ids=str,
)
def test_where_nobody_has_said_it_is_sharded_where_it_can_be(devices, mesh, n_embd, sharded):
    assert is_sharded(mesh, make_mesh(mesh, devices), n_embd) == sharded


@pytest.mark.parametrize(
    ("freeze", "asked", "sharded"), [("none", None, True), ("trunk", None, False), ("trunk", True, True)]
)
def test_a_frozen_trunk_has_no_moments_to_share(devices, freeze, asked, sharded):
    model = GPT1(
        GPT1Config(vocab_size=50, n_special=3, n_ctx=8, n_embd=16, n_head=2, n_layer=0),
        ReadOut("classification", ("a", "b")),
    )
    mesh = MeshConfig(data=2, shard_optimizer=asked)
    optimizer, _ = finetune.jit_step(FinetuneConfig(mesh=mesh, freeze=freeze), model, make_mesh(mesh, devices[:2]))
    assert isinstance(optimizer, ShardedOverData) == sharded


@pytest.mark.slow  # mesh_test has the same numbers, resume_test other devices
def test_a_run_by_default_goes_on_as_one_without(all_devices, pretrain_settings, tmp_path, caplog):
    """It is said; it goes on where the other was stopped; checkpoints, evaluation and results are the same."""

    def run(**asked):
        caplog.clear()
        mesh = {"data": 4, "tensor": 2, **asked}
        settings = pretrain_settings(
            n_steps=4, model={"n_layer": 1}, mesh=mesh, loop={**EVERY_OTHER, "keep_best": True}
        )
        with caplog.at_level("INFO"):
            return pretrain.run(settings, tmp_path / "run")

    def contents():
        with Checkpointer(checkpoints_of(tmp_path / "run"), read_only=True) as checkpointer:
            return jax.tree.map(np.shape, checkpointer.restore_params(4))

    without = run(shard_optimizer=False)
    assert "optimizer sharded" not in caplog.text
    before = contents()
    shutil.rmtree(checkpoints_of(tmp_path / "run") / "4")
    by_default = run()
    assert "mesh data=4, fsdp=1, tensor=2, optimizer sharded; attention" in caplog.text
    assert by_default.metrics == pytest.approx(without.metrics, rel=1e-5)
    places = [jax.tree.map(lambda x: x.sharding, result.params) for result in (by_default, without)]
    assert places[0] == places[1]
    assert contents() == before
