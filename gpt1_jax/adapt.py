"""Adapting a language model to a domain: L1 goes on with unlabelled text, before the task is learned with labels.

With few labels and much text of the same kind this is the cheapest gain there is (Howard and Ruder 2018; Gururangan et
al. 2020). The text is a source as in pre-training, or the task's own training examples: every text of theirs once,
without labels and without the answers of multiple choice, of which all but one are wrong. Validation and test examples
are not read. The special rows are not trained here; fine-tuning adds them afterwards.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from pathlib import Path

from absl import logging

from gpt1_jax import pretrain
from gpt1_jax.data.sources import open_source
from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory, sha256_of_file, write_atomically
from gpt1_jax.finetune_config import TASK_TEXTS, FinetuneConfig
from gpt1_jax.mirror import on_each_disk
from gpt1_jax.tasks.examples import Example
from gpt1_jax.train import LoopConfig

TEXTS = "texts.jsonl"


def adapt(config: FinetuneConfig, train: Sequence[Example], directory: Path, init_from: str | Path) -> None:
    """Trains the language model of `init_from` on `config.adapt.source`, or goes on where that was.

    Args:
      config: of the fine-tuning run; the network, the loss and the mesh are its own.
      train: the training examples of the task.
      directory: becomes a workdir of `pretrain`; what is complete is left as it is.
      init_from: what `load_pretrained` reads.

    Raises:
      InputError: the text or the directory cannot be used, see `pretrain.run`.
    """
    source = config.adapt.source
    if source == TASK_TEXTS:
        path = write_texts(train, directory)
        source = f"jsonl:{glob.escape(str(path))}#text"
    logging.info("adapting %s to %s, in %s", init_from, source, directory)
    pretrain.run(
        pretrain.PretrainConfig(
            source=source,
            heldout_fraction=config.adapt.heldout_fraction,
            model=config.model,
            batch_size=config.adapt.batch_size,
            epochs=config.adapt.epochs,
            n_steps=config.adapt.n_steps,
            optimizer=config.adapt.optimizer,
            loss=config.loss,
            accumulation_steps=config.accumulation_steps,
            mesh=config.mesh,
            loop=LoopConfig(log_every=config.log_every),
            seed=config.adapt.seed,
            plots=config.plots,
            require_accelerator=config.require_accelerator,
        ),
        directory,
        init_from,
    )


def check_adapt(config: FinetuneConfig, directory: Path) -> None:
    """Refuses a text that is not there, before anything else is done; what was begun in `directory` has its own.

    Raises:
      InputError: there are no files of `config.adapt.source`, or they are called otherwise.
    """
    source = config.adapt.source
    if source in ("", TASK_TEXTS) or (directory / "config.json").exists():
        return
    try:
        open_source(source)
    except InputError as error:
        raise InputError(f"adapt.{error}") from None


def write_texts(examples: Sequence[Example], directory: Path) -> Path:
    """Writes every text of the examples once, in their order, as JSON lines with the field "text"; returns the file."""
    path = directory / TEXTS

    def write() -> str:
        texts = dict.fromkeys(text for example in examples for text in example.texts.values())
        lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts if text.strip())
        make_directory(directory, "workdir")
        if not path.exists() or path.read_bytes() != lines.encode("utf-8"):
            write_atomically(path, lines.encode("utf-8"))
        return sha256_of_file(path)

    on_each_disk(directory, write)
    return path
