"""What the peers on PyTorch share: the update, the evaluation, and how to wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.optim import OptimizerConfig
from gpt1_jax.tokenizers.parallel import n_cores

Loss = Callable[[torch.Tensor], torch.Tensor]
"""Int64 [B, L] -> the mean loss of all targets."""


def device() -> torch.device:
    """That which JAX computes on, with all cores if it is the CPU."""
    if jax.default_backend() == "gpu":
        return torch.device("cuda")
    torch.set_num_threads(n_cores())
    return torch.device("cpu")


def wait(result: Any = None) -> None:
    """Comes back when the device has nothing left to do."""
    del result
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def computing_in(config: GPT1Config) -> torch.autocast:
    """Matrix products in the config's dtype, parameters in float32."""
    return torch.autocast(device().type, torch.bfloat16, enabled=config.dtype == "bfloat16")


def train(
    name: str,
    model: nn.Module,
    loss: Loss,
    config: GPT1Config,
    optimizer: OptimizerConfig,
    tokens: np.ndarray,
    about: str,
) -> Contestant:
    """An update from int32 [B, L]: gradients, clipping by the global norm, fused AdamW that decays matrices."""
    parameters = list(model.parameters())
    adam = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": optimizer.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=optimizer.learning_rate,
        betas=(optimizer.b1, optimizer.b2),
        eps=optimizer.eps,
        fused=True,
    )
    batch = torch.from_numpy(tokens.astype(np.int64))
    model.train()

    def update() -> torch.Tensor:
        with computing_in(config):
            value = loss(batch.to(device()))
        value.backward()
        if optimizer.clip_norm:
            nn.utils.clip_grad_norm_(parameters, optimizer.clip_norm)
        adam.step()
        adam.zero_grad(set_to_none=True)
        return value.detach()

    return Contestant(
        name,
        update,
        wait,
        amount=tokens.size,
        n_parameters=count(model),
        about=f"{about}, fused AdamW, PyTorch {torch.__version__}, {torch.get_num_threads()} threads",
    )


def evaluate(name: str, model: nn.Module, loss: Loss, config: GPT1Config, tokens: np.ndarray, about: str) -> Contestant:
    """The loss of int32 [N, B, L], batch by batch, without dropout or gradients."""
    batches = torch.from_numpy(tokens.astype(np.int64))
    model.eval()

    @torch.inference_mode()
    def score() -> float:
        with computing_in(config):
            return sum(loss(batch.to(device())) for batch in batches).item()

    return Contestant(
        name,
        score,
        wait,
        amount=tokens.size,
        n_parameters=count(model),
        about=f"{about}, PyTorch {torch.__version__}",
    )


def count(model: nn.Module) -> int:
    """Parameters, shared ones once."""
    return sum(p.numel() for p in model.parameters())
