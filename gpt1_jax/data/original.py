"""The batches of the original program (openai/finetune-transformer-lm), token for token.

How it goes about its data, where `labelled.train_batches` does otherwise:

- Every text of an example is cut to its first n_ctx // 2 - 2 tokens, whether or not the others leave room.
- n_ctx then shrinks to the longest stream of all splits, and every batch, training or not, has that length.
- Orders come from NumPy's global generator, seeded once: after the three special rows, one permutation an epoch.
- Batches are taken from that order as they come, and what does not fill one at the end of an epoch is left out.

One thing is not followed: if its first epoch is long, the original also evaluates it after 1000, 2000, 4000, 8000,
16000 and 32000 updates. The data set it was published for has 46 updates an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from absl import logging

from gpt1_jax.data.buckets import Plan
from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.hosts import HostIndex, host_rows
from gpt1_jax.data.labelled import TrainBatches
from gpt1_jax.errors import InputError
from gpt1_jax.model_config import N_SPECIAL


def max_text_tokens(n_ctx: int) -> int:
    """How many tokens of a text are kept: half of the context, less its share of the special tokens.

    Raises:
      InputError: none would be.
    """
    kept = n_ctx // 2 - 2
    if kept < 1:
        raise InputError(
            f"n_ctx={n_ctx} with original_batches=True keeps n_ctx // 2 - 2 = {kept} tokens of a text; use at least 6"
        )
    return kept


def shrunken_n_ctx(splits: Iterable[EncodedSplit]) -> int:
    """The length of all batches: that of the longest stream of any split."""
    return max(int(split.lengths.max()) for split in splits)


def epoch_order(seed: int, n_embd: int, n_examples: int, epoch: int) -> np.ndarray:
    """The order in which epoch number `epoch`, from 0, takes the examples: int64 [n_examples].

    `sklearn.utils.shuffle` on the global generator is one permutation for each epoch.
    """
    generator = np.random.RandomState(seed)
    generator.randn(N_SPECIAL, n_embd)  # the special rows, see `warm_start.add_special_rows`
    for _ in range(epoch):
        generator.permutation(n_examples)
    return generator.permutation(n_examples)


def original_batches(
    split: EncodedSplit, *, batch_size: int, seed: int, n_embd: int, host_index: HostIndex = 0, host_count: int = 1
) -> TrainBatches:
    """The original's batches of training, for one host of several, all of length `split.n_ctx`.

    Args:
      split: encoded with `max_text_tokens`, its n_ctx the shrunken one.
      batch_size: examples in the batch of all hosts together.
      host_index: which blocks of rows of each batch are wanted, see data/hosts.py.
      host_count: blocks of a batch.
      seed: of the run: it decides the special rows, then the order.
      n_embd: width of the network, on which the order depends through the special rows.

    Raises:
      InputError: fewer examples than a batch has, some without labels, or a value that does not fit.
    """
    rows = host_rows(batch_size, host_index, host_count)
    n_batches, n_left = divmod(len(split), batch_size)
    if not n_batches:
        raise InputError(
            f"batch_size={batch_size} with original_batches=True leaves all {len(split)} training examples out, since "
            "the original drops incomplete batches; use a smaller one"
        )
    if n_left:
        logging.info("original batches: %d of %d examples are left out of each epoch", n_left, len(split))

    def plan_epoch(epoch: int) -> Plan:
        order = epoch_order(seed, n_embd, len(split), epoch)[: n_batches * batch_size]
        return Plan(order.reshape(n_batches, batch_size).astype(np.int32), np.full(n_batches, split.n_ctx, np.int32))

    return TrainBatches(split, plan_epoch, n_batches, (split.n_ctx,), rows)
