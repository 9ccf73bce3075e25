"""The LSTM in place of the blocks: "a single layer 2048 unit LSTM using the same framework" (paper, section 5).

    i_t, f_t, o_t = sigmoid(W x_t + U h_t-1 + b),  g_t = tanh(W x_t + U h_t-1 + b), each with W, U and b of its own
    c_t = f_t c_t-1 + i_t g_t;   h_t = o_t tanh(c_t);   out_t = P dropout(h_t) + b_P

The parameters are those of Flax's cell; its steps are computed here, see `recurrence`. What the paper leaves open
(table 5 has the scores and nothing else) is settled so:

- x_t is what the first block would read: the embeddings of the token and of its position, with their dropout.
- The tied head wants n_embd numbers, so that the units are projected by P.
- Dropout falls on the embeddings (`embd_pdrop`) and on what leaves the units (`resid_pdrop`), before P, since W_y drops
  what comes after it; nothing is dropped from one step to the next, as Zaremba et al. (2014) found best.
- The start. The paper's N(0, 0.02) is for layers whose input a LayerNorm has scaled; here embeddings of that size would
  leave all gates half open and the loss, long, where the frequencies of single tokens bring it. So W is drawn wide
  enough for W x to have variance one. U is orthogonal and b zero, as in Flax; P has LeCun's 1 / sqrt(lstm_units), which
  with 2048 units is the paper's 0.02.

Shapes: B batch, L length, D n_embd, U lstm_units, G 4 lstm_units.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32

from gpt1_jax.block import INIT_STD, Context, linear
from gpt1_jax.dropout import dropout_site
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.precision import matmul_precision
from gpt1_jax.sharding import constrain

State = tuple[Float32[Array, "B U"], Float32[Array, "B U"]]
"""c and h, float32 [B, U] each: what of all tokens so far the next step knows."""

_GATES = "ifgo"
"""In the order in which they lie on the axis G."""


def zero_state(config: GPT1Config, batch_size: int) -> State:
    """Before the first token."""
    zeros = jnp.zeros((batch_size, config.lstm_units), jnp.float32)
    return zeros, zeros


class LSTM(nn.Module):
    """One layer of `lstm_units`, and the projection of its output to n_embd."""

    config: GPT1Config

    def setup(self) -> None:
        """The cell and the projection."""
        self.cell = _make_cell(self.config)
        init = nn.initializers.lecun_normal()
        self.c_proj = linear(self.config, self.config.n_embd, (None, "embed"), init=init)

    def __call__(
        self, x_BxLxD: Float[Array, "B L D"], context: Context, state: State | None = None
    ) -> tuple[Float[Array, "B L D"], State]:
        """Reads the tokens one after another.

        Args:
          x_BxLxD: embeddings.
          context: of the call. A token that its mask calls padding leaves the state as it was, on whichever side it is.
          state: what came before; None: nothing.

        Returns:
          [B, L, D], and the state after the last real token of each row.
        """
        c = self.config
        state = zero_state(c, x_BxLxD.shape[0]) if state is None else state
        if self.is_initializing():
            self.cell(state, x_BxLxD[:, 0])
        units, state = self._run(x_BxLxD, context.kv_mask, state)
        dropout = dropout_site(self, "units", c.resid_pdrop, context.rows, context.deterministic)
        units = units if dropout is None else dropout(units)
        return constrain(self.c_proj(units), "batch", None, None), state

    @nn.nowrap
    def _run(
        self, x_BxLxD: Float[Array, "B L D"], real_BxL: Bool[Array, "B L"] | None, state: State
    ) -> tuple[Float[Array, "B L U"], State]:
        """Every h_t, [B, L, U], and the last state."""
        dtype = jnp.dtype(self.config.dtype)
        params = jax.tree.map(lambda x: _whole(x, dtype), nn.unbox(self.cell.variables["params"]))

        def gates(name: str, leaf: str) -> Array:
            return jnp.concatenate([params[name + gate][leaf] for gate in _GATES], axis=-1)

        z_LxBxG = jnp.einsum("bld,dg->lbg", x_BxLxD, gates("i", "kernel"), precision=matmul_precision(dtype))
        z_LxBxG = z_LxBxG.astype(jnp.float32) + gates("h", "bias")
        c, h = (constrain(x, "batch", None) for x in state)
        real_LxB = None if real_BxL is None else real_BxL.T
        units, state = recurrence(constrain(z_LxBxG, None, "batch", None), gates("h", "kernel"), (c, h), real_LxB)
        return constrain(units.swapaxes(0, 1).astype(dtype), "batch", None, None), state


@jax.custom_vjp
def recurrence(
    z: Float32[Array, "L B G"], kernel: Float[Array, "U G"], state: State, real: Bool[Array, "L B"] | None
) -> tuple[Float32[Array, "L B U"], State]:
    """h_t of every step, and the last state.

    A scan of the plain cell adds to the gradient of the recurrent matrix, U x 4U, in every step of its backward pass;
    here that gradient is one product over all steps.

    Args:
      z: float32 [L, B, 4U], W x_t + b of the four gates.
      kernel: [U, 4U], the recurrent matrix, in the dtype of the products.
      state: before the first step.
      real: bool [L, B], steps that count; None: all.
    """

    def step(state: State, inputs: tuple[Array, Array | None]) -> tuple[State, Array]:
        new, _ = _step(state, *inputs, kernel)
        return new, new[1]

    last, units = jax.lax.scan(step, state, (z, real))
    return units, last


def _forward(z: Array, kernel: Array, state: State, real: Array | None) -> tuple[tuple[Array, State], Any]:
    def step(state: State, inputs: tuple[Array, Array | None]) -> tuple[State, Any]:
        new, gates = _step(state, *inputs, kernel)
        return new, (gates, state, new[1])

    last, (gates, before, units) = jax.lax.scan(step, state, (z, real))
    return (units, last), (gates, before, kernel, real)


def _backward(kept: Any, cotangents: tuple[Array, State]) -> tuple[Array, Array, State, None]:
    gates, before, kernel, real = kept
    d_units, d_last = cotangents

    def step(d_state: State, inputs: Any) -> tuple[State, Array]:
        gates, state, real, d_h = inputs
        _, pull = jax.vjp(lambda gates, state: _gated(gates, state, real), gates, state)
        d_gates, (d_c, d_h) = pull((d_state[0], d_state[1] + d_h))
        return (d_c, d_h + _product(d_gates, kernel.T)), d_gates

    d_state, d_z = jax.lax.scan(step, d_last, (gates, before, real, d_units), reverse=True)
    d_kernel = jnp.einsum(
        "lbu,lbg->ug",
        *(x.astype(kernel.dtype) for x in (before[1], d_z)),
        precision=matmul_precision(kernel.dtype),
        preferred_element_type=jnp.float32,
    )
    return d_z, d_kernel.astype(kernel.dtype), d_state, None


recurrence.defvjp(_forward, _backward)


def _step(state: State, z: Array, real: Array | None, kernel: Array) -> tuple[State, Array]:
    """The next state, and the sums of the four gates."""
    gates = z + _product(state[1], kernel)
    return _gated(gates, state, real), gates


def _gated(gates: Float32[Array, "B G"], state: State, real: Bool[Array, " B"] | None) -> State:
    """The next state from the sums of the four gates."""
    i, f, g, o = jnp.split(gates, len(_GATES), axis=-1)
    c = jax.nn.sigmoid(f) * state[0] + jax.nn.sigmoid(i) * jnp.tanh(g)
    new = c, jax.nn.sigmoid(o) * jnp.tanh(c)
    if real is None:
        return new
    return jax.tree.map(lambda after, before: jnp.where(real[:, None], after, before), new, state)


def _product(x: Array, kernel: Array) -> Array:
    """A product in the dtype of the matrix, summed in float32."""
    return jnp.matmul(
        x.astype(kernel.dtype),
        kernel,
        precision=matmul_precision(kernel.dtype),
        preferred_element_type=jnp.float32,
    )


def _make_cell(config: GPT1Config, **kwargs: Any) -> nn.OptimizedLSTMCell:
    # The input is the sum of two embeddings, and has 2 INIT_STD^2 of variance.
    widened = nn.initializers.variance_scaling(1 / (2 * INIT_STD**2), "fan_in", "normal")
    return nn.OptimizedLSTMCell(
        config.lstm_units,
        dtype=jnp.dtype(config.dtype),
        kernel_init=nn.with_logical_partitioning(widened, ("embed", None)),
        recurrent_kernel_init=nn.with_logical_partitioning(nn.initializers.orthogonal(), ("embed", None)),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros_init(), (None,)),
        **kwargs,
    )


def _whole(x: Array, dtype: jnp.dtype) -> Array:
    """A parameter as all steps take it, brought together before the first of them."""
    return constrain(x.astype(dtype) if x.ndim > 1 else x, *[None] * x.ndim)
