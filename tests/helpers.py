"""Functions that several test files use; fixtures are in conftest.py."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.model import GPT1, param_shapes


@contextlib.contextmanager
def on_all_devices() -> Iterator[None]:
    """Where runs take all eight devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt1_jax.sharding.all_devices", jax.devices)
        yield


def random_params(model: GPT1, *, scale: float = 0.3, seed: int = 1) -> dict[str, Any]:
    """Large random numbers everywhere, so that nothing is too small to matter; the rows that pad the table are 0."""
    rng = np.random.default_rng(seed)
    shapes = param_shapes(model.config, model.readout)
    params = jax.tree.map(lambda x: scale * rng.normal(size=x.shape).astype(np.float32), shapes)
    params["tokens_embed"]["embedding"][model.config.n_rows :] = 0
    return params


def params_for_transformers(model: GPT1) -> dict[str, Any]:
    """`random_params`, but no bias of a classifier, for which transformers has no place."""
    params = random_params(model)
    if model.readout and model.readout.kind != "multiple_choice" and model.config.clf_bias:
        params["clf"]["bias"][:] = 0
    return params


def split_of(lengths: Sequence[int], n_streams: int) -> EncodedSplit:
    """Examples of `n_streams` streams each, which are as long as it says; all tokens are 0."""
    starts = np.cumsum([0, *np.repeat(lengths, n_streams)])
    return EncodedSplit(
        name="x",
        tokens=np.zeros(starts[-1], np.int32),
        stream_starts=starts,
        example_starts=np.arange(len(lengths) + 1) * n_streams,
        labels=np.zeros(len(lengths), np.int32),
        ids=tuple(map(str, range(len(lengths)))),
        n_ctx=64,
        n_truncated=0,
        n_cut=0,
    )


def pip_install(target: Path, *arguments: str) -> None:
    """Installs packages into a folder of their own, which may stand in PYTHONPATH; skips the test where it cannot."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={target}", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"pip cannot install {' and '.join(arguments)}: {result.stderr.strip()[-300:]}")
