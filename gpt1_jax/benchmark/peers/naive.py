"""GPT-1 as one would write it in Flax and Optax, with nothing done for speed.

The scores [B, H, L, L] exist and their softmax is float32, `nn.Dropout` draws its masks with `jax.random`, and the
logits [B, L, V] of all positions exist at once.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.benchmark.training import temp_bytes_of
from gpt1_jax.model_config import ACTIVATIONS, GPT1Config
from gpt1_jax.optim import OptimizerConfig, decays
from gpt1_jax.precision import matmul_precision


class Block(nn.Module):
    """Post-LayerNorm: x = LN(x + attention(x)); LN(x + mlp(x))."""

    config: GPT1Config
    deterministic: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """[B, L, D] -> [B, L, D]."""
        c = self.config
        dtype, precision = jnp.dtype(c.dtype), matmul_precision(jnp.dtype(c.dtype))

        def dense(features: int, name: str) -> nn.Dense:
            return nn.Dense(features, dtype=dtype, precision=precision, name=name)

        def norm(name: str) -> nn.LayerNorm:
            return nn.LayerNorm(epsilon=1e-5, dtype=dtype, name=name)

        n_batch, n_tokens, width = x.shape
        heads = (n_batch, n_tokens, c.n_head, width // c.n_head)
        q, k, v = (part.reshape(heads) for part in jnp.split(dense(3 * width, "qkv")(x), 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision=precision) / math.sqrt(heads[-1])
        causal = jnp.tril(jnp.ones((n_tokens, n_tokens), bool))
        weights = nn.softmax(jnp.where(causal, scores.astype(jnp.float32), -1e9), axis=-1).astype(dtype)
        weights = nn.Dropout(c.attn_pdrop, deterministic=self.deterministic)(weights)
        a = jnp.einsum("bhqk,bkhd->bqhd", weights, v, precision=precision).reshape(x.shape)
        residual = nn.Dropout(c.resid_pdrop, deterministic=self.deterministic)
        x = norm("ln_1")(x + residual(dense(width, "proj")(a)))
        m = dense(width, "mlp_proj")(ACTIVATIONS[c.activation](dense(4 * width, "mlp_fc")(x)))
        return norm("ln_2")(x + residual(m))


class Model(nn.Module):
    """Logits [B, L, V] of tokens [B, L]."""

    config: GPT1Config
    deterministic: bool

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Embeds, goes through the blocks and multiplies with the embeddings again."""
        c = self.config
        table = nn.Embed(c.n_rows, c.n_embd, dtype=jnp.dtype(c.dtype), name="tokens")
        positions = nn.Embed(c.n_ctx, c.n_embd, dtype=jnp.dtype(c.dtype), name="positions")
        x = table(tokens) + positions(jnp.arange(tokens.shape[1]))
        x = nn.Dropout(c.embd_pdrop, deterministic=self.deterministic)(x)
        for i in range(c.n_layer):
            x = Block(c, self.deterministic, name=f"h_{i}")(x)
        return table.attend(x).astype(jnp.float32)


def loss(config: GPT1Config, params: Any, tokens: Array, key: Array | None = None) -> Array:
    """L1 of int32 [B, L], the mean over all targets; with dropout where a key is given."""
    rngs = None if key is None else {"dropout": key}
    logits: Any = Model(config, deterministic=key is None).apply({"params": params}, tokens, rngs=rngs)
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def _init(config: GPT1Config, tokens: np.ndarray) -> tuple[Any, int]:
    params = jax.jit(Model(config, deterministic=True).init)(jax.random.key(0), tokens[:1])["params"]
    return params, sum(x.size for x in jax.tree.leaves(params))


def train(config: GPT1Config, optimizer: OptimizerConfig, tokens: np.ndarray) -> Contestant:
    """An update from int32 [B, L]."""
    params, n_parameters = _init(config, tokens)
    chain = optax.chain(
        optax.clip_by_global_norm(optimizer.clip_norm),
        optax.adamw(
            optimizer.learning_rate,
            optimizer.b1,
            optimizer.b2,
            optimizer.eps,
            weight_decay=optimizer.weight_decay,
            mask=decays,
        ),
    )

    @jax.jit(donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, tokens: Array, number: Array) -> tuple[Any, Any, Array]:
        key = jax.random.fold_in(jax.random.key(0), number)
        value, grads = jax.value_and_grad(lambda p: loss(config, p, tokens, key))(params)
        updates, opt_state = chain.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    state, numbers = [params, jax.jit(chain.init)(params)], itertools.count()
    begin = time.perf_counter()
    compiled = step.lower(*state, tokens, np.int32(0)).compile()
    seconds = time.perf_counter() - begin

    def start() -> Any:
        *state[:], value = step(*state, tokens, np.int32(next(numbers)))
        return state, value

    return Contestant(
        "naive",
        start,
        amount=tokens.size,
        n_parameters=n_parameters,
        compile_seconds=seconds,
        temp_bytes=temp_bytes_of(compiled),
        about="plain Flax and Optax: scores in memory, jax.random dropout, all logits at once, optax.adamw",
    )


def evaluate(config: GPT1Config, tokens: np.ndarray) -> Contestant:
    """The loss of int32 [N, B, L], batch by batch, without dropout."""
    params, n_parameters = _init(config, tokens[0])
    score = jax.jit(functools.partial(loss, config))
    return Contestant(
        "naive",
        lambda: [score(params, batch) for batch in tokens],
        amount=tokens.size,
        n_parameters=n_parameters,
        about="plain Flax: scores in memory, all logits at once",
    )
