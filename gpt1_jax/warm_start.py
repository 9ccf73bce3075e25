"""What a fine-tuning run starts from: a pre-trained model made ready for its task, or a new one."""

from __future__ import annotations

import dataclasses
import os
from typing import NamedTuple

from absl import logging

from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.model_config import N_SPECIAL, GPT1Config, ReadOut
from gpt1_jax.pretrained import (
    ARCHITECTURE,
    Params,
    add_special_rows,
    check_tokenizer,
    load_pretrained,
    slice_positions,
)
from gpt1_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """What a fine-tuning run says about the network; None keeps what the pre-trained model has (the paper's without).

    Attributes:
      vocab_size: see `GPT1Config`, like all others. What the weights were trained as (`pretrained.ARCHITECTURE`) can
        only be set for training from scratch.
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


class StartingPoint(NamedTuple):
    """Where training begins.

    Attributes:
      config: the network, with its special rows.
      params: its parameters; what is missing is drawn. None: all of them are.
      tokenizer: its tokenizer.
      readout: what the task head in `params` was trained for; None where there is no head.
    """

    config: GPT1Config
    params: Params | None
    tokenizer: Tokenizer
    readout: ReadOut | None = None

    def for_task(self, readout: ReadOut) -> StartingPoint:
        """The same for a task: a head that was trained for the same read-out is kept, any other is drawn anew."""
        if self.readout is None:
            return self._replace(readout=readout)
        if self.readout == readout:
            logging.info("the task head is taken over with the other weights: it was trained for the same labels")
            return self
        logging.info("the task head is not taken over, but drawn anew: it is %s, not %s", self.readout, readout)
        params = {name: value for name, value in self.params.items() if name != "clf"}
        return self._replace(params=params, readout=readout)

    def with_n_ctx(self, n_ctx: int) -> StartingPoint:
        """The same for a shorter context."""
        if self.params is None:
            return self._replace(config=dataclasses.replace(self.config, n_ctx=n_ctx))
        config, params = slice_positions(self.config, self.params, n_ctx)
        return self._replace(config=config, params=params)


def starting_point(
    options: ModelOptions, *, init_from: str | os.PathLike[str] | None, tokenizer: str | None, seed: int
) -> StartingPoint:
    """The network, its parameters and its tokenizer.

    Args:
      options: how the network differs from the pre-trained one, or from the paper's.
      init_from: what `load_pretrained` reads; None trains from scratch.
      tokenizer: for training from scratch: a tokenizer folder, or a workdir that has one.
      seed: of the special rows.

    Raises:
      InputError: an option contradicts the weights, or there is no tokenizer to train from scratch with.
    """
    given = {k: v for k, v in dataclasses.asdict(options).items() if v is not None}
    if init_from is None:
        return _from_scratch(given, tokenizer)
    if tokenizer:
        raise InputError(
            f"config.tokenizer={tokenizer!r} contradicts init_from={str(init_from)!r}: a pre-trained model "
            "keeps its tokenizer; leave one of the two out"
        )
    model, params, loaded = load_pretrained(init_from)
    for name in ARCHITECTURE:
        if name in given and given[name] != getattr(model.config, name):
            raise InputError(
                f"model.{name}={given[name]!r} contradicts {init_from}, whose weights have "
                f"{name}={getattr(model.config, name)!r}; leave it out, or train from scratch without init_from"
            )
    config, readout = model.config, model.readout
    if "n_ctx" in given:
        config, params = slice_positions(config, params, given["n_ctx"])
    config, params = add_special_rows(dataclasses.replace(config, **given), params, seed)
    if "clf" in params and (readout is None or config.clf_bias != model.config.clf_bias):
        logging.info("the task head of %s is not taken over, but drawn anew", init_from)
        params, readout = {name: value for name, value in params.items() if name != "clf"}, None
    return StartingPoint(config, params, loaded, readout if "clf" in params else None)


def _from_scratch(options: dict[str, object], tokenizer: str | None) -> StartingPoint:
    if not tokenizer:
        raise InputError(
            "config.tokenizer is empty: training from scratch needs a tokenizer folder, or a workdir that has one; "
            "or give --init_from=WORKDIR to start from a pre-trained model"
        )
    loaded = tokenizers.load(tokenizer)
    config = GPT1Config(**{"vocab_size": loaded.vocab_size, **options, "n_special": N_SPECIAL})
    check_tokenizer(loaded, config, tokenizer)
    return StartingPoint(config, None, loaded)
