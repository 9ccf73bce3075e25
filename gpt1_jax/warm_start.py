"""What a run starts from: a pre-trained model, made ready for its task where there is one, or a new model."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from gpt1_jax import tokenizers
from gpt1_jax.block import INIT_STD
from gpt1_jax.config import check_fields
from gpt1_jax.errors import InputError
from gpt1_jax.model_config import N_SPECIAL, GPT1Config, ReadOut
from gpt1_jax.pretrained import Params, format_of, load_pretrained, slice_positions
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.tokenizers.protocol import check_tokenizer

ARCHITECTURE = {
    "transformer": ("trunk", "vocab_size", "n_embd", "n_head", "n_layer", "activation"),
    "lstm": ("trunk", "vocab_size", "n_embd", "lstm_units"),
}
"""Trunk -> what its weights were trained as; everything else about a `GPT1Config` may differ where they are used."""


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """What a run says about the network; None keeps what the model has that it starts from, and is the paper's without.

    Attributes:
      vocab_size: see `GPT1Config`, like all others. What the weights were trained as (`ARCHITECTURE`) can
        only be set for training from scratch, but for the n_head of OpenAI's folder.
    """

    vocab_size: int | None = None
    n_ctx: int | None = None
    n_embd: int | None = None
    n_head: int | None = None
    n_layer: int | None = None
    embd_pdrop: float | None = None
    attn_pdrop: float | None = None
    resid_pdrop: float | None = None
    clf_pdrop: float | None = None
    activation: str | None = None
    attention: str | None = None
    embedding_dropout: str | None = None
    softmax_over_positions: bool | None = None
    clf_bias: bool | None = None
    dtype: str | None = None
    remat: str | None = None
    scan_layers: bool | None = None
    trunk: str | None = None
    lstm_units: int | None = None

    def __post_init__(self) -> None:
        """Checks the types; the ranges are checked with the model that it becomes."""
        check_fields(self, "model")

    @classmethod
    def of(cls, config: GPT1Config) -> ModelOptions:
        """All that there is to say about a network."""
        return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})

    def given(self) -> dict[str, Any]:
        """What is said, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


class StartingPoint(NamedTuple):
    """Where training begins.

    Attributes:
      config: the network, with its special rows.
      params: its parameters; what is missing is drawn. None: all of them are.
      tokenizer: its tokenizer; None where it is yet to be trained.
      readout: what the task head in `params` was trained for; None where there is no head.
    """

    config: GPT1Config
    params: Params | None
    tokenizer: Tokenizer | None
    readout: ReadOut | None = None

    def for_task(self, readout: ReadOut) -> StartingPoint:
        """The same for a task: a head that was trained for the same read-out is kept, any other is drawn anew."""
        if self.readout is None:
            return self._replace(readout=readout)
        if self.readout == readout:
            logging.info("the task head is taken over with the other weights: it was trained for the same labels")
            return self
        logging.info("the task head is not taken over, but drawn anew: it is %s, not %s", self.readout, readout)
        return self._replace(params=without_head(self.params), readout=readout)

    def with_n_ctx(self, n_ctx: int) -> StartingPoint:
        """The same for a shorter context."""
        if self.params is None:
            return self._replace(config=dataclasses.replace(self.config, n_ctx=n_ctx))
        config, params = slice_positions(self.config, self.params, n_ctx)
        return self._replace(config=config, params=params)


def starting_point(
    options: ModelOptions,
    *,
    init_from: str | os.PathLike[str] | None,
    tokenizer: str | None,
    seed: int,
    n_transfer: int | None = None,
) -> StartingPoint:
    """The network of a task, its parameters and its tokenizer.

    Args:
      options: how the network differs from the pre-trained one, or from the paper's.
      init_from: what `load_pretrained` reads; None trains from scratch.
      tokenizer: for training from scratch: a tokenizer folder, or a workdir that has one.
      seed: of the special rows.
      n_transfer: how many blocks are taken over, the first ones, beside the embeddings (paper, figure 2 left; the
        official code's `--n_transfer`). None takes all, 0 the embeddings only, and -1 nothing but the architecture and
        the tokenizer. An LSTM counts as one block.

    Raises:
      InputError: an option contradicts the weights, or there is no tokenizer to train from scratch with.
    """
    if init_from is None:
        if n_transfer is not None:
            raise InputError(
                f"n_transfer={n_transfer}: there is nothing to transfer from; give init_from, or leave n_transfer out"
            )
        return _from_scratch(options, tokenizer)
    if tokenizer:
        raise InputError(
            f"config.tokenizer={tokenizer!r} contradicts init_from={str(init_from)!r}: a pre-trained model "
            "keeps its tokenizer; leave one of the two out"
        )
    start = pretrained_start(options, init_from)
    config, params = add_special_rows(start.config, start.params, seed)
    start = start._replace(config=config, params=params)
    return start if n_transfer is None else _transfer(start, n_transfer, init_from)


def pretrained_start(options: ModelOptions, init_from: str | os.PathLike[str]) -> StartingPoint:
    """A model as it was trained, but for the `options`.

    Raises:
      InputError: an option contradicts the weights.
    """
    n_head = options.n_head if format_of(init_from) == "openai" else None  # which that folder does not say
    model, params, tokenizer = load_pretrained(init_from, n_head=n_head)
    given = options.given()
    for name in ARCHITECTURE[model.config.trunk]:
        if name in given and given[name] != getattr(model.config, name):
            raise InputError(
                f"model.{name}={given[name]!r} contradicts {init_from}, whose weights have "
                f"{name}={getattr(model.config, name)!r}; leave it out, or train from scratch without init_from"
            )
    config, readout = model.config, model.readout
    if "n_ctx" in given:
        config, params = slice_positions(config, params, given["n_ctx"])
    config = dataclasses.replace(config, **given)
    if "clf" in params and (readout is None or config.clf_bias != model.config.clf_bias):
        logging.info("the task head of %s is not taken over, but drawn anew", init_from)
        params, readout = without_head(params), None
    return StartingPoint(config, params, tokenizer, readout if "clf" in params else None)


def add_special_rows(config: GPT1Config, params: Params, seed: int) -> tuple[GPT1Config, Params]:
    """Appends the rows of start, delimiter and extract after the vocabulary, as fine-tuning begins.

    Like the official code they are drawn from NumPy's `RandomState(seed)` with standard deviation 0.02. A model that
    has them (it was fine-tuned before) is returned as it is.
    """
    if config.n_special:
        return config, params
    config = dataclasses.replace(config, n_special=N_SPECIAL)
    old = np.asarray(params["tokens_embed"]["embedding"])
    table = np.zeros((config.padded_rows, config.n_embd), np.float32)
    table[: config.vocab_size] = old[: config.vocab_size]
    drawn = np.random.RandomState(seed).randn(N_SPECIAL, config.n_embd) * INIT_STD
    table[config.vocab_size : config.n_rows] = drawn.astype(np.float32)
    return config, params | {"tokens_embed": {"embedding": table}}


def without_head(params: Params) -> Params:
    """The parameters of the language model."""
    return {name: value for name, value in params.items() if name != "clf"}


def _transfer(start: StartingPoint, n_transfer: int, init_from: str | os.PathLike[str]) -> StartingPoint:
    """Keeps the embeddings and the first blocks, or nothing; a task head stays with the last block."""
    names = start.config.trunk_names
    n_layer = len(names)
    if not -1 <= n_transfer <= n_layer:
        has = "an LSTM, which counts as 1 block" if start.config.trunk == "lstm" else f"{n_layer} blocks"
        raise InputError(
            f"n_transfer={n_transfer}: {init_from} has {has}; use 0 to {n_layer}, or -1 for nothing at all"
        )
    if n_transfer == -1:
        logging.info("nothing is taken over from %s but its architecture and its tokenizer", init_from)
        return start._replace(params=None, readout=None)
    logging.info(
        "the embeddings and %d of the %d blocks of %s are taken over, all else is drawn anew",
        n_transfer,
        n_layer,
        init_from,
    )
    if n_transfer == n_layer:
        return start
    assert start.params is not None, "of what is taken over from"
    kept = ("tokens_embed", "positions_embed", *names[:n_transfer])
    return start._replace(params={name: start.params[name] for name in kept}, readout=None)


def _from_scratch(options: ModelOptions, tokenizer: str | None) -> StartingPoint:
    if not tokenizer:
        raise InputError(
            "config.tokenizer is empty: training from scratch needs a tokenizer folder, or a workdir that has one; "
            "or give --init_from=WORKDIR to start from a pre-trained model"
        )
    loaded = tokenizers.load(tokenizer)
    config = GPT1Config(**{"vocab_size": loaded.vocab_size, **options.given(), "n_special": N_SPECIAL})
    check_tokenizer(loaded, config.vocab_size, tokenizer)
    return StartingPoint(config, None, loaded)
