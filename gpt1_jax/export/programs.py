"""The functions that are exported: of a task head one, of a language model two.

Shapes: b rows or examples, c streams of one example, l tokens, s slots of the cache, V vocabulary. Lower case, for
they are the names of `jax.export`'s dimension variables: none of them is fixed, but c where the kind of task is.
Parameters are one flat dict, {"h_0/attn/c_attn/kernel": ...}, as in `params.npz`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax import Array, export

from gpt1_jax.caches import Cache, KVCache, LSTMCache
from gpt1_jax.losses import mask_answers
from gpt1_jax.model import GPT1, apply, param_shapes
from gpt1_jax.pretrained import Params
from gpt1_jax.scores import predicted_scores

PLATFORMS = ("cpu", "tpu", "cuda")

_N_STREAMS = {"classification": "1", "entailment": "1", "similarity": "2", "multiple_choice": "c"}

FlatParams = Mapping[str, Array]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Program:
    """A function and what it takes.

    Attributes:
      name: of its file.
      function: (flat parameters, *arguments) -> arrays.
      arguments: name -> shape and dtype, with dimension variables.
      returns: what comes out, in words.
    """

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    returns: str

    def export(self, model: GPT1) -> export.Exported:
        """The function as StableHLO for all `PLATFORMS`; it cannot be differentiated."""
        params = flatten(param_shapes(model.config, model.readout))
        return export.export(jax.jit(self.function), platforms=PLATFORMS)(params, *self.arguments.values())


def flatten(params: Params) -> dict[str, Any]:
    """Parameters as one dict, in the order of their names."""
    return dict(sorted(traverse_util.flatten_dict(params, sep="/").items()))


def task_program(model: GPT1) -> Program:
    """Streams to probabilities or scores, as `gpt1_jax.predict` has them."""
    readout = model.task_readout
    shape = export.symbolic_shape(f"b, {_N_STREAMS[readout.kind]}, l", constraints=[f"l <= {model.config.n_ctx}"])

    def predict(params: FlatParams, tokens: Array, lengths: Array) -> Array:
        n_examples, n_streams, n_tokens = tokens.shape

        def forward(m: GPT1) -> Array:
            h, _ = m.features(tokens.reshape(n_examples * n_streams, n_tokens))
            # Both ways to read out want the last token of a stream: it is the extract token, where there is one.
            return m.task_logits(h.reshape(*tokens.shape, -1), tokens, at=jnp.maximum(lengths - 1, 0))

        outputs = _apply(model, params, forward)
        if readout.score_range is not None:
            return predicted_scores(outputs, readout)
        if readout.kind == "multiple_choice":  # the first answer counts as present, so that the softmax stays finite
            outputs = mask_answers(outputs, (lengths > 0) | (jnp.arange(n_streams) == 0))
        return jax.nn.softmax(outputs, axis=-1)

    returns = "scores float32 [b]" if readout.score_range else "probabilities float32 [b, labels]"
    if readout.kind == "multiple_choice":
        returns = "probabilities float32 [b, c]"
    arguments = {
        "tokens": jax.ShapeDtypeStruct(shape, jnp.int32),
        "lengths": jax.ShapeDtypeStruct(shape[:2], jnp.int32),
    }
    return Program("task", predict, arguments, returns)


def lm_programs(model: GPT1) -> tuple[Program, Program]:
    """The logits of whole texts, and a step of generation over what is cached: keys and values, or an LSTM's state."""
    config, is_lstm = model.config, model.config.trunk == "lstm"

    def logits(params: FlatParams, tokens: Array) -> Array:
        return _apply(model, params, lambda m: m(tokens))[..., : config.vocab_size]

    shape = export.symbolic_shape("b, l", constraints=[f"l <= {config.n_ctx}"])
    arguments = {"tokens": jax.ShapeDtypeStruct(shape, jnp.int32)}
    whole = Program("logits", logits, arguments, "logits float32 [b, l, V] of the token after each")

    def decode(
        params: FlatParams,
        tokens: Array,
        lengths: Array,
        start: Array,
        *cached: tuple[Array, ...],
    ) -> tuple[Array | tuple[Array, ...], ...]:
        def forward(m: GPT1) -> tuple[Array, tuple[tuple[Array, ...], tuple[Array, ...]]]:
            first, second = cached
            cache: Cache = LSTMCache(first[0], second[0], start) if is_lstm else KVCache(first, second, start)
            h, cache = m.decode(tokens, cache, lengths)
            last = jnp.take_along_axis(h, lengths[:, None, None] - 1, axis=1)[:, 0]
            new = ((cache.c,), (cache.h,)) if isinstance(cache, LSTMCache) else (cache.keys, cache.values)
            return m.lm_logits(last), new

        out, new = _apply(model, params, forward)
        return out[:, : config.vocab_size], *new

    cached: dict[str, Any]
    if is_lstm:
        b, n_tokens = export.symbolic_shape("b, l", constraints=[f"l <= {config.n_ctx}"])
        state = (jax.ShapeDtypeStruct((b, config.lstm_units), jnp.float32),)
        cached = {"c": state, "h": state}
        what = "c and h after it, which count as zero where start is 0"
    else:
        b, n_tokens, s = export.symbolic_shape("b, l, s", constraints=["l <= s", f"s <= {config.n_ctx}"])
        slots = jax.ShapeDtypeStruct((b, config.n_head, s, config.head_dim), jnp.dtype(config.dtype))
        cached = {"keys": (slots,) * config.n_layer, "values": (slots,) * config.n_layer}
        what = "keys and values with the tokens in them"
    step = {
        "tokens": jax.ShapeDtypeStruct((b, n_tokens), jnp.int32),
        "lengths": jax.ShapeDtypeStruct((b,), jnp.int32),
        "start": jax.ShapeDtypeStruct((b,), jnp.int32),
        **cached,
    }
    returns = f"logits float32 [b, V] after the last of the tokens; {what}"
    return whole, Program("decode", decode, step, returns)


def _apply(model: GPT1, params: FlatParams, method: Callable[[GPT1], T]) -> T:
    return apply(model, traverse_util.unflatten_dict(dict(params), sep="/"), method)
