"""A fine-tuned model on the splits of its task: encoded examples in, predictions and metrics out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gpt1_jax.batchwise import outputs_of
from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.labelled import eval_batches
from gpt1_jax.losses import task_outputs
from gpt1_jax.model import GPT1
from gpt1_jax.pretrained import Params
from gpt1_jax.sharding import param_shardings, row_blocks
from gpt1_jax.tasks.metrics import evaluate_predictions, evaluate_scores
from gpt1_jax.tasks.spec import TaskSpec
from gpt1_jax.train import jit_eval_step

OnBatch = Callable[[np.ndarray, np.ndarray], None]
"""(index int [b] of examples in their split, what is predicted of them: float64 [b, K], or [b] of scores)."""


class TaskEvaluator:
    """Predicts every example of a split once: `evaluator(params) -> (predicted, loss)`.

    Args:
      model: a model with a readout.
      mesh: where it runs.
      split: the encoded examples.
      batch_size: examples in a batch, over all devices.
      buckets: lengths that a batch may have.
    """

    def __init__(
        self,
        model: GPT1,
        mesh: Mesh,
        split: EncodedSplit,
        *,
        batch_size: int,
        buckets: Sequence[int] | None = None,
    ) -> None:
        self._mesh, self._split = mesh, split
        self._batches = eval_batches(
            split,
            batch_size=batch_size,
            buckets=buckets,
            **row_blocks(mesh),
        )
        self._step = _compiled_predict(model, mesh)

    def __call__(self, params: Params, on_batch: OnBatch | None = None) -> tuple[np.ndarray, float]:
        """What is predicted, in the order of the split, and the mean of the task's loss (NaN without labels).

        Args:
          params: the model's parameters.
          on_batch: is told what is predicted of each batch as soon as it is known, short examples first.

        Returns:
          probabilities float64 [N, K], or scores float64 [N] of a task of scores; and the unweighted mean of -log
          P(label), or of `scores.score_loss`.
        """
        n, loss = len(self._split), 0.0
        predicted: np.ndarray | None = None
        with jax.set_mesh(self._mesh):
            label = f"evaluation of split {self._split.name}"
            for out in outputs_of(self._step, params, self._batches, self._mesh, label=label):
                if predicted is None:
                    predicted = np.zeros((n, *out["predicted"].shape[1:]))
                real = out["index"] >= 0
                index = out["index"][real]
                predicted[index] = out["predicted"][real]
                if on_batch is not None:
                    on_batch(index, predicted[index])
                loss += float(out["task_nll"][real].sum(dtype=np.float64))
        assert predicted is not None, "a split has examples"
        return predicted, math.nan if self._split.n_unlabelled else loss / n


@functools.lru_cache(maxsize=8)
def _compiled_predict(model: GPT1, mesh: Mesh) -> Callable[..., Any]:
    # One jitted function for all evaluators of a model, so that runs in one process share its compilations.
    def step(params: Params, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        label = batch["label"]
        known = ~jnp.isnan(label) if jnp.issubdtype(label.dtype, jnp.floating) else label >= 0
        out = task_outputs(model, params, batch | {"label": jnp.where(known, label, 0)})
        return {
            "predicted": out["scores"] if "scores" in out else jax.nn.softmax(out["logits"], axis=-1),
            "task_nll": out["task_nll"],
            "index": batch["index"],
        }

    return jit_eval_step(step, mesh, param_shardings(model, mesh))


def task_metrics(
    spec: TaskSpec, split: EncodedSplit, predicted: np.ndarray, loss: float, *, warn: bool = True
) -> dict[str, float]:
    """The task's metrics and the loss, from what a `TaskEvaluator` gives; `warn` as in `tasks.metrics`."""
    if spec.score_range is None:
        names = split.label_names
        metrics = evaluate_predictions(spec.metrics, split.labels, predicted, names=names, split=split.name, warn=warn)
    else:
        metrics = evaluate_scores(spec.metrics, split.labels, predicted, split=split.name, warn=warn)
    return {**metrics, "loss": loss}
