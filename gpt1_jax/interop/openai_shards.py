"""The numbers of OpenAI's folder: one vector of float32 values in the files params_0.npy, params_1.npy, ...

Files are NumPy's (`numpy.lib.format`). One that holds Python objects is refused: NumPy would unpickle it, and that can
run any code.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
from pathlib import Path

import numpy as np
from absl import logging

from gpt1_jax.errors import InputError
from gpt1_jax.files import write_atomically

N_SHARDS = 10
FLOAT32 = np.dtype("<f4")
COPY_AGAIN = "copy or download it again"

_PIECE = 1 << 22  # values that are read and converted at once
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file whose header is sound and fits its length.

    Attributes:
      path: the file.
      dtype: of its values, a floating-point type.
      n: how many values it has.
      start: where they begin, in bytes.
    """

    path: Path
    dtype: np.dtype
    n: int
    start: int


def find_shards(folder: Path) -> list[Shard]:
    """The files of a folder in the order of their numbers, however many; only their headers are read.

    Raises:
      InputError: a number is missing or is none; a file is no vector of floating-point values, or cut short.
    """
    paths = {path.name: path for path in folder.glob("params_*.npy")}
    for name in sorted(paths):
        if not re.fullmatch(r"params_(0|[1-9][0-9]*)\.npy", name):
            raise InputError(
                f"{paths[name]}: is not a name like params_0.npy, params_1.npy, ...; rename it or move it elsewhere"
            )
    first_missing = next(i for i in itertools.count() if f"params_{i}.npy" not in paths)
    if first_missing < max(len(paths), 1):
        raise InputError(
            f"{folder}/params_{first_missing}.npy: is missing; found {len(paths)} such files, the release has "
            f"params_0.npy to params_{N_SHARDS - 1}.npy; {COPY_AGAIN}"
        )
    return [_read_header(folder / f"params_{i}.npy") for i in range(first_missing)]


def read_shards(shards: list[Shard]) -> np.ndarray:
    """All values as one float32 vector; other floating-point types are converted where that loses nothing.

    Raises:
      InputError: a value is not a float32.
    """
    vector = np.empty(sum(shard.n for shard in shards), FLOAT32)
    end = 0
    for shard in shards:
        with open(shard.path, "rb") as file:
            file.seek(shard.start)
            for done in range(0, shard.n, _PIECE):
                piece = np.fromfile(file, shard.dtype, min(_PIECE, shard.n - done))
                begin, end = end, end + len(piece)
                with np.errstate(over="ignore"):  # found just below
                    vector[begin:end] = piece
                changed = (vector[begin:end] != piece) & ~np.isnan(piece)
                if changed.any():
                    raise InputError(
                        f"{shard.path}: {shard.dtype} value {piece[np.argmax(changed)]} is not a float32; "
                        f"convert the file with numpy's astype('float32') if rounding its values is what you want"
                    )
        if shard.dtype != FLOAT32:
            logging.warning("%s: %s values, converted to float32 without loss", shard.path, shard.dtype)
    return vector


def write_shards(folder: Path, vector: np.ndarray) -> None:
    """Writes a float32 vector as the release does: ten files, cut by `numpy.array_split`, each one atomically."""
    for i, values in enumerate(np.array_split(vector, N_SHARDS)):
        file = io.BytesIO()
        np.save(file, values.astype(FLOAT32, copy=False), allow_pickle=False)
        write_atomically(folder / f"params_{i}.npy", file.getvalue())


def _read_header(path: Path) -> Shard:
    try:
        with open(path, "rb") as file:
            beginning = file.read(16)
            file.seek(0)
            try:
                version = np.lib.format.read_magic(file)
                shape, _, dtype = _HEADERS[version](file)
            except Exception as error:  # of many types: NumPy evaluates the header as a Python literal
                raise InputError(
                    f"{path}: is not a NumPy file of version 1 or 2 ({error}); it begins with {beginning!r}: if that "
                    f"is a Git LFS pointer, a web page or a pickle, get the array itself; otherwise {COPY_AGAIN}"
                ) from None
            start = file.tell()
            found = file.seek(0, os.SEEK_END) - start
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {COPY_AGAIN}") from None
    if dtype.hasobject:
        raise InputError(
            f"{path}: holds Python objects, which are stored as a pickle, and reading a pickle can run any code; "
            f"get the weights as a float32 array"
        )
    if dtype.kind != "f" or len(shape) != 1:
        raise InputError(
            f"{path}: is an array of type {dtype} and shape {list(shape)}, expected a float32 vector; save it as such "
            f"if the weights came from another program, otherwise {COPY_AGAIN}"
        )
    expected = shape[0] * dtype.itemsize
    if found != expected:
        raise InputError(
            f"{path}: has {found} bytes of values, its header says {expected} ({shape[0]} x {dtype}); the file is "
            f"{'cut short' if found < expected else 'damaged'}: {COPY_AGAIN}"
        )
    return Shard(path, dtype, shape[0], start)
