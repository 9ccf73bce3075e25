"""Evaluation of a language model on windows of text, and decoding from it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt1_jax.benchmark.settings import Settings
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.benchmark.training import OURS, how_it_runs
from gpt1_jax.data.windows import heldout_windows
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.model import GPT1, count_parameters
from gpt1_jax.sampling import generate_tokens
from gpt1_jax.sharding import jit_init, make_mesh, row_blocks
from gpt1_jax.text_evaluator import TextEvaluator

_NEW_TOKENS = 256


class _Stream(NamedTuple):
    """Tokens in memory, as `data.windows.TokenStream`."""

    tokens: np.ndarray

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.tokens[start:stop]

    def bytes_before(self, positions: np.ndarray) -> np.ndarray:
        return 4 * positions


def evaluation(settings: Settings, batch_size: int) -> Contestant:
    """Perplexity of a random text that fills `n_batches` batches."""
    model, mesh = GPT1(settings.model), make_mesh(settings.pretrain.mesh)
    n_ctx = model.config.n_ctx
    n_windows = n_batches() * batch_size
    stream = _Stream(settings.tokens(n_windows * (n_ctx - 1) + 1))
    windows = heldout_windows(stream, n_ctx=n_ctx, batch_size=batch_size, **row_blocks(mesh))
    evaluator = TextEvaluator(model, mesh, windows, loss=settings.pretrain.loss)
    n_tokens = n_windows * n_ctx
    return Contestant(
        OURS,
        functools.partial(evaluator, _parameters(model, settings)),
        amount=n_tokens,
        flops=n_tokens * train_flops_per_token(model.config, n_ctx) / 3,
        n_parameters=count_parameters(model.config),
        about=how_it_runs(model, mesh),
    )


def n_batches() -> int:
    """Of an evaluation."""
    return 1 if jax.default_backend() == "cpu" else 8


def decoding(settings: Settings, batch_size: int) -> Contestant:
    """Continues `batch_size` prompts of random tokens at once."""
    model = GPT1(settings.model)
    prompts, n_new = prompts_of(settings, batch_size)
    return Contestant(
        OURS,
        functools.partial(generate_tokens, model, _parameters(model, settings), prompts.tolist(), max_new_tokens=n_new),
        amount=batch_size * n_new,
        n_parameters=count_parameters(model.config),
        about=f"{model.config.dtype}, keys and values cached, drawn from all of the distribution",
    )


def prompts_of(settings: Settings, batch_size: int) -> tuple[np.ndarray, int]:
    """Prompts int32 [B, P], and how many tokens each gets."""
    fit = settings.model.n_ctx - settings.n_prompt
    return settings.tokens(batch_size, settings.n_prompt), settings.new_tokens or min(_NEW_TOKENS, fit)


def _parameters(model: GPT1, settings: Settings) -> Any:
    init, _ = jit_init(lambda seed: model.init_partitioned(jax.random.key(seed)), make_mesh(settings.pretrain.mesh))
    return init(np.uint32(0))
