"""A model as a folder that runs without this package: `export.run(checkpoint, target)`.

    from gpt1_jax import export
    print(export.run("runs/reviews", "reviews-export"))

The folder holds

| file | what it is |
|---|---|
| `model_card.json` | what the model says of what, how text becomes ids, sizes, versions; written last |
| `*.jax_export` | the programs: StableHLO, serialised by `jax.export`, for CPU, TPU and CUDA, any batch and length |
| `params.npz` | the parameters, float32, which `numpy.load` reads; every program takes them as its first argument |
| `tokenizer/` | the tokenizer's files, and `text.py`, which turns text into ids and back |
| `predict.py` | loads all that and predicts, from the command line or imported |
| `packages/` | flatbuffers, pure Python, which `jax.export` reads its files with and JAX does not install |

Ids of tokens need JAX and NumPy. Text needs what its tokenizer is made of, too: `sentencepiece`, or for the original
one `ftfy` and `spacy`, or nothing for its approximate variant; the card has it under `tokenizer.needs`.

How long it lives: `jax.export` guarantees that what one version wrote runs with a JAX and jaxlib up to six months newer
and three weeks older, counted between their releases. Newer releases refuse what is beyond. So keep the checkpoint,
and export again, or keep the versions that the card names. Parameters, tokenizer and card do not age. Folders written
with JAX 0.10.2 predicted the same with JAX 0.12.0 and Python 3.13 when that was tried.
"""

from __future__ import annotations

from gpt1_jax.export.exporter import Export, run

__all__ = ["Export", "run"]
