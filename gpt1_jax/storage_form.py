"""The form in which `gpt1_jax.checkpoint` stores a pytree: arrays by name, and nothing else.

The types of the containers are those of the tree that is filled: a dataclass, optax's named tuples. A typed random key
is stored as its key data, under the name of its generator: `key` becomes `key/threefry2x32`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from gpt1_jax.errors import InputError
from gpt1_jax.manifest import ArraySpec

PyTree = Any


def _named_leaves(tree: PyTree) -> dict[str, Any]:
    """The leaves by their path, such as `opt_state/0/mu/h_0/ln_1/scale`, in the tree's order."""
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}
    if len(named) != len(pairs):
        raise ValueError("two leaves of the tree have the same path: a key of a dictionary contains '/'")
    return named


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_generator(leaf: Any) -> str:
    """The name of a typed key's generator, of an array or of a `ShapeDtypeStruct`."""
    names = []
    scalar = jax.ShapeDtypeStruct((), leaf.dtype)
    jax.eval_shape(lambda key: names.append(str(jax.random.key_impl(key))), scalar)
    return names[0]


def storage_form(tree: PyTree, *, abstract: bool = False) -> dict[str, Any]:
    """The tree as it is stored: arrays by name, typed keys as key data. `abstract` makes JAX arrays mere shapes."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
            leaf = np.asarray(leaf)
        if abstract and not isinstance(leaf, np.ndarray):
            leaf = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
        if not _is_key(leaf):
            return leaf
        if not abstract:
            return jax.random.key_data(leaf)
        data = jax.eval_shape(jax.random.key_data, leaf)
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=leaf.sharding)

    named = _named_leaves(tree)
    return {f"{name}/{_key_generator(leaf)}" if _is_key(leaf) else name: one(leaf) for name, leaf in named.items()}


def fill(tree: PyTree, stored: Mapping[str, Any]) -> PyTree:
    """`tree` with its leaves replaced by the stored arrays of the same names; the inverse of `storage_form`."""

    def one(name: str, leaf: Any) -> Any:
        if not _is_key(leaf):
            return stored[name]
        generator = _key_generator(leaf)
        return jax.random.wrap_key_data(stored[f"{name}/{generator}"], impl=generator)

    leaves = [one(name, leaf) for name, leaf in _named_leaves(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def check_fits(
    folder: epath.Path, stored: Mapping[str, ArraySpec], wanted: Mapping[str, Any], subset: str, most: int = 5
) -> None:
    """Compares what a checkpoint has with what is wanted.

    Args:
      folder: the checkpoint's, for the message.
      stored: what its manifest lists.
      wanted: arrays or shapes by name.
      subset: " parameters" if only those are loaded, "" for all.
      most: how many differences to list, those of parameters first.

    Raises:
      InputError: arrays differ in name, shape or dtype.
    """
    specs = {name: ArraySpec.of(leaf) for name, leaf in wanted.items()}
    problems = []
    for name in sorted(stored.keys() | specs.keys(), key=lambda name: (not name.startswith("params/"), name)):
        there, here = stored.get(name), specs.get(name)
        if there != here:
            problems.append(f"{name}: {there or 'absent'} in the checkpoint, {here or 'absent'} here")
    if problems:
        more = f"; and {len(problems) - most} more" if len(problems) > most else ""
        raise InputError(
            f"the checkpoint{subset} in {folder} cannot be loaded into this{subset or ' state'}: "
            f"{'; '.join(problems[:most])}{more}. Use the model and optimizer settings of the run that wrote it "
            "(config.json in its workdir); its parameters alone load into any run of the same model."
        )
