"""Meshes, the rule table, and where parameters and batches lie."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec as P

from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.sharding import (
    AXES,
    RULES,
    MeshConfig,
    abstract_sharded,
    batch_sharding,
    check_mesh,
    constrain,
    jit_init,
    look_up,
    make_mesh,
    param_shardings,
    spec,
    to_global,
)

CONFIG = GPT1Config(vocab_size=50, n_special=3, n_ctx=8, n_embd=16, n_head=4, n_layer=1)
MODEL = GPT1(CONFIG, ReadOut("multiple_choice"))


@pytest.mark.parametrize(
    ("config", "n_devices", "shape"),
    [
        (MeshConfig(), 8, (8, 1, 1)),
        (MeshConfig(), 1, (1, 1, 1)),
        (MeshConfig(data=2, fsdp=-1), 8, (2, 4, 1)),
        (MeshConfig(data=2, fsdp=2, tensor=2), 8, (2, 2, 2)),
        (MeshConfig(data=1, fsdp=1, tensor=-1), 4, (1, 1, 4)),
        (MeshConfig(data=-1, fsdp=8), 8, (1, 8, 1)),
    ],
)
def test_mesh(devices, config, n_devices, shape):
    mesh = make_mesh(config, devices=devices[:n_devices])
    assert mesh.axis_names == AXES
    assert mesh.devices.shape == shape
    assert list(mesh.devices.flat) == devices[:n_devices]


@pytest.mark.usefixtures("all_devices")
def test_mesh_takes_all_devices():
    assert make_mesh().size == jax.device_count()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeshConfig(data=3), r"mesh data=3, fsdp=1, tensor=1 does not fit 8 devices: .* set one of them to -1"),
        (
            MeshConfig(data=-1, fsdp=3),
            r"data=-1, fsdp=3, tensor=1 does not fit 8 devices: .* the others must divide it",
        ),
        (MeshConfig(data=1), r"mesh data=1, fsdp=1, tensor=1 does not fit 8 devices"),
        (MeshConfig(data=4, fsdp=4), r"mesh data=4, fsdp=4, tensor=1 does not fit 8 devices"),
        (MeshConfig(data=-1, fsdp=16), r"mesh data=-1, fsdp=16, tensor=1 does not fit 8 devices"),
        (MeshConfig(data=0), r"mesh data=0, fsdp=1, tensor=1: every size must be at least 1"),
        (MeshConfig(data=-2), r"mesh data=-2, .*: every size must be at least 1"),
        (MeshConfig(data=-1, tensor=-1), r"mesh data=-1, fsdp=1, tensor=-1: .* at most one may be -1"),
    ],
    ids=str,
)
def test_bad_mesh(devices, config, message):
    with pytest.raises(InputError, match=message):
        make_mesh(config, devices=devices)


def test_bad_gradient_dtype():
    with pytest.raises(InputError, match=r"mesh.gradient_dtype='half' is unknown; use one of \['auto', 'float32', "):
        MeshConfig(gradient_dtype="half")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"batch_size": 12},
            r"batch_size=12 = 12 rows do not divide over mesh data=2 x fsdp=4 = 8 devices; use a multiple of 8",
        ),
        (
            {"batch_size": 16, "accumulation_steps": 4},
            r"batch_size=16 / accumulation_steps=4 = 4 rows do not divide .* use a multiple of 32 for batch_size",
        ),
        (
            {"batch_size": 16, "accumulation_steps": 3},
            r"batch_size=16 is not divisible by accumulation_steps=3; use a multiple of it",
        ),
    ],
)
def test_batch_does_not_divide(devices, sizes, message):
    mesh = make_mesh(MeshConfig(data=2, fsdp=4), devices=devices)
    with pytest.raises(InputError, match=message):
        check_mesh(mesh, n_head=12, **sizes)


def test_heads_do_not_divide(devices):
    mesh = make_mesh(MeshConfig(data=1, tensor=8), devices=devices)
    with pytest.raises(InputError, match=r"mesh tensor=8 does not divide n_head=12; use one of \[1, 2, 3, 4, 6, 12\]"):
        check_mesh(mesh, batch_size=8, n_head=12)


def test_the_width_does_not_divide(devices):
    mesh = make_mesh(MeshConfig(data=1, fsdp=8), devices=devices)
    with pytest.raises(InputError, match=r"mesh fsdp=8 does not divide n_embd=12; use one of \[1, 2, 3, 4, 6, 12\]"):
        check_mesh(mesh, batch_size=8, n_head=2, n_embd=12)
    mesh = make_mesh(MeshConfig(data=4, fsdp=2), devices=devices)
    check_mesh(mesh, batch_size=8, n_head=2, n_embd=12)
    with pytest.raises(
        InputError, match=r"shard_optimizer=True: data=4 x fsdp=2 = 8 does not divide n_embd=12; .*=False"
    ):
        check_mesh(mesh, batch_size=8, n_head=2, n_embd=12, shard_optimizer=True)


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_sizes_that_divide(devices, tensor):
    mesh = make_mesh(MeshConfig(data=2, fsdp=-1, tensor=tensor), devices=devices)
    check_mesh(mesh, batch_size=32, n_head=12, n_embd=768, accumulation_steps=4, shard_optimizer=True)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 1, 8), (8, 1, 1)], ids=str)
def test_look_up(devices, sizes):
    """Forward and backward, the rows over `tensor`; one row, as for initialisation, cannot lie over several devices."""
    rng = np.random.default_rng(0)
    table, weights = (rng.normal(size=shape).astype(np.float32) for shape in ((16, 4), (8, 3, 4)))
    ids = rng.integers(0, 16, (8, 3))
    with jax.set_mesh(make_mesh(MeshConfig(*sizes), devices=devices)):
        gradient = jax.jit(jax.grad(lambda table: (look_up(table, ids) * weights).sum()))(table)
        np.testing.assert_array_equal(jax.jit(look_up)(table, ids), table[ids])
        np.testing.assert_array_equal(jax.jit(look_up)(table, ids[:1]), table[ids[:1]])
    expected = np.zeros_like(table)
    np.add.at(expected, ids, weights)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)


def test_every_rule_names_axes_of_the_mesh():
    for axes in RULES.values():
        assert {axes} <= {None, *AXES} if not isinstance(axes, tuple) else set(axes) <= set(AXES)
    assert spec("batch", None, "heads") == P(("data", "fsdp"), None, "tensor")


def test_constrain_does_nothing_without_a_mesh(devices):
    x = jnp.ones((4, 6))
    assert constrain(x, "batch", "mlp") is x
    one = make_mesh(MeshConfig(), devices=devices[:1])
    with jax.set_mesh(one):
        assert "sharding_constraint" not in str(jax.make_jaxpr(lambda x: constrain(x, "batch", "mlp"))(x))


def test_constrain_lays_out_on_a_mesh(devices):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), devices=devices)
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: constrain(x, "batch", None, "mlp"))(jnp.ones((8, 3, 4)))
    assert y.sharding.spec == P(("data", "fsdp"), None, "tensor")
    assert y.addressable_shards[0].data.shape == (2, 3, 2)


SPECS = {
    "tokens_embed/embedding": P("tensor", "fsdp"),
    "positions_embed/embedding": P(None, "fsdp"),
    "h_0/attn/c_attn/kernel": P("fsdp", None, "tensor", None),
    "h_0/attn/c_attn/bias": P(None, "tensor", None),
    "h_0/attn/c_proj/kernel": P("tensor", None, "fsdp"),
    "h_0/mlp/c_fc/kernel": P("fsdp", "tensor"),
    "h_0/mlp/c_fc/bias": P("tensor"),
    "h_0/mlp/c_proj/kernel": P("tensor", "fsdp"),
    "h_0/ln_1/scale": P("fsdp"),
    "clf/kernel": P("fsdp", None),
}


def init(seed: Any = 3) -> dict[str, Any]:
    return {"params": MODEL.init_partitioned(jax.random.key(seed)), "step": jnp.int32(0)}


@pytest.fixture(scope="module")
def mesh(devices):
    return make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), devices=devices)


def test_parameters_are_born_where_they_live(mesh, devices):
    """Sharded over fsdp and tensor, copied over data, and one device's numbers, up to how a program is compiled."""
    born, shardings = jit_init(init, mesh)
    tree = born(3)
    params = {"/".join(path): x for path, x in flatten_dict(tree["params"]).items()}
    for name, expected in SPECS.items():
        assert params[name].sharding.spec == expected, name
        ways = 2 ** sum(axis is not None for axis in expected)
        assert params[name].addressable_shards[0].data.size * ways == params[name].size, name
    assert tree["step"].sharding.is_fully_replicated
    assert jax.tree.map(lambda x: x.sharding, tree) == shardings
    assert param_shardings(MODEL, mesh) == shardings["params"]

    on_one, _ = jit_init(init, make_mesh(MeshConfig(), devices=devices[:1]))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=5e-7), jax.device_get(tree), jax.device_get(on_one(3)))


def test_abstract_state_has_the_shapes_and_shardings_of_the_real_one(mesh):
    abstract = abstract_sharded(init, mesh)
    flat = {"/".join(path): x for path, x in flatten_dict(abstract["params"]).items()}
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), abstract["params"]) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shapes
    )
    for name, expected in SPECS.items():
        assert isinstance(flat[name], jax.ShapeDtypeStruct)
        assert flat[name].sharding.spec == expected, name


def test_rows_of_a_batch_lie_over_data_and_fsdp(mesh):
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    batch = to_global({"x": rows, "label": np.arange(8)}, mesh)
    assert batch["x"].sharding == batch_sharding(mesh)
    for shard in batch["x"].addressable_shards:
        assert shard.data.shape == (2, 3)
        np.testing.assert_array_equal(shard.data, rows[shard.index])
    np.testing.assert_array_equal(batch["x"], rows)
    assert batch["label"].addressable_shards[0].data.shape == (2,)
