"""Candidates of `tasks.zero_shot` as token ids, and their log-probabilities.

The probabilities are those of the model's own softmax, so for a fine-tuned model the rows of its three special tokens
take part in it; they are never an alternative that is compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh

from gpt1_jax import agreement
from gpt1_jax.batchwise import outputs_of
from gpt1_jax.data.buckets import Plan, check_buckets, choose_buckets, plan_batches
from gpt1_jax.data.hosts import host_rows
from gpt1_jax.errors import InputError, counted
from gpt1_jax.losses import LossConfig, next_token_nll
from gpt1_jax.model import GPT1, apply
from gpt1_jax.sharding import check_mesh, one_device_mesh, param_shardings, row_blocks
from gpt1_jax.tasks.examples import Example
from gpt1_jax.tasks.zero_shot import Candidate, Heuristic
from gpt1_jax.tokenizers import Tokenizer
from gpt1_jax.train import jit_eval_step


class ScoredTokens(NamedTuple):
    """A candidate in token ids.

    Attributes:
      tokens: at least two ids.
      n_scored: how many of the last ones are scored; at most all but the first.
    """

    tokens: tuple[int, ...]
    n_scored: int


def encode_candidates(
    examples: Sequence[Example],
    heuristic: Heuristic,
    labels: Sequence[str],
    tokenizer: Tokenizer,
    n_ctx: int,
    name: str = "examples",
) -> list[list[ScoredTokens]]:
    """The candidates of each example in token ids, see `tasks.zero_shot` for how.

    What is longer than `n_ctx` loses tokens from the left of its context, all candidates of an example as many as the
    longest one has to; this is counted and logged.

    Raises:
      InputError: without examples; and, naming file and line, for an example that does not fit the heuristic, or whose
        scored part has no tokens or does not fit into `n_ctx` with what conditions it.
    """
    if not examples:
        raise InputError(f"split {name!r}: no examples; give at least one")
    words = []
    for example in examples:
        try:
            words.append(heuristic.candidates(example, labels))
        except InputError as error:
            raise InputError(f"{example.where or example.id}: {error}") from None
    ids = _encode_parts((part.strip(" ") for group in words for candidate in group for part in candidate), tokenizer)
    separator = tokenizer.document_separator
    result, lost = [], []
    for example, group in zip(examples, words, strict=True):
        try:
            encoded, n_cut = _fit([tuple(ids[part.strip(" ")] for part in c) for c in group], group, separator, n_ctx)
        except InputError as error:
            raise InputError(f"{example.where or example.id}: {error}") from None
        result.append(encoded)
        lost.append(n_cut)
    if any(lost):
        logging.warning(
            "zero-shot %s: split %s: %d of %d examples were cut from the left to n_ctx=%d, %d tokens lost",
            *(heuristic.name, name, np.count_nonzero(lost), len(lost), n_ctx, sum(lost)),
        )
    return result


def _encode_parts(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, tuple[int, ...]]:
    distinct = list(dict.fromkeys(text for text in texts if text))
    encoded = zip(distinct, tokenizer.encode_batch(distinct), strict=True)
    return {"": ()} | {text: tuple(ids) for text, ids in encoded}


def _fit(
    group: Sequence[tuple[tuple[int, ...], ...]], words: Sequence[Candidate], separator: Sequence[int], n_ctx: int
) -> tuple[list[ScoredTokens], int]:
    """The candidates of an example cut to `n_ctx`, and how many tokens of text it lost: the separator is none."""
    group = [((*separator, *context), kept, scored) for context, kept, scored in group]
    cut = max(0, *(sum(map(len, parts)) - n_ctx for parts in group))
    result = []
    for (context, kept, scored), candidate in zip(group, words, strict=True):
        if len(scored) < (1 if context or kept else 2):
            raise InputError(
                f"what is scored, {candidate.scored!r:.60}, has {len(scored)} tokens, of which none has a probability "
                "given another; make it longer, or remove the row"
            )
        if cut and cut >= len(context):
            raise InputError(
                f"what is scored, {candidate.scored!r:.60} ({len(scored)} tokens), and the {len(kept)} tokens that are "
                f"kept with it fill n_ctx={n_ctx} (a candidate beside it may be longer); shorten or remove the row, or "
                "use a model with a longer n_ctx"
            )
        n_scored = len(scored) - (not context and not kept)
        result.append(ScoredTokens((*context[cut:], *kept, *scored), n_scored))
    return result, max(0, cut - len(separator))


def score_candidates(
    model: GPT1,
    params: Any,
    candidates: Sequence[ScoredTokens],
    *,
    batch_size: int = 32,
    mesh: Mesh | None = None,
    buckets: Sequence[int] | None = None,
    loss: LossConfig = LossConfig(),
) -> np.ndarray:
    """Log-probability of the scored tokens given those before, of every candidate: float64 [N], in nats.

    Candidates are batched by length and padded to a few lengths (at most four unless `buckets` says others), each of
    which is one compilation. The batches do not depend on the order of the candidates, so neither do the results.

    Args:
      model: any GPT1.
      params: its parameters.
      candidates: of at most n_ctx tokens.
      batch_size: candidates in a batch, over all devices.
      mesh: where the model runs; default one device.
      buckets: lengths a batch may have; None chooses from the data.
      loss: how the log-probabilities are computed.

    Raises:
      InputError: a candidate, a size or a bucket does not fit the model, or the model has diverged.
    """
    config = model.config
    _check_candidates(candidates, config.n_ctx, config.n_rows)
    if mesh is None:
        mesh = one_device_mesh()
    check_mesh(mesh, batch_size=batch_size, **config.mesh_sizes)
    lengths = np.array([len(candidate.tokens) for candidate in candidates])
    if buckets is None:
        buckets = choose_buckets(lengths, config.n_ctx)
    else:
        buckets = check_buckets(buckets, int(lengths.max()), config.n_ctx)
    order = np.array(sorted(range(len(candidates)), key=lambda i: candidates[i]))
    plan = plan_batches(lengths, order, batch_size, buckets)
    step = _compiled_score(model, mesh, loss)
    host = host_rows(batch_size, **row_blocks(mesh))
    result = np.full(len(candidates), np.nan)
    if mesh.is_multi_process:
        agreement.ready()
    batches = _Batches(candidates, plan, host)
    with jax.set_mesh(mesh):
        for out in outputs_of(step, params, batches, mesh, label="zero-shot scoring"):
            real = out["index"] >= 0
            result[out["index"][real]] = out["log_probability"][real]
    if not np.isfinite(result).all():
        raise InputError(
            f"{(~np.isfinite(result)).sum()} of {len(result)} log-probabilities are not finite: the model has "
            "diverged; take an earlier checkpoint"
        )
    logging.info(
        "scored %s (%d tokens) in %s of %s",
        *(counted(len(candidates), "candidate"), lengths.sum(), counted(len(plan.rows), "batch", "batches")),
        counted(len(set(plan.lengths.tolist())), "length"),
    )
    return result


@functools.lru_cache(maxsize=8)
def _compiled_score(model: GPT1, mesh: Mesh, loss: LossConfig) -> Callable[..., Any]:
    # One jitted function per model and mesh, so that calls in one process share its compilations.
    def step(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        tokens, last = batch["tokens"], batch["last"]
        h, table = apply(model, params, lambda m: m.features(batch["tokens"]))
        h, tokens = jnp.take_along_axis(h, last[..., None], axis=1), jnp.take_along_axis(tokens, last, axis=1)
        nll = next_token_nll(h, table, tokens, n_rows=model.config.n_logits, chunk=loss.chunk)
        return {"log_probability": -jnp.sum(nll * batch["mask"], axis=1), "index": batch["index"]}

    return jit_eval_step(step, mesh, param_shardings(model, mesh))


class _Batches:
    """The planned batches, of which each is made when it is asked for."""

    def __init__(self, candidates: Sequence[ScoredTokens], plan: Plan, host: slice | np.ndarray) -> None:
        self._candidates, self._plan, self._host = candidates, plan, host
        # Most scored tokens of a candidate, by the length of its batch, so that there is one shape for each length.
        self._n_scored: dict[int, int] = {}
        for rows, length in zip(plan.rows, plan.lengths.tolist(), strict=True):
            most = max(candidates[row].n_scored for row in rows if row >= 0)
            self._n_scored[length] = max(most, self._n_scored.get(length, 0))

    def __len__(self) -> int:
        return len(self._plan.rows)

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        length = int(self._plan.lengths[i])
        return _batch(self._candidates, self._plan.rows[i][self._host], length, self._n_scored[length])


def _batch(candidates: Sequence[ScoredTokens], rows: np.ndarray, length: int, n_scored: int) -> dict[str, np.ndarray]:
    """Candidates padded on the right, where causal attention never looks back from; -1 is a padded row.

    Only the last tokens of each meet the vocabulary: "last" int32 [B, n_scored + 1] says where they are, "mask" float32
    [B, n_scored] which of them but the first are scored.
    """
    tokens = np.zeros((len(rows), length), np.int32)
    last = np.zeros((len(rows), n_scored + 1), np.int32)
    mask = np.zeros((len(rows), n_scored), np.float32)
    for b, row in enumerate(rows):
        if row < 0:
            continue
        ids, n = candidates[row]
        tokens[b, : len(ids)] = ids
        last[b] = np.arange(len(ids) - n_scored - 1, len(ids)).clip(min=0)
        mask[b, n_scored - n :] = 1
    return {"tokens": tokens, "last": last, "mask": mask, "index": rows}


def _check_candidates(candidates: Sequence[ScoredTokens], n_ctx: int, n_rows: int) -> None:
    if not len(candidates):
        raise InputError("candidates is empty; give at least one")
    for i, (tokens, n_scored) in enumerate(candidates):
        if not 1 <= n_scored < len(tokens) <= n_ctx:
            raise InputError(
                f"candidates[{i}] has {len(tokens)} tokens and n_scored={n_scored}; at most n_ctx={n_ctx} tokens, and "
                "from 1 to all but the first of them scored, are allowed"
            )
        if not 0 <= min(tokens) <= max(tokens) < n_rows:
            raise InputError(
                f"candidates[{i}] has ids from {min(tokens)} to {max(tokens)}; the model's are from 0 to {n_rows - 1}: "
                "encode it with the tokenizer of this model"
            )
