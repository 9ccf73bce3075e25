"""The pictures of a model: what its embeddings have learned, and what it does with a prompt.

::

    positions.png          W_p: cosine similarity of all pairs of positions
    tokens.png             W_e: the most frequent tokens on two principal components; the first words of the vocabulary,
                           where the training text is not there to count
    token_norms.png        norms of W_e over how often a token occurs
    prompt_<i>_heads.png   attention of every layer and head
    prompt_<i>_layers.png  its mean over the heads, with the tokens named
    prompt_<i>_next.png    the likeliest next tokens at every position (prompt_<i>_next_2.png ... of a long one)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from gpt1_jax.data.shards import TokenShards
from gpt1_jax.errors import InputError
from gpt1_jax.introspection import attention_maps, next_tokens, text_after, token_texts
from gpt1_jax.metrics import FILE
from gpt1_jax.mirror import copy_of
from gpt1_jax.model import GPT1
from gpt1_jax.plots import attention, embeddings, style
from gpt1_jax.plots.next_tokens import next_tokens_figures
from gpt1_jax.plots.workdir import PLOTS, write_run_plots
from gpt1_jax.pretrained import format_of, load_pretrained
from gpt1_jax.tokenizers import MissingTokenizer, Tokenizer
from gpt1_jax.workdir import has_checkpoint, read_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_TOKENS = 300
"""Tokens on the map of W_e."""
N_LIKELIEST = 5
_COUNTED = 20_000_000  # tokens of the training text


def write_plots(
    checkpoint: str | Path,
    folder: str | Path | None = None,
    prompts: Sequence[str] = (),
    *,
    step: int | None = None,
) -> list[Path]:
    """Draws what a run has logged, what its model has learned, and what that does with each prompt.

    Args:
      checkpoint: what `load_pretrained` reads; also a run that is still going, or a folder of several runs.
      folder: where to; default `plots/` in a workdir.
      prompts: texts.
      step: checkpoint; default the best by the run's own metric, else the latest.

    Returns:
      the files.

    Raises:
      InputError: there is nothing to draw, no folder is given for what is no workdir, or a prompt is empty or longer
        than n_ctx.
    """
    local = copy_of(checkpoint)
    if not local.exists():
        read_config(local)  # which has the nearest that exists
    is_run = (local / "config.json").exists() and "program" in read_config(local)
    if folder is None and (not is_run or local != Path(checkpoint)):
        raise InputError(f"output: {checkpoint} is no workdir on this machine; name a folder for the plots")
    folder = local / PLOTS if folder is None else Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output={str(folder)!r} is a file; name a folder for the plots")
    several = is_run and read_config(local)["program"] == "finetune, repeated"
    figures: Iterable[tuple[str, Figure]] = ()
    if prompts or (not several and (not is_run or has_checkpoint(local))):
        format_of(checkpoint)  # of several runs, names them
        model, params, tokenizer = load_pretrained(checkpoint, step=step)
        streams = [_stream(model, tokenizer, prompt) for prompt in prompts]  # refused before anything is drawn
        figures = _figures(model, params, tokenizer, streams, _token_counts(local, model))
    written = write_run_plots(local, folder) if several or (local / FILE).exists() else []
    for old in folder.glob("prompt_*.png") if prompts else ():  # of more prompts, or longer ones
        old.unlink()
    for name, figure in figures:
        written.append(folder / f"{name}.png")
        style.save(written[-1], figure)
    if not written:
        raise InputError(f"{checkpoint} has logged nothing and saved nothing yet: wait for its first line of metrics")
    return written


def prompt_figures(
    model: GPT1, params: Mapping[str, Any], tokenizer: Tokenizer, tokens: Sequence[int]
) -> Iterator[tuple[str, Figure]]:
    """("heads" | "layers" | "next" ..., figure) of a text of at least one token."""
    if model.config.trunk == "transformer" and model.config.n_layer:  # an LSTM has no attention
        maps, texts = attention_maps(model, params, [tokens])[:, 0], token_texts(tokenizer, tokens)
        figures = {"heads": attention.attention_overview(maps), "layers": attention.attention_layers(maps, texts)}
        yield from ((name, figure) for name, figure in figures.items() if figure is not None)
    expected = next_tokens(model, params, [tokens], min(N_LIKELIEST, model.config.vocab_size))
    for page, figure in enumerate(next_tokens_figures(tokenizer, tokens, expected), 1):
        yield "next" if page == 1 else f"next_{page}", figure


def _figures(
    model: GPT1,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
    streams: Sequence[Sequence[int]],
    counted: tuple[np.ndarray, str] | None,
) -> Iterator[tuple[str, Figure]]:
    """One after another, so that each is gone when the next is made."""
    yield from _model_figures(model, params, tokenizer, counted)
    for i, stream in enumerate(streams, 1):
        for name, figure in prompt_figures(model, params, tokenizer, stream):
            yield f"prompt_{i}_{name}", figure


def _model_figures(
    model: GPT1, params: Mapping[str, Any], tokenizer: Tokenizer, counted: tuple[np.ndarray, str] | None
) -> Iterator[tuple[str, Figure]]:
    vectors = np.asarray(params["tokens_embed"]["embedding"], np.float32)[: model.config.vocab_size]
    if "positions_embed" in params:
        yield "positions", embeddings.position_figure(np.asarray(params["positions_embed"]["embedding"]))
    counts, text = counted or (None, "")
    yield "token_norms", embeddings.norm_figure(np.linalg.norm(vectors, axis=1), counts, text)
    if isinstance(tokenizer, MissingTokenizer):
        logging.warning("no tokenizer: tokens have no names, and are not drawn on a map")
        return
    if counts is None:
        frequent = np.array(list(itertools.islice(_words(tokenizer), N_TOKENS)), int)
    else:
        frequent = np.argsort(-counts, kind="stable")[: min(N_TOKENS, np.count_nonzero(counts))]
    if len(frequent) > 1:
        texts = [text_after(tokenizer, frequent[:1].tolist(), int(token)) for token in frequent]
        of_these = None if counts is None else counts[frequent]
        yield "tokens", embeddings.token_map_figure(vectors[frequent], texts, of_these, text)


def _words(tokenizer: Tokenizer) -> Iterator[int]:
    """Tokens of two letters or more in the order of their ids, which is about that in which they were learned."""
    for token in range(tokenizer.vocab_size):
        text = tokenizer.decode([token]).strip()
        if len(text) > 1 and text.isalpha():
            yield token


def _stream(model: GPT1, tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a prompt, as a fine-tuned model is given them: between start and extract token."""
    ids = tokenizer.encode(prompt) or list(tokenizer.document_separator)
    if not ids:
        raise InputError(f"prompt={prompt!r} has no token; give at least one word")
    if model.readout is not None and model.readout.read_at == "extract":
        ids = [model.config.vocab_size, *ids, model.config.extract_id]
    if len(ids) > model.config.n_ctx:
        raise InputError(
            f"prompt={prompt!r:.60} is {len(ids)} tokens long, and n_ctx={model.config.n_ctx}; give a shorter one"
        )
    return ids


def _token_counts(workdir: Path, model: GPT1) -> tuple[np.ndarray, str] | None:
    """How often each token occurs in the text that a run or the one before it was trained on, and what was counted."""
    for folder in (workdir, *_before(workdir)):
        for shards in (folder / "shards", Path(_config(folder).get("shards") or folder / "shards")):
            try:
                corpus = TokenShards.open(shards)
            except (InputError, OSError):
                continue
            if corpus.vocab_size != model.config.vocab_size:
                continue
            n_tokens = min(corpus.n_tokens, _COUNTED)
            counts = np.zeros(model.config.vocab_size, np.int64)
            for start in range(0, n_tokens, 1 << 20):
                counts += np.bincount(corpus.read(start, min(start + (1 << 20), n_tokens)), minlength=len(counts))
            whole = n_tokens == corpus.n_tokens
            return (
                counts,
                "the training text" if whole else f"the first {n_tokens / 1e6:.0f} M tokens of the training text",
            )
    return None


def _config(folder: Path) -> dict[str, Any]:
    return read_config(folder).get("config") or {} if (folder / "config.json").exists() else {}


def _before(workdir: Path) -> list[Path]:
    """The workdir that a run started from, if it is on this machine."""
    start = read_config(workdir).get("init_from") if (workdir / "config.json").exists() else None
    return [Path(start)] if start and Path(start).is_dir() else []
