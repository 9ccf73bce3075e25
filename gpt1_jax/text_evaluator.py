"""A language model on a held-out text: perplexity, and bits per byte."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from gpt1_jax.batchwise import outputs_of
from gpt1_jax.data.windows import HeldoutWindows
from gpt1_jax.losses import LossConfig, lm_nll_sum
from gpt1_jax.model import GPT1
from gpt1_jax.pretrained import Params
from gpt1_jax.sharding import param_shardings
from gpt1_jax.train import jit_eval_step


class TextEvaluator:
    """Scores every token of a held-out text once: `evaluator(params) -> {"loss", "perplexity", "bits_per_byte"}`.

    Args:
      model: the language model.
      mesh: where it runs.
      windows: this host's part of the text.
      loss: how the loss is computed.
    """

    def __init__(self, model: GPT1, mesh: Mesh, windows: HeldoutWindows, *, loss: LossConfig = LossConfig()) -> None:
        self._mesh, self._windows = mesh, windows
        self._nll = _compiled_nll(model, mesh, loss)

    def __call__(self, params: Params) -> dict[str, float]:
        """Mean loss in nats per token, its exponential, and bits per byte of the raw text (UTF-8).

        Bits per byte do not depend on the tokenizer, so that models with different ones can be compared.
        """
        nll = 0.0
        with jax.set_mesh(self._mesh):
            for value in outputs_of(self._nll, params, self._windows, self._mesh, label="evaluation of text"):
                nll += float(value)
        loss = nll / self._windows.n_targets
        bits = nll / math.log(2.0)
        perplexity = math.exp(loss) if loss < math.log(sys.float_info.max) else math.inf
        return {"loss": loss, "perplexity": perplexity, "bits_per_byte": bits / self._windows.n_bytes}


@functools.lru_cache(maxsize=8)
def _compiled_nll(model: GPT1, mesh: Mesh, loss: LossConfig) -> Callable[..., Any]:
    # One jitted function per model and mesh, so that evaluations in one process share its compilation.
    return jit_eval_step(functools.partial(lm_nll_sum, model, config=loss), mesh, param_shardings(model, mesh))
