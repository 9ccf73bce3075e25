"""The tensors of a folder that PyTorch programs wrote, by name: safetensors, or a `.bin` read for its weights only.

    model.safetensors, or model.safetensors.index.json and the files that its "weight_map" names
    pytorch_model.bin, or pytorch_model.bin.index.json likewise

A `.bin` is a pickle, which can run any program when it is opened. It is given to PyTorch's reader for weights, which
refuses everything else, and never to `pickle`.
"""

from __future__ import annotations

import dataclasses
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (makes NumPy know bfloat16 by name, as safetensors expects)
import numpy as np

from gpt1_jax.errors import InputError
from gpt1_jax.files import read_object

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""In the order in which they are looked for."""

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_DAMAGED = "it is damaged or not complete; download it again"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
      file: where it is.
      shape: its shape.
      dtype: "float32", "float16", ..., or the file format's own word for a type that is no such number.
      read: gives its values.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


def open_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of `folder`; values are read when they are asked for.

    Raises:
      InputError: there is no file of weights, or one is missing, damaged, or more than weights; a `.bin` and no
        PyTorch to read it.
    """
    found = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if found is None:
        raise InputError(f"{folder}: has no weights ({', '.join(WEIGHT_FILES)}); download the whole folder")
    if found.suffix != ".json":
        return _open(found)
    weight_map = read_object(found).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError(f"{found}: has no 'weight_map' of tensor names to file names; download it again")
    tensors: dict[str, StoredTensor] = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise InputError(f"{found}: names the file {name!r}, which is not in this folder; download it too")
        tensors |= _open(folder / name)
    lost = sorted(weight_map.keys() - tensors.keys())
    if lost:
        raise InputError(f"{found}: names {lost[0]!r} and {len(lost) - 1} other tensors that no file has; {_DAMAGED}")
    return tensors


def _open(file: Path) -> dict[str, StoredTensor]:
    return _open_safetensors(file) if file.suffix == ".safetensors" else _open_torch(file)


def _open_safetensors(file: Path) -> dict[str, StoredTensor]:
    from safetensors import SafetensorError, safe_open

    try:
        handle = safe_open(file, framework="np")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file}: is no safetensors file ({error}); {_DAMAGED}") from None

    def one(name: str) -> StoredTensor:
        piece = handle.get_slice(name)
        dtype = piece.get_dtype()
        return StoredTensor(file, tuple(piece.get_shape()), _DTYPES.get(dtype, dtype), lambda: handle.get_tensor(name))

    return {name: one(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)


def _open_torch(file: Path) -> dict[str, StoredTensor]:
    torch = _import_torch(file)
    try:
        # Files from before PyTorch 1.6 are no archives and cannot be mapped into memory.
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{file}: holds more than weights, or is no file of PyTorch ({_first_line(error)}); it is not opened, "
            f"since that could run a program that hides in it. Take model.safetensors of the same model, or have its "
            f"owner convert it"
        ) from None
    except Exception as error:  # a damaged file makes this reader fail in many ways
        raise InputError(f"{file}: cannot be read ({_first_line(error)}); {_DAMAGED}") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise InputError(f"{file}: is not a dictionary of tensors; save model.state_dict(), without anything around it")

    def one(value: Any) -> StoredTensor:
        def read() -> np.ndarray:
            array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
            return array.copy()  # not a view of the file, which may go away

        return StoredTensor(file, tuple(value.shape), str(value.dtype).removeprefix("torch."), read)

    return {name: one(value.detach()) for name, value in state.items()}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _import_torch(file: Path) -> Any:
    """PyTorch, if its reader for weights can be trusted: before 2.6 a file could get around it (CVE-2025-32434)."""
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{file}: reading this file takes PyTorch; pip install torch, or convert the folder to safetensors where "
            f"transformers is installed: model.save_pretrained(folder)"
        ) from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise InputError(
            f"{file}: PyTorch {torch.__version__} cannot read this file safely; pip install 'torch>=2.6', or take "
            f"model.safetensors of the same model"
        )
    return torch
