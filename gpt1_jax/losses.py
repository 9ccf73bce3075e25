"""The paper's three losses: L1 (language modelling), L2 (the task) and L3 = L2 + lambda L1.

Every loss is a weighted sum over tokens and examples. An `Objective` first normalises the weights over the whole
global batch (`normalize`), after which its `loss` adds up over any partition of the rows: k micro-batches, or the
shards of k devices, give the loss and the gradients of the one large batch, also where rows hold unequal numbers of
tokens.

Shapes: B batch, C streams of one example, L length, D n_embd, R table rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float32, Int

from gpt1_jax.config import check_fields
from gpt1_jax.cross_entropy import next_token_nll as next_token_nll  # beside the other losses
from gpt1_jax.cross_entropy import weighted_nll
from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, apply
from gpt1_jax.scores import predicted_scores, score_loss

Batch = dict[str, Array]
Metrics = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """How the LM loss is computed; every way gives the same value and gradients.

    Attributes:
      chunk: number of positions whose logits exist at a time: memory falls from [B, L, R] to [B, chunk, R]. 0 computes
        all at once; None chooses by the device and the size, see `cross_entropy.positions_at_once`.
    """

    chunk: int | None = None

    def __post_init__(self) -> None:
        """Checks the range."""
        check_fields(self, "loss")
        if self.chunk is not None and self.chunk < 0:
            raise InputError(
                f"loss.chunk={self.chunk} must be at least 1, 0 for all positions at once, or None for what suits the "
                "device"
            )


def lm_batch_shapes(n_rows: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch of `lm_objective` as shapes."""
    shape = (n_rows, length)
    return {"tokens": jax.ShapeDtypeStruct(shape, jnp.int32), "mask": jax.ShapeDtypeStruct(shape, jnp.float32)}


def task_batch_shapes(
    n_rows: int, n_streams: int, length: int, *, scores: bool = False
) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch of `task_objective` as shapes; of scores the labels are floats."""
    shape = (n_rows, n_streams, length)
    return {
        "tokens": jax.ShapeDtypeStruct(shape, jnp.int32),
        "mask": jax.ShapeDtypeStruct(shape, jnp.float32),
        "stream_mask": jax.ShapeDtypeStruct((n_rows, n_streams), jnp.bool_),
        "label": jax.ShapeDtypeStruct((n_rows,), jnp.float32 if scores else jnp.int32),
        "weight": jax.ShapeDtypeStruct((n_rows,), jnp.float32),
    }


def task_nll(
    logits: Float32[Array, "B n_labels"], labels: Int[Array, " B"], stream_mask: Bool[Array, "B n_labels"] | None = None
) -> Float32[Array, " B"]:
    """-log P(label | example) (paper, equation 4): float32 [B].

    Args:
      logits: float32 [B, n_labels]; for multiple choice [B, C].
      labels: int32 [B].
      stream_mask: bool [B, C], False where an example has no such answer (multiple choice only).
    """
    return optax.softmax_cross_entropy_with_integer_labels(mask_answers(logits, stream_mask), labels)


def mask_answers(
    logits: Float32[Array, "B n_labels"], stream_mask: Bool[Array, "B n_labels"] | None
) -> Float32[Array, "B n_labels"]:
    """The logits with answers that do not exist at a value that never wins."""
    return logits if stream_mask is None else jnp.where(stream_mask, logits, jnp.finfo(jnp.float32).min)


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a train step minimises.

    Attributes:
      normalize: batch -> batch whose weights sum to one over the whole global batch.
      loss: (params, normalised rows of it, their global row numbers, dropout key, scheduled values) -> (loss,
        metrics), all of which add up over the rows.
      dtype: in which the gradients of matrices come about, before they become float32.
    """

    normalize: Callable[[Batch], Batch]
    loss: Callable[[Any, Batch, Array, Array, Mapping[str, Array]], tuple[Array, Metrics]]
    dtype: str = "float32"


def lm_objective(model: GPT1, config: LossConfig = LossConfig()) -> Objective:
    """L1, averaged over the target tokens of {"tokens": int32 [B, L], "mask": float32 [B, L]}."""

    def normalize(batch: Batch) -> Batch:
        mask = batch["mask"]
        return batch | {"mask": mask / jnp.maximum(mask[:, 1:].sum(), 1.0)}

    def loss(
        params: Any, batch: Batch, rows: Array, key: Array, scheduled: Mapping[str, Array]
    ) -> tuple[Array, Metrics]:
        del scheduled
        h, table = model.apply(
            {"params": params},
            batch["tokens"],
            rows=rows,
            deterministic=False,
            rngs={"dropout": key},
            method=GPT1.features,
        )
        value = weighted_nll(h, table, batch["tokens"], batch["mask"][:, 1:], model.config.n_logits, config.chunk)
        return value, {"loss": value}

    return Objective(normalize, loss, model.config.dtype)


def lm_nll_sum(model: GPT1, params: Any, batch: Batch, config: LossConfig = LossConfig()) -> Float32[Array, ""]:
    """-log P of all target tokens of {"tokens": int32 [B, L], "mask": float32 [B, L]}, without dropout.

    Returns:
      float32 [], in nats: the sum over tokens of their mask times their loss.
    """
    h, table = model.apply({"params": params}, batch["tokens"], method=GPT1.features)
    return weighted_nll(h, table, batch["tokens"], batch["mask"][:, 1:], model.config.n_logits, config.chunk)


def task_objective(model: GPT1, config: LossConfig = LossConfig(), *, with_lm: bool = True) -> Objective:
    """L3 = L2 + lambda L1 (paper, equation 5), both from one forward pass.

    L2 is the mean over examples, sum_i w_i l_i / sum_i w_i with their weights. L1 is, as in the official code, the mean
    over streams of each stream's mean over its tokens, special ones included; it knows no weights.

    Args:
      model: a model with a readout. A batch is {"tokens": int32 [B, C, L], "mask": float32 [B, C, L], "stream_mask":
        bool [B, C], "label": int32 [B], or float32 [B] for scores, "weight": float32 [B], 0 for padding}; the scheduled
        value "lm_coef" is lambda. Beside the losses, the metrics have the accuracy of the rows or, of scores, their
        mean squared error, neither of them weighted.
      config: how L1 is computed.
      with_lm: False for a lambda that is 0 throughout: neither L1 nor the product with the vocabulary is computed.
    """

    def normalize(batch: Batch) -> Batch:
        weight, mask = batch["weight"], batch["mask"]
        present = weight > 0
        real = batch["stream_mask"] * present[:, None]
        per_stream = real / jnp.maximum(mask[:, :, 1:].sum(-1), 1.0) / jnp.maximum(real.sum(), 1.0)
        return batch | {
            "weight": weight / jnp.maximum(weight.sum(), 1e-9),
            "share": present / jnp.maximum(present.sum(), 1),
            "mask": mask * per_stream[..., None],
        }

    def loss(
        params: Any, batch: Batch, rows: Array, key: Array, scheduled: Mapping[str, Array]
    ) -> tuple[Array, Metrics]:
        def l1(h: Array, table: Array, tokens: Array) -> Array:
            weights = batch["mask"].reshape(tokens.shape)[:, 1:]
            return weighted_nll(h, table, tokens, weights, model.config.n_logits, config.chunk)

        outputs = _task_forward(model, params, batch, l1 if with_lm else None, rows=rows, key=key)
        l2 = jnp.sum(outputs["task_nll"] * batch["weight"])
        if model.task_readout.score_range is None:
            name, figures = "accuracy", outputs["logits"].argmax(-1) == batch["label"]
        else:
            name, figures = "squared_error", jnp.square(outputs["scores"] - batch["label"])
        metrics = {"task_loss": l2, name: jnp.sum(figures * batch["share"])}
        if not with_lm:
            return l2, {"loss": l2, **metrics}
        value = l2 + scheduled["lm_coef"] * outputs["lm"]
        return value, {"loss": value, "lm_loss": outputs["lm"], **metrics}

    return Objective(normalize, loss, model.config.dtype)


def task_outputs(
    model: GPT1,
    params: Any,
    batch: Batch,
    config: LossConfig = LossConfig(),
    *,
    rows: Int[Array, " B"] | None = None,
    key: Array | None = None,
) -> dict[str, Array]:
    """One forward pass of a labelled batch, with dropout where a key is given.

    Args:
      model: a model with a readout.
      params: its parameters.
      batch: as in `task_objective`.
      config: how L1 is computed.
      rows: int32 [B], global row numbers, which decide the dropout masks; default 0 to B - 1.
      key: of the dropout of this step; None for none.

    Returns:
      "logits" float32 [B, n_labels or C], missing answers masked; "task_nll" float32 [B]; "lm_nll" float32
      [B, C, L - 1]. For scores "logits" are the outputs of W_y, "task_nll" is the loss of `gpt1_jax.scores`, and there
      is "scores", float32 [B], what is predicted.
    """
    n_batch, n_streams, n_tokens = batch["tokens"].shape

    def lm_nll(h: Array, table: Array, tokens: Array) -> Array:
        return next_token_nll(h, table, tokens, n_rows=model.config.n_logits, chunk=config.chunk)

    outputs = _task_forward(model, params, batch, lm_nll, rows=rows, key=key)
    nll = outputs.pop("lm")
    return outputs | {"lm_nll": nll.reshape(n_batch, n_streams, n_tokens - 1)}


def _task_forward(
    model: GPT1,
    params: Any,
    batch: Batch,
    lm: Callable[[Array, Array, Array], Array] | None,
    *,
    rows: Array | None,
    key: Array | None,
) -> dict[str, Array]:
    """`task_outputs` with, in place of "lm_nll", "lm": what `lm` makes of h [B C, L, D], the table and the tokens."""
    tokens = batch["tokens"]
    n_batch, n_streams, n_tokens = tokens.shape
    rows = jnp.arange(n_batch) if rows is None else rows

    def forward(m: GPT1) -> tuple[Array, dict[str, Array]]:
        flat = tokens.reshape(-1, n_tokens)
        flat_rows = (rows[:, None] * n_streams + jnp.arange(n_streams)).reshape(-1)
        h, table = m.features(flat, rows=flat_rows, deterministic=key is None)
        outputs = {} if lm is None else {"lm": lm(h, table, flat)}
        h = h.reshape(n_batch, n_streams, n_tokens, -1)
        at = _last_real(batch["mask"]) if m.task_readout.read_at == "last" else None
        return m.task_logits(h, tokens, at=at, rows=rows, deterministic=key is None), outputs

    rngs = None if key is None else {"dropout": key}
    logits, outputs = apply(model, params, forward, rngs=rngs)
    readout = model.task_readout
    if readout.score_range is not None:
        loss = score_loss(logits, batch["label"], readout)
        scores = predicted_scores(logits, readout)
        return outputs | {"logits": logits, "scores": scores, "task_nll": loss}
    answers = batch["stream_mask"] if readout.kind == "multiple_choice" else None
    return outputs | {"logits": mask_answers(logits, answers), "task_nll": task_nll(logits, batch["label"], answers)}


def _last_real(mask: Float32[Array, "B C L"]) -> Int[Array, "B C"]:
    """Index of the last token of each stream that is not padding, 0 where all is: [B, C, L] -> int32 [B, C]."""
    return jnp.max(jnp.where(mask > 0, jnp.arange(mask.shape[-1]), 0), axis=-1)
