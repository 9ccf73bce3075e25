"""The comparison of attention kernels finds what it is there to find."""

import jax
import pytest

from gpt1_jax import attention
from gpt1_jax.benchmark import kernel_check
from gpt1_jax.kernels.xla import xla_attention


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(kernel_check, "_HEADS", 2)
    monkeypatch.setattr(kernel_check, "_HEAD_DIM", 8)


def without_dropout(q, k, v, q_slots, kv_mask, dropout):
    return xla_attention(q, k, v, q_slots, kv_mask, None)


@jax.custom_vjp
def _wrong_gradient(x):
    return x


_wrong_gradient.defvjp(lambda x: (x, None), lambda _, g: (g * 1.01,))


def wrong_gradient(q, k, v, q_slots, kv_mask, dropout):
    return xla_attention(q, k, _wrong_gradient(v), q_slots, kv_mask, dropout)


def nothing(q, k, v, q_slots, kv_mask, dropout):
    return xla_attention(q, k, v, q_slots, kv_mask, dropout) * float("nan")


def without_the_bias_s_gradient(product, bias, n_heads, kv_mask, dropout):
    return attention.self_attention(
        product, jax.lax.stop_gradient(bias), n_heads, kv_mask=kv_mask, dropout=dropout, kernel="xla"
    )


def run(kernel, dtypes, monkeypatch):
    monkeypatch.setattr(attention, "KERNELS", {"xla": xla_attention, "new": kernel})
    monkeypatch.setattr(kernel_check, "KERNELS", attention.KERNELS)
    monkeypatch.setattr(kernel_check, "DTYPES", dtypes)
    return list(kernel_check.checks(lengths=(24,)))


def test_the_same_passes(monkeypatch):
    found = run(xla_attention, ("float32", "bfloat16"), monkeypatch)
    assert len(found) == 2 * 3
    assert all(check.passed and "passed" in check.line() for check in found)


@pytest.mark.parametrize(
    ("kernel", "failed"),
    [
        (without_dropout, [False, True, True]),
        (wrong_gradient, [True, True, True]),
        (nothing, [True, True, True]),
    ],
)
def test_a_kernel_that_computes_something_else_fails(kernel, failed, monkeypatch):
    found = run(kernel, ("float32",), monkeypatch)
    assert [not check.passed for check in found] == failed
    assert ["FAILED" in check.line() for check in found] == failed


def test_what_training_calls_is_checked(monkeypatch):
    """A kernel's own way from the projection, with the gradient of its bias."""
    monkeypatch.setattr(attention, "FROM_PROJECTION", {"new": without_the_bias_s_gradient})
    assert not any(check.passed for check in run(xla_attention, ("float32",), monkeypatch))
