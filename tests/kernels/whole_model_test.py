"""A whole model with each kernel of attention, interpreted on a CPU, against itself with plain attention."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.attention import KERNELS
from gpt1_jax.model import GPT1, GPT1Config

CHANGES = ({}, {"remat": "full"}, {"remat": "dots"}, {"scan_layers": True})
QUICK = ("tpu", {})
CASES = [
    pytest.param(kernel, changes, marks=[] if (kernel, changes) == QUICK else pytest.mark.slow)
    for kernel in sorted({*KERNELS} - {"xla"})
    for changes in CHANGES
]


@pytest.mark.parametrize(("kernel", "changes"), CASES)
def test_a_whole_model(kernel, changes):
    """Its loss and its gradients, all dropout on; also where the backward pass repeats the kernel's forward pass."""
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 50, (2, 24)))
    sizes = {"vocab_size": 50, "n_ctx": 32, "n_embd": 128, "n_head": 2, "n_layer": 2, **changes}
    params = GPT1(GPT1Config(**sizes)).init(jax.random.key(0), tokens)["params"]

    @functools.partial(jax.jit, static_argnums=1)
    def loss(params: Any, kernel: str) -> jax.Array:
        model = GPT1(GPT1Config(**sizes, attention=kernel))
        real = jnp.arange(24) < jnp.array([[24], [17]])
        logits = model.apply(
            {"params": params}, tokens, attention_mask=real, deterministic=False, rngs={"dropout": jax.random.key(1)}
        )
        found = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1)[..., 0]
        return -(found * real[:, 1:]).mean()

    (ours, dours), (theirs, dtheirs) = (jax.value_and_grad(loss)(params, name) for name in (kernel, "xla"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    size = max(np.abs(x).max() for x in jax.tree.leaves(dtheirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * size), dours, dtheirs)
