"""The LSTM in place of the blocks: "a single layer 2048 unit LSTM using the same framework" (paper, section 5).

    i_t, f_t, o_t = sigmoid(W x_t + U h_t-1 + b),  g_t = tanh(W x_t + U h_t-1 + b), each with W, U and b of its own
    c_t = f_t c_t-1 + i_t g_t;   h_t = o_t tanh(c_t);   out_t = P dropout(h_t) + b_P

The cell is Flax's. What the paper leaves open (table 5 has the scores and nothing else) is settled so:

- x_t is what the first block would read: the embeddings of the token and of its position, with their dropout.
- The tied head wants n_embd numbers, so that the units are projected by P.
- Dropout falls on the embeddings (`embd_pdrop`) and on what leaves the units (`resid_pdrop`), before P, since W_y drops
  what comes after it; nothing is dropped from one step to the next, as Zaremba et al. (2014) found best.
- The start. The paper's N(0, 0.02) is for layers whose input a LayerNorm has scaled; here embeddings of that size would
  leave all gates half open and the loss, long, where the frequencies of single tokens bring it. So W is drawn wide
  enough for W x to have variance one. U is orthogonal and b zero, as in Flax; P has LeCun's 1 / sqrt(lstm_units), which
  with 2048 units is the paper's 0.02.

Shapes: B batch, L length, D n_embd, U lstm_units.
"""

from __future__ import annotations

import contextlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32

from gpt1_jax.block import INIT_STD, Context, linear
from gpt1_jax.dropout import dropout_site
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.sharding import constrain

State = tuple[Float32[Array, "B U"], Float32[Array, "B U"]]
"""c and h, float32 [B, U] each: what of all tokens so far the next step knows."""


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
        cell = _make_cell(self.config, parent=None)
        params = jax.tree.map(lambda x: _whole(x, dtype), nn.unbox(self.cell.variables["params"]))

        def step(state: State, inputs: tuple[Array, Array | None]) -> tuple[State, Array]:
            x, real = inputs
            applied: Any = cell.apply({"params": params}, state, x)
            new, h = applied
            if real is not None:
                new = jax.tree.map(lambda after, before: jnp.where(real[:, None], after, before), new, state)
            return new, h.astype(dtype)

        xs = (x_BxLxD.swapaxes(0, 1), None if real_BxL is None else real_BxL.T)
        # Flax's cell has no argument for it, see `precision.matmul_precision`.
        exact = jax.default_matmul_precision("highest") if dtype == jnp.float32 else contextlib.nullcontext()
        with exact:
            c, h = (constrain(x, "batch", None) for x in state)
            state, units = jax.lax.scan(step, (c, h), xs)
        return constrain(units.swapaxes(0, 1), "batch", None, None), state


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
    """A parameter as all steps take it: brought together once, not in each of them.

    Float32 again after it has travelled in the dtype of the computation, in which the cell multiplies: so its gradient
    is a float32 sum over the steps.
    """
    travels = x.astype(dtype) if x.ndim > 1 else x
    return constrain(travels, *[None] * x.ndim).astype(jnp.float32)
