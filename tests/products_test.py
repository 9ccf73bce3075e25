"""The product of a layer."""

import re

import jax
import numpy as np
import pytest

from gpt1_jax import products
from gpt1_jax.products import layer_product

X, KERNEL, D_PRODUCT = (
    np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((2, 7, 5), (5, 3, 4), (2, 7, 3, 4))
)


def product_and_gradients(x: jax.Array, kernel: jax.Array, d_product: jax.Array) -> tuple[jax.Array, ...]:
    product, backward = jax.vjp(layer_product, x, kernel)
    return product, *backward(d_product)


@pytest.mark.parametrize("alone", [True, False])
def test_the_product_and_its_gradients(alone: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "alone_on_cpu", lambda: alone)
    got = product_and_gradients(X, KERNEL, D_PRODUCT)
    x, kernel, d_product = (np.float64(a) for a in (X, KERNEL, D_PRODUCT))
    wanted = (
        np.einsum("bld,dpe->blpe", x, kernel),
        np.einsum("blpe,dpe->bld", d_product, kernel),
        np.einsum("bld,blpe->dpe", x, d_product),
    )
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_on_a_cpu_no_operand_and_no_gradient_is_transposed():
    text = jax.jit(product_and_gradients).lower(X, KERNEL, D_PRODUCT).compile().as_text()
    assert "dot(" in text
    assert not re.findall(r" (?:copy|transpose)\(", text)


def test_on_several_devices_the_axes_of_a_kernel_stay():
    mesh = jax.make_mesh((len(jax.devices()),), ("tensor",))
    with jax.set_mesh(mesh):
        text = jax.jit(layer_product).lower(X, KERNEL).as_text()
    assert "reshape" not in text
