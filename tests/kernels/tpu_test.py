"""The TPU kernel against plain attention, interpreted on a CPU: the same mask, values and gradients, on every mesh."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from gpt1_jax.attention import causal_attention, self_attention
from gpt1_jax.dropout import Dropout
from gpt1_jax.errors import InputError
from gpt1_jax.kernels import tpu
from gpt1_jax.sharding import MeshConfig, make_mesh

FLOAT32_ERROR = 5e-6  # of the largest entry: other orders of summation
BFLOAT16_ERROR = 0.01  # likewise, and P, dS and the results are rounded to 8 bits: 2^-8 each

slow = pytest.mark.slow


def arrays(n_rows: int, length: int, width: int, dtype: Any = jnp.float32) -> tuple[jax.Array, ...]:
    """What the projection gives, its bias, and the gradient of o."""
    rng = np.random.default_rng(0)
    product, bias, do = (
        rng.normal(size=shape) for shape in ((n_rows, 3, length, width), (3, 1, width), (n_rows, length, width))
    )
    return jnp.asarray(product, dtype), jnp.asarray(bias, jnp.float32), jnp.asarray(do, dtype)


def site(n_rows: int, rate: float = 0.3) -> Dropout:
    return Dropout(rate, key_words=jnp.array([3, 5], jnp.uint32), rows=7 * jnp.arange(n_rows) + 2)


def padding(n_rows: int, length: int) -> jax.Array:
    """At either end, and none in the first row."""
    first, last = np.arange(n_rows)[:, None] * length // 8, length - np.arange(n_rows)[:, None] * length // 6
    return jnp.asarray((np.arange(length) >= first) & (np.arange(length) < last))


@functools.partial(jax.jit, static_argnames=("n_heads", "kernel"))
def attend(
    product: Any, bias: Any, do: Any, kv_mask: Any, dropout: Any, n_heads: int, kernel: str
) -> tuple[jax.Array, ...]:
    """O, the gradients of q, k and v, and the bias's; queries that see nothing have no part in them."""
    sees = 1.0 if kv_mask is None else (jnp.cumsum(kv_mask, 1) > 0)[:, :, None]

    def run(product: Any, bias: Any) -> jax.Array:
        o = self_attention(product, bias, n_heads, kv_mask=kv_mask, dropout=dropout, kernel=kernel)
        return o * jnp.asarray(sees, o.dtype)

    o, pull = jax.vjp(run, product, bias)
    dproduct, dbias = pull(do)
    return o, *(dproduct[:, part] for part in range(3)), dbias


def assert_same(ours: tuple[jax.Array, ...], theirs: tuple[jax.Array, ...], error: float) -> None:
    for name, a, b in zip(("o", "dq", "dk", "dv", "dbias"), ours, theirs, strict=True):
        a, b = np.float32(a), np.float32(b)
        assert np.abs(a - b).max() <= error * np.abs(b).max(), name


# Tokens, heads and their width; the last two columns: dropout, padding.
CASES = [
    (7, 3, 64, True, True),
    (64, 2, 64, True, False),
    (40, 2, 80, True, False),  # a head that does not share lanes
    (48, 4, 32, False, True),
    (130, 2, 64, True, True),
    pytest.param(448, 2, 64, True, False, marks=slow),
    pytest.param(512, 2, 64, True, True, marks=slow),
    pytest.param(513, 1, 64, True, True, marks=slow),
    pytest.param(704, 2, 64, True, True, marks=slow),
]


@pytest.mark.parametrize(("length", "n_heads", "head_dim", "dropped", "padded"), CASES)
def test_values_and_gradients(length, n_heads, head_dim, dropped, padded):
    given = arrays(2, length, n_heads * head_dim)
    options = (padding(2, length) if padded else None, site(2) if dropped else None, n_heads)
    assert_same(attend(*given, *options, "tpu"), attend(*given, *options, "xla"), FLOAT32_ERROR)


@pytest.mark.parametrize("padded", [False, True])
def test_bfloat16(padded):
    """Against plain attention in float32."""
    given, kv_mask = arrays(2, 130, 128, jnp.bfloat16), padding(2, 130) if padded else None
    whole = tuple(x.astype(jnp.float32) for x in given)
    ours = attend(*given, kv_mask, site(2), 2, "tpu")
    assert [x.dtype for x in ours] == [*[jnp.bfloat16] * 4, jnp.float32]
    assert_same(ours, attend(*whole, kv_mask, site(2), 2, "xla"), BFLOAT16_ERROR)


@pytest.mark.parametrize(("length", "head_dim"), [(64, 64), (150, 256)], ids=["one block", "two"])
def test_the_very_same_mask(length, head_dim):
    """With V = 1, o is the probability itself, and with dO = 1 so is the gradient of V: what is zero was dropped."""
    shape = (2, length, 2, head_dim)
    q, k = jnp.asarray(np.random.default_rng(0).normal(size=(2, *shape)), jnp.float32)
    one = jnp.broadcast_to(jnp.eye(length, head_dim)[:, None], shape)
    o, pull = jax.vjp(lambda v: causal_attention(q, k, v, dropout=site(2), kernel="tpu"), one)
    wanted = np.tril(np.ones((length, length), bool)) & site(2).keep((2, 2, length, length))
    np.testing.assert_array_equal(o.swapaxes(1, 2)[..., :length] > 0, wanted)
    np.testing.assert_array_equal(pull(one)[0].transpose(0, 2, 3, 1)[:, :, :length] > 0, wanted)


@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("manual", [False, True])
def test_every_mesh(mesh, manual, devices):
    """Also where `data` is divided already, as in `sharding.summed_over_data`.

    The same bits as alone, but for the bias, whose gradient is summed over the rows in another order, and but for three
    heads on a device, which do not share lanes.
    """
    given = arrays(8, 9, 6 * 64)
    options = (padding(8, 9), site(8))
    alone = attend(*given, *options, 6, "tpu")
    made = make_mesh(MeshConfig(*mesh), devices=devices[: int(np.prod(mesh))])
    run = functools.partial(attend, n_heads=6, kernel="tpu")
    with jax.set_mesh(made):
        if manual:
            rows, whole = PartitionSpec("data"), PartitionSpec()
            specs = (rows, whole, rows, rows, Dropout(0.3, key_words=whole, rows=rows))
            parts = jax.shard_map(run, in_specs=specs, out_specs=rows, axis_names={"data"}, check_vma=False)
            *ours, dbias = jax.jit(parts)(*given, *options)
            ours = (*ours, dbias.reshape(mesh[0], *alone[-1].shape).sum(0))
        else:
            ours = jax.jit(run)(*given, *options)
    assert_same(ours, alone, FLOAT32_ERROR)
    if 6 // mesh[2] != 3:
        for name, a, b in zip(("o", "dq", "dk", "dv"), ours, alone, strict=False):
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_rows_that_do_not_divide(devices):
    """One, to initialise a model."""
    given = arrays(1, 7, 2 * 64)
    with jax.set_mesh(make_mesh(MeshConfig(4, 1, 2), devices=devices)):
        ours = attend(*given, None, None, 2, "tpu")
    assert_same(ours, attend(*given, None, None, 2, "xla"), FLOAT32_ERROR)


def test_too_long():
    """Refused by name, and left to plain attention where the choice was ours."""
    q = jnp.zeros((1, tpu.MAX_TOKENS + 1, 1, 8))
    with pytest.raises(InputError, match="attention='tpu' takes at most 1024 tokens, not 1025; use 'auto' or 'xla'"):
        causal_attention(q, q, q, kernel="tpu")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_lowers_for_tpu(dtype):
    """Which checks shapes and operations, and says nothing about the memory that the compiler finds."""
    plan = tpu.Plan(2, 64, 256, rate=0.1, masked=True, interpret=False)
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
    words = jax.ShapeDtypeStruct((2, 1, 2, 256), jnp.uint32)
    extra = (jax.ShapeDtypeStruct((2, 1, 256), jnp.float32), words, words)

    def both(product: Any, bias: Any, extra: Any, do: Any) -> Any:
        o, pull = jax.vjp(lambda *x: tpu._attention(plan, *x, extra), product, bias)
        return o, pull(do)

    arguments = (shape((2, 3, 256, 128)), jax.ShapeDtypeStruct((3, 1, 128), jnp.float32), extra, shape((2, 256, 128)))
    lowered = jax.jit(both).trace(*arguments).lower(lowering_platforms=("tpu",))
    assert lowered.as_text().count("tpu_custom_call") == 2
