"""OpenAIGPTLMHeadModel of Hugging Face transformers, as it comes: the one widely used GPT-1 on PyTorch."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

from gpt1_jax.benchmark.peers import torch_work
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.optim import OptimizerConfig

NAME = "transformers"
_ABOUT = f"transformers {transformers.__version__}"


def _model(config: GPT1Config) -> OpenAIGPTLMHeadModel:
    torch.manual_seed(0)
    return OpenAIGPTLMHeadModel(
        OpenAIGPTConfig(
            vocab_size=config.n_rows,
            n_positions=config.n_ctx,
            n_embd=config.n_embd,
            n_layer=config.n_layer,
            n_head=config.n_head,
            afn=config.activation,
            embd_pdrop=config.embd_pdrop,
            attn_pdrop=config.attn_pdrop,
            resid_pdrop=config.resid_pdrop,
        )
    ).to(torch_work.device())


def train(config: GPT1Config, optimizer: OptimizerConfig, tokens: np.ndarray) -> Contestant:
    """An update from int32 [B, L]."""
    model = _model(config)
    return torch_work.train(NAME, model, lambda x: model(x, labels=x).loss, config, optimizer, tokens, _ABOUT)


def evaluate(config: GPT1Config, tokens: np.ndarray) -> Contestant:
    """The loss of int32 [N, B, L], batch by batch, without dropout."""
    model = _model(config)
    return torch_work.evaluate(NAME, model, lambda x: model(x, labels=x).loss, config, tokens, _ABOUT)


def decode(config: GPT1Config, prompts: np.ndarray, new_tokens: int) -> Contestant:
    """`generate` for int32 [B, P]: every row gets `new_tokens`, drawn from all of the distribution."""
    model = _model(config).eval()
    prompt = torch.from_numpy(prompts.astype(np.int64))

    def generate(n: int) -> torch.Tensor:
        with torch_work.computing_in(config):
            return model.generate(
                prompt.to(torch_work.device()),
                attention_mask=torch.ones_like(prompt).to(torch_work.device()),
                max_new_tokens=n,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    generate(2)
    return Contestant(
        NAME,
        lambda: generate(new_tokens),
        torch_work.wait,
        amount=len(prompts) * new_tokens,
        n_parameters=torch_work.count(model),
        about=f"{_ABOUT}, generate: its GPT-1 has no cache of keys and values",
        is_warm=True,
    )
