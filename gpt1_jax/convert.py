"""Conversion of a model between the formats of `gpt1_jax.pretrained`, compared with its source after it was written."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from gpt1_jax import bucket, tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.files import make_new_directory
from gpt1_jax.interop.openai_folder import N_HEAD
from gpt1_jax.mirror import copy_of
from gpt1_jax.model import GPT1, GPT1Config, apply, count_parameters
from gpt1_jax.pretrained import Params, format_of, load_pretrained, save_pretrained
from gpt1_jax.text_table import aligned
from gpt1_jax.tokenizers import MissingTokenizer, Tokenizer
from gpt1_jax.warm_start import without_head

_CHECKED_ROWS, _CHECKED_TOKENS = 2, 64


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What was converted.

    Attributes:
      source, target: the folders.
      source_format, target_format: theirs, of `gpt1_jax.pretrained.FORMATS`.
      model: the model as `load_pretrained(target)` gives it, with the n_head and activation of the source.
      params: its parameters.
      tokenizer: its tokenizer.
      left_out: what the target's format has no room for.
      n_compared: logits compared between source and target; they are equal.
    """

    source: Path
    target: Path
    source_format: str
    target_format: str
    model: GPT1
    params: Params
    tokenizer: Tokenizer
    left_out: tuple[str, ...]
    n_compared: int

    def __str__(self) -> str:
        """The summary as a text table."""
        config, readout = self.model.config, self.model.readout
        leaves = jax.tree_util.tree_leaves_with_path(self.params)
        n_bytes = sum(leaf.nbytes for _, leaf in leaves)
        without = isinstance(self.tokenizer, MissingTokenizer)
        rows = [
            ("source", f"{self.source} ({self.source_format})"),
            ("target", f"{self.target} ({self.target_format})"),
            (
                "model",
                f"{config.trunk_summary}, width {config.n_embd}, context {config.n_ctx}, "
                f"{config.vocab_size} tokens and {config.n_special} special rows",
            ),
            ("task head", "none" if readout is None else f"{readout.kind}, {readout.n_outputs} outputs"),
            (
                "parameters",
                f"{count_parameters(config, readout):,}, float32; {n_bytes / 1e6:,.1f} MB with the rows that pad the "
                "table",
            ),
            ("tokenizer", "none" if without else f"{type(self.tokenizer).__name__}, {self.tokenizer.vocab_size} ids"),
            ("left out", "; ".join(self.left_out) or "nothing"),
            ("self-check", f"{self.n_compared:,} logits before and after are equal"),
        ]
        for path, leaf in leaves:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            if not name.startswith("h_") or name.startswith("h_0/"):  # all blocks are alike
                blocks = f"h_0 to h_{config.n_layer - 1}" if config.n_layer > 1 else "h_0"
                rows.append((name.replace("h_0/", f"{blocks}/"), str(list(leaf.shape))))
        return "\n".join(aligned(rows, n_left=2))


def run(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str,
    *,
    step: int | None = None,
    n_ctx: int | None = None,
    n_head: int | None = None,
    tokenizer: str | Path | None = None,
    approximate: bool = False,
) -> Conversion:
    """Writes the model of one folder into another, loads that, and compares its logits with the source's.

    Args:
      source: what `load_pretrained` reads.
      target: a new or empty folder.
      format: of the target: one of `gpt1_jax.pretrained.FORMATS`.
      step: which checkpoint of a workdir.
      n_ctx: keeps the first positions only.
      n_head: where the source does not say it.
      tokenizer: a folder whose tokenizer takes the place of the source's.
      approximate: takes the approximate variant of the original tokenizer, which needs no spaCy and gives other ids for
        some words.

    Raises:
      InputError: what `load_pretrained` and `save_pretrained` refuse.
      RuntimeError: the target does not compute what the source does. It should not be used.
    """
    if bucket.is_url(target):
        raise InputError(f"target={target}: write a local folder, and copy it with gcloud storage cp --recursive")
    source, target = copy_of(source), Path(target)
    chosen = None
    if tokenizer is not None or approximate:
        chosen = tokenizers.load(source if tokenizer is None else tokenizer, "approximate" if approximate else None)
    model, params, chosen = load_pretrained(source, step=step, n_ctx=n_ctx, n_head=n_head, tokenizer=chosen)
    make_new_directory(target, "target")
    try:
        save_pretrained(target, model, params, chosen, format=format)
        written, written_params, written_tokenizer = load_pretrained(
            target, n_head=model.config.n_head if format == "openai" else None
        )
        if format == "openai":  # whose layout does not say it either
            written = GPT1(dataclasses.replace(written.config, activation=model.config.activation), written.readout)
            n_compared = _compare(written, _without_special_rows(params, written.config), written, written_params)
        else:
            n_compared = _compare(model, params, written, written_params)
    except BaseException:  # nobody should find half of it, or what computes something else
        shutil.rmtree(target, ignore_errors=True)
        raise
    return Conversion(
        source,
        target,
        format_of(source),
        format,
        written,
        written_params,
        written_tokenizer,
        _left_out(model, written, format),
        n_compared,
    )


def _compare(model: GPT1, params: Params, written: GPT1, written_params: Params) -> int:
    """The number of logits that both models give, on random tokens.

    Raises:
      RuntimeError: they differ.
    """
    config = model.config
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size, (_CHECKED_ROWS, min(config.n_ctx, _CHECKED_TOKENS)), np.int32)
    if config.n_special and written.config.n_special:
        tokens[:, -1] = config.extract_id
    n_compared = 0
    with_head = written.readout is not None
    for before, after in zip(
        _logits(model, params, tokens, with_head), _logits(written, written_params, tokens, with_head), strict=True
    ):
        width = min(before.shape[-1], after.shape[-1])
        difference = np.abs(before[..., :width] - after[..., :width]).max()
        if not difference == 0:  # NaN as well
            raise RuntimeError(
                f"self-check: logits of source and target differ by up to {difference}; do not use the target"
            )
        n_compared += after[..., :width].size
    return n_compared


def _without_special_rows(params: Params, config: GPT1Config) -> Params:
    """The parameters that OpenAI's layout has a place for; `config` is the one that is loaded from it.

    So both sides run the same program, and their logits are equal to the bit: a table of another length, or another
    dtype of the computation, would round them otherwise.
    """
    table = np.zeros((config.padded_rows, config.n_embd), np.float32)
    table[: config.vocab_size] = params["tokens_embed"]["embedding"][: config.vocab_size]
    return without_head(params) | {"tokens_embed": {"embedding": table}}


def _logits(model: GPT1, params: Params, tokens: np.ndarray, with_head: bool) -> list[np.ndarray]:
    """LM logits [B, L, V + ...] and, with a task head, its logits with the rows as the streams of one example."""
    return [np.asarray(x) for x in _compiled_logits(model, with_head)(params, tokens)]


@functools.lru_cache(maxsize=2)
def _compiled_logits(model: GPT1, with_head: bool) -> Callable[[Params, np.ndarray], list[jax.Array]]:
    # Source and target are mostly the same model: one compilation then serves both.
    def run(params: Params, tokens: jax.Array) -> list[jax.Array]:
        def forward(m: GPT1) -> list[jax.Array]:
            h, table = m.features(tokens)
            logits = [m.lm_logits(h, table)]
            return [*logits, m.task_logits(h[None], tokens[None])] if with_head else logits

        return apply(model, params, forward)

    return jax.jit(run)


def _left_out(model: GPT1, written: GPT1, format: str) -> tuple[str, ...]:
    left_out = []
    if model.config.n_special > written.config.n_special:
        left_out.append(f"{model.config.n_special} special rows (start, delimiter, extract)")
    if model.readout is not None and written.readout is None:
        left_out.append("the task head")
    if format == "openai" and model.config.n_head != N_HEAD:
        left_out.append(f"the number of heads: load it with n_head={model.config.n_head}")
    if format == "openai" and model.config.activation != GPT1Config.activation:
        left_out.append(f"the activation: set activation={model.config.activation!r} in the config that is loaded")
    told = ("n_special", "n_head", "activation", "clf_bias")
    changed = [
        f"{field.name}={getattr(model.config, field.name)!r}"
        for field in dataclasses.fields(model.config)
        if field.name not in told and getattr(model.config, field.name) != getattr(written.config, field.name)
    ]
    if changed:
        left_out.append(f"of the config {', '.join(changed)}")
    return tuple(left_out)
