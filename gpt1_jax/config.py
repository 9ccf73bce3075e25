"""Configuration at the door: a dict or an `ml_collections.ConfigDict` becomes a checked, frozen dataclass."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpt1_jax.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def from_config(cls: type[T], config: Any = None, *, where: str = "config", defaults: T | None = None) -> T:
    """Turns `config` into a `cls`; keys that are absent take the dataclass's defaults.

    So do those of a nested section: `{"optimizer": {"learning_rate": 1e-3}}` changes this one value in the `optimizer`
    that `cls` has by default.

    Args:
      cls: a frozen dataclass whose fields may be dataclasses, tuples and plain values.
      config: a `cls`, a (nested) mapping, a `ConfigDict`, or None for all defaults.
      where: how messages name the place.
      defaults: in place of `cls`'s own.

    Raises:
      InputError: a key is unknown (the nearest known one is suggested) or a value has the wrong type.
    """
    if config is None:
        return cls() if defaults is None else defaults
    if isinstance(config, cls):
        return config
    if hasattr(config, "to_dict"):  # ConfigDict
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise InputError(f"{where} must be a {cls.__name__} or a mapping, not {type(config).__name__}")
    hints = typing.get_type_hints(cls)
    names = {f.name: f.default for f in dataclasses.fields(cls)}
    for key in config:
        if key not in names:
            hint = did_you_mean(str(key), names) or f"; known keys: {list(names)}"
            raise InputError(f"{where}.{key} is unknown{hint}")
    values = {}
    for key, value in config.items():
        default = names[key] if defaults is None else getattr(defaults, key)
        values[key] = _convert(hints[key], value, f"{where}.{key}", default)
    try:
        return cls(**values) if defaults is None else dataclasses.replace(defaults, **values)
    except InputError as error:  # which names the place in a config of which this is a section
        *outer, section = where.split(".")[1:] or [""]
        if outer and str(error).startswith(f"{section}."):
            raise InputError(f"{'.'.join(outer)}.{error}") from None
        raise


def check_fields(config: Any, section: str = "") -> None:
    """For the `__post_init__` of a config: every field is of its type, also where the config was not read but made.

    NumPy's numbers, lists and paths become numbers, tuples and texts; a mapping in the place of a section the section.

    Args:
      config: a frozen dataclass.
      section: how messages name it, such as "optimizer"; empty for a whole config.

    Raises:
      InputError: a field has a value of another type, or a number that is not finite.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        where = f"{section}.{field.name}" if section else field.name
        converted = _convert(hints[field.name], value, where, field.default)
        if converted is not value:
            object.__setattr__(config, field.name, converted)


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as nested dicts of JSON values (tuples become lists)."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        return value

    return plain(config)


def to_config_dict(config: Any) -> Any:
    """A dataclass as a `ConfigDict` for a config file: every key is there, so a misspelt override fails."""
    from ml_collections import config_dict

    hints = typing.get_type_hints(type(config))
    out = config_dict.ConfigDict()
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            value = to_config_dict(value)
        elif value is None:
            # A placeholder knows its type, so that --config.key=3 gives an int and not a string.
            kind = next(t for t in typing.get_args(hints[f.name]) if t is not types.NoneType)
            value = config_dict.placeholder(typing.get_origin(kind) or kind)
        out[f.name] = value
    return out


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`. An empty mapping is a value."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _convert(hint: Any, value: Any, where: str, default: Any = None) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if value is None:
            raise InputError(f"{where}=None must be a {hint.__name__} or a mapping; leave it out for its defaults")
        base = default if isinstance(default, hint) else None
        return from_config(hint, value, where=where, defaults=base)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in args:
            return None
        return _convert(next(a for a in args if a is not types.NoneType), value, where, default)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            example = ""
            if isinstance(value, str):
                example = f", such as [{value!r}]"
            elif isinstance(value, Mapping) and args[0] is str:
                example = f", such as {[f'{k}={v}' for k, v in value.items()]}"
            raise InputError(f"{where}={value!r} must be a sequence{example}")
        value = [v.item() if isinstance(v, np.generic) else v for v in value]
        if args[0] is str:  # labels that are numbers
            value = [str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in value]
        if args[0] is float:  # 0.2,1 on a command line
            value = [float(v) if isinstance(v, str) and _NUMBER.fullmatch(v) else v for v in value]
        return tuple(_convert(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{where}={value!r} must be a mapping")
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{where}: the key {key!r} must be a text")
        return {k: _convert(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not -sys.float_info.max <= value <= sys.float_info.max:  # nor is it NaN
            raise InputError(f"{where}={value} must be a finite number")
        return float(value)
    if hint is Any or (isinstance(value, hint) and not (hint is int and isinstance(value, bool))):
        return value
    raise InputError(f"{where}={value!r} must be of type {getattr(hint, '__name__', hint)}")
