"""A GPT of the same size as one would write it in PyTorch today: fused attention with dropout, `torch.compile`."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gpt1_jax.benchmark.peers import torch_work
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.optim import OptimizerConfig

NAME = "torch"
_ABOUT = "scaled_dot_product_attention, torch.compile"
_ACTIVATIONS = {"gelu": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "swish": F.silu}


class Block(nn.Module):
    """Post-LayerNorm: x = LN(x + attention(x)); LN(x + mlp(x))."""

    def __init__(self, config: GPT1Config) -> None:
        super().__init__()
        d = config.n_embd
        self.n_head, self.attn_pdrop, self.activation = config.n_head, config.attn_pdrop, config.activation
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.mlp_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.ln_1, self.ln_2 = nn.LayerNorm(d, eps=1e-5), nn.LayerNorm(d, eps=1e-5)
        self.drop = nn.Dropout(config.resid_pdrop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, D] -> [B, L, D]."""
        n_batch, n_tokens, d = x.shape
        q, k, v = self.qkv(x).view(n_batch, n_tokens, 3, self.n_head, d // self.n_head).permute(2, 0, 3, 1, 4)
        rate = self.attn_pdrop if self.training else 0.0
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        x = self.ln_1(x + self.drop(self.proj(a.transpose(1, 2).reshape(x.shape))))
        return self.ln_2(x + self.drop(self.mlp_proj(_ACTIVATIONS[self.activation](self.fc(x)))))


class Model(nn.Module):
    """The mean loss of int64 [B, L]."""

    def __init__(self, config: GPT1Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.n_rows, config.n_embd)
        self.positions = nn.Embedding(config.n_ctx, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """L1, with the logits of all positions but the last."""
        x = self.drop(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits = F.linear(x[:, :-1], self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _model(config: GPT1Config) -> Model:
    torch.manual_seed(0)
    return Model(config).to(torch_work.device())


def train(config: GPT1Config, optimizer: OptimizerConfig, tokens: np.ndarray) -> Contestant:
    """An update from int32 [B, L]."""
    model = _model(config)
    return torch_work.train(NAME, model, torch.compile(model), config, optimizer, tokens, _ABOUT)


def evaluate(config: GPT1Config, tokens: np.ndarray) -> Contestant:
    """The loss of int32 [N, B, L], batch by batch, without dropout."""
    model = _model(config)
    return torch_work.evaluate(NAME, model, torch.compile(model), config, tokens, _ABOUT)
