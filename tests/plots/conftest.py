"""A workdir as a run leaves it, of random parameters: nothing is trained."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import random_params

from gpt1_jax import GPT1, GPT1Config, save_pretrained
from gpt1_jax.tokenizers import train_sentencepiece

TEXT = "the film , bright pace 12 . a naïve story\n" * 20


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a pre-training run: 2 layers of 4 heads, n_ctx=32."""
    tokenizer = train_sentencepiece([TEXT], tmp_path_factory.mktemp("tokenizer"), vocab_size=300)
    model = GPT1(GPT1Config(vocab_size=300, n_ctx=32, n_embd=8, n_head=4, n_layer=2))
    workdir = tmp_path_factory.mktemp("runs") / "small"
    save_pretrained(workdir, model, random_params(model), tokenizer)
    config = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
    (workdir / "config.json").write_text(json.dumps({"program": "pretrain", **config}), encoding="utf-8")
    with open(workdir / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, 9):
            loss = float(3 + np.exp(-step))
            line = {"step": step, "loss": loss, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 1e4}
            file.write(json.dumps(line) + "\n")
        heldout = {"heldout_loss": 3.1, "heldout_perplexity": float(np.exp(3.1)), "heldout_bits_per_byte": 1.5}
        file.write(json.dumps({"step": 8, **heldout}) + "\n")
    return workdir
