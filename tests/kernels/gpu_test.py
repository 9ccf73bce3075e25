"""The GPU kernel against plain attention: gpu_attention here, and as it is on an NVIDIA card where there is one."""

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from gpt1_jax.attention import causal_attention, select_kernel, self_attention
from gpt1_jax.dropout import Dropout
from gpt1_jax.errors import InputError
from gpt1_jax.kernels.gpu import gpu_attention
from gpt1_jax.kernels.sharded import platform
from gpt1_jax.kernels.xla import xla_attention
from gpt1_jax.sharding import MeshConfig, make_mesh, summed_over_data

RATE = 0.3
FLOAT32_ERROR = 4e-6  # of the largest entry of output and gradients: the order of sums
BFLOAT16_ERROR = 0.01  # likewise: probabilities and gradients of scores are rounded to 8 bits, 0.004, before products

Case = dict[str, jax.Array]


def given(n_rows: int, length: int, n_heads: int, head_dim: int, dtype: Any = jnp.float32) -> Case:
    """q, k, v and the gradient of the output."""
    rng = np.random.default_rng(length)
    shape = (n_rows, length, n_heads, head_dim)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name in ("q", "k", "v", "do")}


def site(n_rows: int) -> Dropout:
    """Rows of a global batch that are not its first ones."""
    return Dropout(RATE, key_words=jnp.array([3, 5], jnp.uint32), rows=7 * jnp.arange(n_rows)[::-1] + 2)


def padding(n_rows: int, length: int) -> np.ndarray:
    """Padded on the right, on the left, inside; in turn."""
    slots = np.arange(length)
    kinds = (slots < length - length // 3, slots >= length // 3, (slots < 2) | (slots > length // 2))
    return np.stack([kinds[b % 3] for b in range(n_rows)])


def outcome(kernel: Any, case: Case, kv_mask: np.ndarray | None, dropout: Dropout | None) -> dict[str, np.ndarray]:
    """The output, and the gradients of q, k and v; without queries that see nothing."""
    n_rows, length = case["q"].shape[:2]
    real = np.ones((n_rows, length), bool) if kv_mask is None else kv_mask
    sees = np.cumsum(real, axis=1)[..., None, None] > 0

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array) -> tuple[jax.Array, ...]:
        o, vjp = jax.vjp(lambda *qkv: jnp.where(sees, kernel(*qkv, None, kv_mask, dropout), 0), q, k, v)
        return o, *vjp(do)

    return dict(zip(("o", "dq", "dk", "dv"), map(np.float32, run(**case)), strict=True))


def assert_same(kernel: Any, case: Case, kv_mask: np.ndarray | None = None, dropout: Dropout | None = None) -> None:
    """Against plain attention in float32 of the same numbers."""
    error = FLOAT32_ERROR if case["q"].dtype == jnp.float32 else BFLOAT16_ERROR
    exact = outcome(xla_attention, {name: x.astype(jnp.float32) for name, x in case.items()}, kv_mask, dropout)
    largest = max(np.abs(x).max() for x in exact.values())
    for name, x in outcome(kernel, case, kv_mask, dropout).items():
        np.testing.assert_allclose(x, exact[name], rtol=0, atol=error * largest, err_msg=name)


@pytest.mark.parametrize(
    ("length", "dtype"),
    [
        (1, jnp.float32),
        pytest.param(64, jnp.bfloat16, marks=pytest.mark.slow),
        pytest.param(130, jnp.float32, marks=pytest.mark.slow),
        (130, jnp.bfloat16),
    ],
)
def test_odd_lengths(length, dtype):
    """Shorter than a tile, one tile, and two with the rest of a third."""
    assert_same(gpu_attention, given(2, length, 2, 64, dtype), None, site(2))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("length", [448, 512, 513, 704, 1024])
def test_long_contexts(length, dtype):
    assert_same(gpu_attention, given(1, length, 2, 64, dtype), padding(1, length), site(1))


@pytest.mark.parametrize("dropped", [False, True], ids=["plain", "dropout"])
def test_padding(dropped):
    """Also where whole tiles are padding and where the first queries see nothing."""
    assert_same(gpu_attention, given(3, 150, 1, 16), padding(3, 150), site(3) if dropped else None)


@pytest.mark.parametrize("head_dim", [8, 24, 128])
def test_heads_of_any_size(head_dim):
    """Tiles have 16, 32, 64 or 128 columns."""
    assert_same(gpu_attention, given(1, 40, 3, head_dim), None, site(1))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_drops_the_very_entries_that_its_site_says(dtype):
    """Values that are rows of the identity bring out the probabilities, and so do gradients in the gradient of v."""
    length = 100
    case = given(2, length, 3, 128, dtype)
    identity = jnp.broadcast_to(jnp.eye(128, dtype=dtype)[:length, None], case["v"].shape)
    got = outcome(gpu_attention, case | {"v": identity, "do": identity}, None, site(2))
    kept = np.asarray(site(2).keep((2, 3, length, length))) & np.tri(length, dtype=bool)
    np.testing.assert_array_equal(got["o"].transpose(0, 2, 1, 3)[..., :length] > 0, kept)
    np.testing.assert_array_equal(got["dv"].transpose(0, 2, 3, 1)[:, :, :length] > 0, kept)


def test_a_query_that_sees_nothing_gives_zero_and_takes_no_gradient():
    case, kv_mask = given(2, 80, 2, 16), np.arange(80) >= np.array([[70], [0]])

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array) -> tuple[jax.Array, ...]:
        o, vjp = jax.vjp(lambda *qkv: gpu_attention(*qkv, None, kv_mask, site(2)), q, k, v)
        return o, *vjp(do)

    for x in run(**case):
        assert np.isfinite(x).all()
        np.testing.assert_array_equal(x[0, :70], 0)


def test_scores_as_far_apart_as_they_can_be():
    """The running maximum starts from a finite number; scores of 10^10 must not fall below it, nor overflow."""
    case = given(1, 130, 1, 16)
    q = case["q"].at[..., 0].set(1e5)
    k = case["k"].at[..., 0].set(jnp.where(jnp.arange(130)[:, None] < 100, -1e5, 1e5))
    attend = jax.jit(lambda v: gpu_attention(q, k, v, None, None, None))
    o = attend(case["v"])
    assert np.isfinite(o).all()
    changed = case["v"].at[:, :100].set(1e4)
    np.testing.assert_array_equal(attend(changed)[:, 100:], o[:, 100:])


def test_from_the_projection():
    """Of what the matrix product makes, its bias not yet added; and their gradients."""
    rng = np.random.default_rng(0)
    product, bias, do = (jnp.asarray(rng.normal(size=shape)) for shape in ((2, 3, 70, 48), (3, 1, 48), (2, 70, 48)))
    results = []
    for kernel in ("gpu", "xla"):
        attend = functools.partial(self_attention, n_heads=2, kv_mask=None, dropout=site(2), kernel=kernel)
        o, vjp = jax.vjp(jax.jit(attend), product, bias)
        results.append((o, *vjp(do)))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=FLOAT32_ERROR * np.abs(theirs).max())


def test_wide_heads_are_left_to_plain_attention():
    q = jnp.zeros((1, 4, 1, 129))
    with pytest.raises(InputError, match="attention='gpu' takes at most 128 numbers a head, not 129; use 'auto' or"):
        causal_attention(q, q, q, kernel="gpu")


def step(dtype: Any, n_rows: int, length: int) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    """Forward and backward pass, and the shapes that it takes."""

    def run(q: jax.Array, k: jax.Array, v: jax.Array, kv_mask: jax.Array, do: jax.Array) -> tuple[jax.Array, ...]:
        o, vjp = jax.vjp(lambda *qkv: gpu_attention(*qkv, None, kv_mask, site(n_rows)), q, k, v)
        return o, *vjp(do)

    x = jax.ShapeDtypeStruct((n_rows, length, 12, 64), dtype)
    return run, [x, x, x, jax.ShapeDtypeStruct((n_rows, length), jnp.bool_), x]


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_becomes_two_kernels_and_no_array_of_scores(dtype):
    run, shapes = step(dtype, 2, 704)
    h100 = AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,), abstract_device=h100)
    with jax.sharding.use_abstract_mesh(mesh):  # what is compiled for, to newer versions of JAX
        assert select_kernel("auto", 704, 64) == "gpu"
        text = jax.jit(run).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 2
    assert "704x704" not in text


def test_float32_is_not_rounded_to_tf32():
    run, shapes = step(jnp.float32, 1, 64)
    text = str(jax.make_jaxpr(run)(*shapes))
    assert text.count("dot_general") == 2 * (2 + 4 + 3)  # in each of the three loops and after it
    assert text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") == text.count("dot_general")


@pytest.mark.parametrize("masked", [False, True])
def test_sharded_over_rows_and_heads(devices, masked):
    """The same bits as on one device, with global rows and heads in the masks."""
    case, kv_mask = given(4, 20, 2, 16), padding(4, 20) if masked else None
    alone = outcome(gpu_attention, case, kv_mask, site(4))
    with jax.set_mesh(make_mesh(MeshConfig(2, 2, 2), devices=devices)):
        sharded = outcome(gpu_attention, case, kv_mask, site(4))
    for name, x in sharded.items():
        np.testing.assert_array_equal(x, alone[name], err_msg=name)


def test_where_data_is_divided_already(devices):
    """As the training step has it: each part of the batch is worked off by itself, and the sums come together."""
    case = given(4, 20, 2, 16)

    def total(weights: jax.Array, batch: Any, rows: jax.Array) -> jax.Array:
        q, k, v = (batch[name] * weights for name in ("q", "k", "v"))
        dropout = Dropout(RATE, key_words=jnp.array([3, 5], jnp.uint32), rows=rows)
        return (gpu_attention(q, k, v, None, None, dropout) * batch["do"]).sum()

    weights, rows = jnp.full((16,), 0.5), jnp.array([9, 4, 1, 7])
    alone = jax.jit(jax.grad(total))(weights, case, rows)
    with jax.set_mesh(make_mesh(MeshConfig(2, 2, 2), devices=devices)):
        summed = jax.jit(lambda *arguments: summed_over_data(jax.grad(total))(*arguments))(weights, case, rows)
    np.testing.assert_allclose(summed, alone, rtol=1e-5)


@pytest.fixture
def card() -> None:
    """Skips the test where there is none."""
    if platform() != "gpu":
        pytest.skip("there is no GPU here")


@pytest.mark.gpu
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("length", [64, 448, 512, 704])
def test_on_a_card(length, dtype):
    assert_same(gpu_attention, given(4, length, 12, 64, dtype), None, site(4))
    assert_same(gpu_attention, given(4, length, 12, 64, dtype), padding(4, length), site(4))


@pytest.mark.gpu
@pytest.mark.usefixtures("card")
def test_the_same_bits_twice_on_a_card():
    case = given(8, 512, 12, 64, jnp.bfloat16)
    once, again = (outcome(gpu_attention, case, padding(8, 512), site(8)) for _ in range(2))
    for name, x in once.items():
        np.testing.assert_array_equal(x, again[name], err_msg=name)


@pytest.mark.slow
def test_the_training_step_compiles_for_h100(tmp_path):
    """Two layers of the paper's size; "auto" is this kernel there, and no [512, 512] is left in the program."""
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        pytest.skip("needs jax-cuda13-plugin and jax-cuda13-pjrt")
    command = [sys.executable, "launch/compile.py", "--config=configs/pretrain.py", "--topology=cuda:h100:8"]
    command += ["--config.model.dtype=bfloat16", "--config.model.n_layer=2"]
    command += [f"--json={tmp_path}/figures.json", f"--hlo={tmp_path}"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    figures = json.loads((tmp_path / "figures.json").read_text())
    text = (tmp_path / "cuda-h100-8.txt").read_text()
    assert (figures["attention"], figures["attn_pdrop"]) == ("gpu", 0.1)
    assert text.count('custom_call_target="__gpu$xla.gpu.triton"') == 2 * 2
    assert "512,512]" not in text
