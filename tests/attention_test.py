"""Every kernel against softmax attention written down in numpy and float64."""

import itertools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from gpt1_jax.attention import KERNELS, causal_attention, select_kernel, self_attention
from gpt1_jax.dropout import Dropout
from gpt1_jax.errors import InputError
from gpt1_jax.kernels import sharded
from gpt1_jax.kernels.xla import attention_probabilities, visible

B, H, HEAD_DIM, RATE = 3, 2, 8, 0.3
BFLOAT16_ERROR = 0.02  # largest error of an output of size about 1

# Name -> (query length, slots, first slot of each row's queries, real slots of each row)
ALL = ((0, 99),) * B
CASES: dict[str, tuple[int, int, tuple[int, ...], tuple[tuple[int, int], ...]]] = {
    "whole": (7, 7, (0, 0, 0), ALL),
    "one token": (1, 1, (0, 0, 0), ALL),
    "padded": (9, 9, (0, 0, 0), ((0, 6), (2, 9), (3, 5))),
    "cached": (3, 11, (0, 4, 8), ALL),
    "cached, padded": (3, 11, (2, 4, 8), ((1, 99), (0, 99), (5, 99))),
}


def given(case: str, dtype: Any = jnp.float32) -> dict[str, Any]:
    """Random queries, keys and values, and the masks of the case."""
    n_queries, n_slots, first, real = CASES[case]
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(B, n, H, HEAD_DIM)) for n in (n_queries, n_slots, n_slots))
    slots = np.arange(n_slots)
    site = Dropout(RATE, key_words=jnp.array([3, 5], jnp.uint32), rows=jnp.array([5, 2, 9]))  # of the global batch
    return {
        "q": jnp.asarray(2 * q, dtype),
        "k": jnp.asarray(2 * k, dtype),
        "v": jnp.asarray(v, dtype),
        "q_slots": np.asarray(first)[:, None] + np.arange(n_queries),
        "kv_mask": np.stack([(slots >= a) & (slots < b) for a, b in real]),
        "cached": case.startswith("cached"),
        "site": site,
        "keep": np.asarray(site.keep((B, H, n_queries, n_slots))),
    }


def sees(case: dict[str, Any]) -> np.ndarray:
    """[B, Lq]: whether a query sees any slot at all."""
    slots = np.arange(case["k"].shape[1])
    return ((slots <= case["q_slots"][..., None]) & case["kv_mask"][:, None]).any(-1)


def reference(case: dict[str, Any], dropped: bool) -> np.ndarray:
    """One query at a time, over the slots that it sees; zero for those that see none."""
    q, k, v = (np.float64(case[name]) for name in "qkv")
    out = np.zeros(q.shape)
    for b, i, h in itertools.product(*map(range, q.shape[:3])):
        slots = [s for s in range(k.shape[1]) if s <= case["q_slots"][b, i] and case["kv_mask"][b, s]]
        if slots:
            scores = k[b, slots, h] @ q[b, i, h] / np.sqrt(HEAD_DIM)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            if dropped:
                weights *= case["keep"][b, h, i, slots] / (1 - RATE)
            out[b, i, h] = weights @ v[b, slots, h]
    return out


def call(case: dict[str, Any], kernel: str, dropped: bool = False, **changes: Any) -> jax.Array:
    case = case | changes
    q_slots = jnp.asarray(case["q_slots"]) if case["cached"] else None
    masks = {"q_slots": q_slots, "kv_mask": jnp.asarray(case["kv_mask"])}
    dropout = case["site"] if dropped else None
    return attend(case["q"], case["k"], case["v"], **masks, dropout=dropout, kernel=kernel)


attend = jax.jit(causal_attention, static_argnames="kernel")
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
with_their_cases = [(name, kernel) for name in CASES for kernel in KERNELS if kernel == "xla" or "cached" not in name]


@pytest.mark.parametrize("dropped", [False, True], ids=["plain", "dropout"])
@pytest.mark.parametrize(("name", "kernel"), with_their_cases)
def test_values(name, dropped, kernel):
    case = given(name)
    seen = sees(case)
    out = call(case, kernel, dropped)
    assert out.shape == case["q"].shape
    np.testing.assert_allclose(out[seen], reference(case, dropped)[seen], rtol=0, atol=2e-6)


@every_kernel
def test_bfloat16(kernel):
    case = given("padded", jnp.bfloat16)
    seen = sees(case)
    out = call(case, kernel)
    assert out.dtype == jnp.bfloat16
    error = np.abs(np.float32(out) - reference(case, False))[seen]
    assert error.max() < BFLOAT16_ERROR


@every_kernel
def test_without_masks_every_slot_is_real_and_queries_count_from_zero(kernel):
    case = given("whole")
    bare = attend(case["q"], case["k"], case["v"], kernel=kernel)
    np.testing.assert_array_equal(bare, call(case, kernel))
    np.testing.assert_array_equal(call(case | {"cached": True}, "xla"), call(case, "xla"))


def test_the_default_kernel_is_exact_and_keeps_dropout():
    case = given("whole")
    out = causal_attention(case["q"], case["k"], case["v"], dropout=case["site"])
    np.testing.assert_allclose(out, reference(case, True), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kernel", ["auto", "xla"])
def test_a_given_mask(kernel):
    case = given("whole")
    case["keep"] = np.random.default_rng(1).random((B, H, 7, 7)) > RATE
    case["site"] = Dropout(RATE, mask=jnp.asarray(case["keep"]))
    np.testing.assert_allclose(call(case, kernel, True), reference(case, True), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kernel", sorted({*KERNELS} - {"xla"}))
def test_a_kernel_that_draws_its_masks_takes_none(kernel):
    case = given("whole")
    case["site"] = Dropout(RATE, mask=jnp.asarray(case["keep"]))
    with pytest.raises(InputError, match=f"attention='{kernel}' draws its dropout masks and takes none; use 'auto'"):
        call(case, kernel, True)
    assert call(case | {"cached": True}, kernel, True).shape == (B, 7, H, HEAD_DIM)


@every_kernel
def test_gradients(kernel):
    """Of all three arguments, against jax.grad of the formula; dropout on the probabilities."""
    case = given("padded")
    seen, weights = sees(case), np.random.default_rng(1).normal(size=case["q"].shape)
    mask = (np.arange(9) <= case["q_slots"][:, None, :, None]) & case["kv_mask"][:, None, None, :]

    def naive(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqhd,bshd->bhqs", q, k) / np.sqrt(HEAD_DIM)
        exp = jnp.where(mask, jnp.exp(scores), 0.0)
        p = exp / jnp.maximum(exp.sum(-1, keepdims=True), 1e-30) * case["keep"] / (1 - RATE)
        return (jnp.einsum("bhqs,bshd->bqhd", p, v) * weights)[seen].sum()

    def ours(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return (call(case, kernel, True, q=q, k=k, v=v) * weights)[seen].sum()

    arguments = (case["q"], case["k"], case["v"])
    for ours_, naive_ in zip(
        jax.grad(ours, (0, 1, 2))(*arguments), jax.grad(naive, (0, 1, 2))(*arguments), strict=True
    ):
        np.testing.assert_allclose(ours_, naive_, rtol=0, atol=5e-6)


@every_kernel
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_query_that_sees_nothing_gives_no_nan(kernel, dtype):
    """Neither in values nor in gradients, and other rows do not notice."""
    case = given("whole", dtype)
    padded = case | {"kv_mask": np.stack([np.zeros(7, bool), *case["kv_mask"][1:]])}

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return call(padded, kernel, q=q, k=k, v=v).astype(jnp.float32).sum()

    out = call(padded, kernel)
    gradients = jax.grad(total, (0, 1, 2))(case["q"], case["k"], case["v"])
    for x in (out, *gradients):
        assert np.isfinite(np.float32(x)).all()
    np.testing.assert_array_equal(np.float32(out[1:]), np.float32(call(case, kernel)[1:]))


@every_kernel
@pytest.mark.parametrize("name", ["padded", "cached, padded"])
def test_invisible_slots_have_no_influence_at_all(name, kernel):
    case = given(name)
    seen = sees(case)
    hidden = ~case["kv_mask"] | (np.arange(case["k"].shape[1]) > case["q_slots"].max(1, keepdims=True))
    assert hidden.any()
    loud = {n: jnp.where(hidden[..., None, None], 1e4, case[n]) for n in "kv"}
    np.testing.assert_array_equal(call(case, kernel, **loud)[seen], call(case, kernel)[seen])


@every_kernel
def test_causal_however_far_apart_the_scores_are(kernel):
    """A mask that adds a number to the scores, or puts one in their place, fails once they are further down."""
    case = given("whole")
    k = jnp.where(np.arange(7)[:, None] < 4, -1e5, 1e5)
    shift = {"q": case["q"].at[..., 0].set(1e5), "k": case["k"].at[..., 0].set(k)}
    out = call(case, kernel, **shift)
    np.testing.assert_allclose(out[:, 0], case["v"][:, 0], rtol=0, atol=1e-6)
    changed = {"v": case["v"].at[:, 4:].set(1e4)}
    np.testing.assert_array_equal(call(case, kernel, **shift, **changed)[:, :4], out[:, :4])


def test_probabilities_sum_to_one_and_are_zero_where_invisible():
    case = given("padded")
    mask = visible(jnp.asarray(case["q_slots"]), 9, jnp.asarray(case["kv_mask"]))
    p = np.asarray(attention_probabilities(case["q"], case["k"], mask))
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-6)
    seen = np.broadcast_to(sees(case)[:, None, :], p.shape[:3])
    assert (p[~np.broadcast_to(mask, p.shape) & seen[..., None]] == 0).all()


@pytest.mark.parametrize(
    ("platform", "kind", "kernel"),
    [
        ("tpu", "TPU v5 lite", "tpu"),
        ("tpu", "TPU v6 lite", "tpu"),
        ("tpu", "TPU v4", "xla"),
        ("gpu", "NVIDIA H100 80GB HBM3", "gpu"),
        ("gpu", "Tesla V100-SXM2-16GB", "xla"),
        ("gpu", "AMD Instinct MI300X", "xla"),
        ("cpu", "cpu", "xla"),
    ],
)
def test_auto_is_the_kernel_of_the_devices(platform, kind, kernel):
    """Those of the current mesh, which need not be here; what is too large for it goes to plain attention."""
    device = AbstractDevice(device_kind=kind, num_cores=None, platform=platform)
    with jax.sharding.use_abstract_mesh(AbstractMesh((8,), ("data",), abstract_device=device)):
        assert select_kernel("auto", 512, 64) == kernel
        assert select_kernel("auto", 1025, 129) == "xla"
        assert select_kernel("tpu", 512, 64) == "tpu"


def test_without_a_mesh_auto_is_the_kernel_of_the_default_device(monkeypatch):
    """The one of `jax.default_device`, not the fastest that there is."""
    assert select_kernel("auto", 512, 64) == "xla"
    chip = types.SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
    monkeypatch.setattr(sharded.jax, "devices", lambda platform=None: [chip])
    assert select_kernel("auto", 512, 64) == "tpu"
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        assert select_kernel("auto", 512, 64) == "xla"


@pytest.mark.parametrize(("kind", "capability", "kernel"), [("RTX 2080 Ti", "7.5", "xla"), ("RTX 3090", "8.6", "gpu")])
def test_auto_takes_no_card_that_triton_refuses(kind, capability, kernel, monkeypatch):
    card = types.SimpleNamespace(platform="gpu", device_kind=f"NVIDIA GeForce {kind}", compute_capability=capability)
    monkeypatch.setattr(sharded.jax, "devices", lambda platform=None: [card])
    monkeypatch.setattr(sharded.jax, "local_devices", lambda: [card])
    assert select_kernel("auto", 512, 64) == kernel
    if kernel == "xla":
        with pytest.raises(InputError, match=r"attention='gpu' needs compute capability 8.0, .*\(7\.5\); use"):
            select_kernel("gpu", 512, 64)


@every_kernel
def test_from_the_projection(kernel):
    """Of q, k and v before their bias is added; "whole" has no padding."""
    case = given("whole")
    bias = np.random.default_rng(1).normal(size=(3, H, HEAD_DIM)).astype(np.float32)
    product = jnp.stack([case[name] - bias[part] for part, name in enumerate("qkv")], 1).reshape(B, 3, 7, -1)
    out = self_attention(product, jnp.asarray(bias.reshape(3, 1, -1)), H, dropout=case["site"], kernel=kernel)
    np.testing.assert_allclose(out.reshape(case["q"].shape), reference(case, True), rtol=0, atol=5e-6)


def test_unknown_kernel():
    with pytest.raises(InputError, match=r"attention='flash3' is unknown; use 'auto' or one of \['.*xla.*'\]"):
        call(given("whole"), "flash3")
