"""What an update takes of a device's memory, before it is compiled.

Parameters, Adam's moments and the batch are counted as they lie on the mesh. Of the rest there are bounds, since the
compiler decides how long an array lives: all gradients exist at once, and so does all that the backward pass reads of
the forward pass. The latter is not a formula but what JAX says the backward pass needs of this very model, with its
remat, attention kernel and loss. Compilers for accelerators make what lies between products and kernels again where
it is read, so that only results of these count; the one for CPUs keeps everything, undoes remat and works in float32.
launch/compile.py has the compiler's own plan instead, and takes as long as it.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import Var
from jax.sharding import Mesh

from gpt1_jax.cross_entropy import positions_at_once
from gpt1_jax.losses import Batch, Objective
from gpt1_jax.model import GPT1
from gpt1_jax.sharding import abstract_sharded, param_shardings
from gpt1_jax.train import initial_state

GIB = 1 << 30
LM_COEF = jax.ShapeDtypeStruct((), jnp.float32)
KEEPS_EVERYTHING = ("cpu",)
"""Platforms whose compiler computes nothing twice, remat or not, and works in float32 where bfloat16 is asked for."""
COSTLY = ("dot_general", "pallas_call", "scan", "while")
"""What the other compilers do not compute twice by themselves."""


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one device.

    Attributes:
      params: float32 parameters, and copies of them in the dtype of the computation.
      moments: the optimizer's state.
      gradients: of all parameters that are trained.
      activations: what the backward pass reads of the forward pass, and the logits that exist at a time.
      available: what the device has; of a CPU, the machine. None where nobody says.
    """

    params: int
    moments: int
    gradients: int
    activations: int
    available: int | None = None

    @property
    def total(self) -> int:
        """All of it: a bound on what an update needs at once."""
        return self.params + self.moments + self.gradients + self.activations

    @property
    def fits(self) -> bool:
        """Whether it is less than what there is, as far as that is known."""
        return self.available is None or self.total <= self.available

    def __str__(self) -> str:
        """One line."""
        parts = ", ".join(f"{name} {_size(getattr(self, name))}" for name in _PARTS)
        of = "" if self.available is None else f" of {_size(self.available)}"
        return f"{_size(self.total)}{of} at most: {parts}"


_PARTS = ("params", "moments", "gradients", "activations")


def estimate_memory(
    model: GPT1,
    optimizer: optax.GradientTransformation,
    objective: Callable[[GPT1], Objective],
    batch: Mapping[str, jax.ShapeDtypeStruct],
    mesh: Mesh,
    *,
    accumulation_steps: int = 1,
    chunk: int | None = None,
) -> MemoryEstimate:
    """The estimate for an update of a run. Nothing is computed; a model is traced once.

    Args:
      model: the network.
      optimizer: its optimizer, sharded over `data` or not.
      objective: model -> what is minimised.
      batch: shapes of the whole batch, as in `losses`: tokens [B, L] or [B, C, L].
      mesh: the devices.
      accumulation_steps: micro-batches.
      chunk: of the loss.
    """
    state = abstract_sharded(lambda: initial_state(model, optimizer, 0), mesh)
    whole = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        state.params,
        param_shardings(model, mesh),
    )
    keeps_everything = mesh.devices.flat[0].platform in KEEPS_EVERYTHING
    if keeps_everything:
        model = GPT1(dataclasses.replace(model.config, remat="none", dtype="float32"), model.readout)
    minimised = objective(model)
    wide = jnp.dtype(jnp.float32).itemsize
    narrow = jnp.dtype(minimised.dtype).itemsize
    params, gathered = _bytes(state.params), _bytes(whole)
    if gathered > params or narrow < wide:
        params += gathered * narrow // wide
    trained = sum(x.size for x in jax.tree.leaves(state.opt_state)) / 2 / sum(x.size for x in jax.tree.leaves(whole))
    gradients = gathered * min(1.0, trained)
    if accumulation_steps == 1:
        gradients *= narrow / wide
    micro = {
        name: jax.ShapeDtypeStruct((x.shape[0] // accumulation_steps, *x.shape[1:]), x.dtype)
        for name, x in batch.items()
    }
    n_parts = mesh.shape["data"] * mesh.shape["fsdp"]
    with jax.set_mesh(mesh):
        kept = _read_backward(minimised, whole, micro, everything=keeps_everything or model.config.remat != "none")
        *rows, length = micro["tokens"].shape
        positions = positions_at_once((math.prod(rows), length), chunk)
    logits = (wide + narrow) * math.prod(rows) * positions * model.config.padded_rows // mesh.shape["tensor"]
    return MemoryEstimate(
        params,
        _bytes(state.opt_state),
        round(gradients),
        -(-(kept + logits) // n_parts),
        available_bytes(mesh),
    )


def available_bytes(mesh: Mesh) -> int | None:
    """The memory of a device; of a CPU that of the machine over its devices, which share it. None if it is unknown."""
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // len(mesh.local_devices)
        except (ValueError, OSError, AttributeError):  # not POSIX
            return None
    return (device.memory_stats() or {}).get("bytes_limit")


def _read_backward(objective: Objective, params: Any, batch: Any, *, everything: bool) -> int:
    """Bytes that the backward pass reads and that depend on the batch: parameters, and copies of them, do not.

    Without `everything` only what `COSTLY` operations give, and what else follows from it is made again.
    """

    def forward(batch: Batch, params: Any, key: Any, lm_coef: Any) -> Any:
        rows = jnp.arange(batch["tokens"].shape[0])
        normalized = objective.normalize(batch)

        def loss(params: Any) -> Any:
            return objective.loss(params, normalized, rows, key, {"lm_coef": lm_coef})[0]

        return jax.vjp(loss if everything else jax.checkpoint(loss, policy=_is_costly), params)[1]

    traced = jax.make_jaxpr(forward)(batch, params, jax.eval_shape(jax.random.key, 0), LM_COEF).jaxpr
    of_batch = set(traced.invars[: len(batch)])
    given = set(of_batch)
    for equation in traced.eqns:
        if any(isinstance(x, Var) and x in of_batch for x in equation.invars):
            of_batch.update(equation.outvars)
    kept = {x for x in traced.outvars if isinstance(x, Var)} & of_batch - given
    shapes = [x.aval for x in kept if isinstance(x.aval, jax.core.ShapedArray)]
    return sum(shape.size * shape.dtype.itemsize for shape in shapes)


def _is_costly(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name in COSTLY


def _bytes(tree: Any) -> int:
    """Of a device, as the shardings say."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _size(n: int) -> str:
    return f"{n / GIB:.2f} GiB" if n >= 0.1 * GIB else f"{n / (1 << 20):.1f} MiB"
