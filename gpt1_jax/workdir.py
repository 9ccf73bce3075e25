"""The workdir of a run: one folder that explains itself.

::

    config.json      the run's configuration, written before anything else
    .lock            held by the run that is using the folder
    tokenizer/  checkpoints/<step>/  metrics.jsonl  tensorboard/  ...

`open_workdir` finds out before work starts what would otherwise be found at the first save: that the folder cannot be
written, that the disk is full, that another run uses it, or that it belongs to a run with other settings.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from absl import logging
from etils import epath

from gpt1_jax.bucket import is_url
from gpt1_jax.config import flatten
from gpt1_jax.errors import InputError
from gpt1_jax.files import first_missing, is_address, json_text, similar, write_json
from gpt1_jax.lock import LOCK, release_lock, take_lock
from gpt1_jax.mirror import checkpoints_of, remote_of, try_push

CONFIG = "config.json"
OUTPUTS = (
    *("checkpoints", "tokenizer", "shards", "adapt", "metrics.jsonl", "tensorboard", "results.json"),
    *("predictions", "reports", "submission", "plots", "report"),
)
"""What runs write into a workdir beside config.json."""
RESERVE_BYTES = 64 << 20  # of the disk, for all but the checkpoints
_PROBE_BYTES = 1 << 20


@dataclasses.dataclass
class Workdir:
    """An open workdir; close it, or use it as a context manager, to let another run in."""

    path: Path
    config: Mapping[str, Any]  # as JSON gives it
    resumed: bool  # whether a run has been here before (process 0; False on the others)
    _lock: int | None = None  # file descriptor
    _found: frozenset[str] = frozenset()  # what was in the folder when it was opened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock, which otherwise ends with the process; a mirror is copied to its bucket first."""
        if self._lock is not None:
            try_push(self.path)
            release_lock(self._lock)
            self._lock = None

    def user(self) -> str:
        """Who has locked it, as its file says: all that see this folder read the same."""
        if self._lock is not None:  # to open the file, and close it again, would release the lock
            return os.pread(self._lock, 1000, 0).decode(errors="replace")
        try:
            return (self.path / LOCK).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def forget(self) -> None:
        """Removes config.json again if this is the first run here and nothing else has come into the folder."""
        if self._lock is None or self.resumed or _outputs(self.path):
            return
        if set(os.listdir(self.path)) <= self._found | {CONFIG}:
            (self.path / CONFIG).unlink(missing_ok=True)


def open_workdir(
    path: str | os.PathLike[str],
    config: Mapping[str, Any],
    *,
    mutable: tuple[str, ...] = (),
    made_from: Mapping[str, tuple[str, ...]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    min_free_bytes: int = RESERVE_BYTES,
    process_index: int | None = None,
) -> Workdir:
    """Makes or re-opens a run's folder, on a local disk, for this run alone.

    Only process 0 of several looks at the folder and writes to it.

    Args:
      path: the folder; it is made if it does not exist.
      config: the run's configuration: nested dictionaries of what JSON can hold.
      mutable: dotted names of fields that may differ when the run is resumed, each with all fields below it:
        `("n_steps", "log")` allows `n_steps` and `log.every`. The new values then replace the old ones in config.json.
      made_from: folders that a run makes before its first checkpoint, each with the dotted names of the fields that it
        depends on. While there is no checkpoint, other settings are then no error: they replace the old ones, and
        those of these folders go whose fields differ.
      defaults: default values, nested as `config` is: a run of an earlier release, which had not a field yet, is taken
        to have had its default.
      min_free_bytes: how much space has to be free; give what the checkpoints will take.
      process_index: this process's number; None asks JAX, which starts its backend.

    Returns:
      The open workdir.

    Raises:
      InputError: the folder cannot be made or written, has too little space, is in use, belongs to a run with another
        configuration, or has no config.json and something that a run would write over.
      TypeError: JSON cannot hold `config`.
    """
    if is_address(path):
        raise InputError(f"workdir={path} is not on a file system of this machine: choose a local folder, or gs://")
    if len(Path(path).absolute().parts) == 1:
        raise InputError(f"workdir={path} is the root of a file system: choose a folder in it")
    path = Path(path)
    config = json.loads(json_text(dict(config)))  # as it will be read again
    if process_index is None:
        import jax

        process_index = jax.process_index()
    if process_index != 0:
        return Workdir(path, config, resumed=False)
    _make_and_probe(path, min_free_bytes)
    lock = take_lock(path, "workdir")
    workdir = Workdir(path, config, (path / CONFIG).exists(), lock, frozenset(os.listdir(path)))
    try:
        if workdir.resumed:
            old = read_config(path)
            check_same_program(path, old, config)
            old = with_defaults(old, config, defaults or {})
            if made_from is None or has_checkpoint(path):
                check_same_run(path, old, config, mutable)
            else:
                _start_anew(path, old, config, made_from)
            if old == config:
                return workdir
        else:
            _check_nobodys(path)
        write_config(path, config)
    except BaseException:
        workdir.close()
        raise
    return workdir


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration of the run in a workdir, as JSON gives it.

    Raises:
      InputError: there is no workdir; the message has the nearest path that exists, or the workdir that may be meant.
    """
    path = Path(path)
    if not (path / CONFIG).is_file():
        raise InputError(f"{path} is not a workdir: {_why_no_workdir(path)}")
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path / CONFIG} is not valid JSON ({error}): correct it or put it back") from error
    if not isinstance(config, dict):
        raise InputError(f"{path / CONFIG} holds a {type(config).__name__}, not the fields of a configuration")
    return config


def write_config(path: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
    """Writes a workdir's config.json, whole or not at all."""
    write_json(Path(path) / CONFIG, dict(config))


def _make_and_probe(path: Path, min_free_bytes: int) -> None:
    """Writes to the folder what a first save would write, and removes it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".probe.") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        nearest = first_missing(path.absolute()).parent
        where = "" if path.exists() else f"; the nearest folder that exists is {nearest}"
        raise InputError(
            f"workdir={path} cannot be written ({error.strerror or error}){where}. "
            "Choose a folder that you may write to, on a disk with free space."
        ) from error
    check_free(path, min_free_bytes)


def check_free(path: Path, n_bytes: int) -> None:
    """Refuses a workdir on a disk that has less space for checkpoints and `RESERVE_BYTES` for all else."""
    free = shutil.disk_usage(path).free
    if free < n_bytes:
        raise InputError(
            f"workdir={path} has {free / 1e6:,.0f} MB free, the run needs {n_bytes / 1e6:,.0f} MB for its "
            f"checkpoints, {RESERVE_BYTES / 1e6:,.0f} MB for all else among them. Make space, choose another disk, or "
            "keep fewer checkpoints if it keeps many."
        )


def _check_nobodys(path: Path) -> None:
    """Refuses a folder without config.json whose files a run would write over: they are somebody's."""
    there = _outputs(path)
    if remote_of(path) is not None:  # what a first copying brought before it was stopped; config.json comes last
        there = ["checkpoints"] if _has_entries(checkpoints_of(path)) else []
    if there:
        raise InputError(
            f"workdir={path}: it has {' and '.join(there[:3])} but no {CONFIG}, so nobody knows what they are of, and "
            f"a run would write over them. Put its {CONFIG} back, or choose another workdir."
        )


def _outputs(path: Path) -> list[str]:
    """What of `OUTPUTS` is there; empty folders are not."""
    return [name for name in OUTPUTS if (path / name).is_file() or _has_entries(path / name)]


def _has_entries(folder: Path | epath.Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def check_same_program(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raises an InputError for the workdir of another program, of which every field differs."""
    if old.get("program") != new.get("program"):
        raise InputError(
            f"workdir={path} belongs to a run of {old.get('program')!r}, this is {new.get('program')!r}: "
            "choose another workdir"
        )


def with_defaults(old: Mapping[str, Any], new: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The old configuration, with the default of every field that is only in the new one."""
    completed = dict(old)
    for name, default in defaults.items():
        if name not in new:
            continue
        if isinstance(default, Mapping) and isinstance(new[name], Mapping) and isinstance(old.get(name, {}), Mapping):
            completed[name] = with_defaults(old.get(name, {}), new[name], default)
        else:
            completed.setdefault(name, default)
    return completed


def has_checkpoint(path: Path) -> bool:
    """Whether a workdir has a finished checkpoint."""
    return bool(finished_steps(path))


def finished_steps(path: Path) -> list[int]:
    """The updates of which a workdir has a finished checkpoint, in increasing order."""
    folder = checkpoints_of(path)
    if not folder.is_dir():
        return []
    finished = [entry for entry in folder.iterdir() if entry.name.isdecimal()]
    if is_url(folder):  # where no rename, but a file is what finishes it
        finished = [entry for entry in finished if (entry / "commit_success.txt").exists()]
    return sorted(int(entry.name) for entry in finished)


def _start_anew(
    path: Path, old: Mapping[str, Any], new: Mapping[str, Any], made_from: Mapping[str, tuple[str, ...]]
) -> None:
    """Removes what a run that came to no checkpoint has made from other values than those that hold now."""
    before, now = flatten(old), flatten(new)
    changed = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
    if not changed:
        logging.info("%s has no checkpoint yet: the run begins anew", path)
        return
    logging.info("%s has no checkpoint yet: the settings of this start replace those of the one before", path)
    for folder, fields in made_from.items():
        if (path / folder).exists() and any(_is_below(name, fields) for name in changed):
            logging.info("%s was made with other settings, and is made again", path / folder)
            shutil.rmtree(path / folder)


def _is_below(name: str, fields: tuple[str, ...]) -> bool:
    return any(name == field or name.startswith(f"{field}.") for field in fields)


def check_same_run(path: Path, old: Mapping[str, Any], new: Mapping[str, Any], mutable: tuple[str, ...]) -> None:
    """Raises an InputError that lists the fields which differ and must not; logs those that may."""
    before, now = flatten(old), flatten(new)
    changed: list[str] = []
    refused: dict[str, str] = {}
    for name in sorted(before.keys() | now.keys()):
        there, here = (json.dumps(fields[name]) if name in fields else "absent" for fields in (before, now))
        if there == here or (name in before and name in now and before[name] == now[name]):  # 1 and 1.0
            continue
        if _is_below(name, mutable):
            changed.append(f"{name} was {there}, is {here}")
        else:
            refused[name] = f"{name} is {there} there, {here} here"
    if refused:  # what follows from a setting (model.n_layer, of config.model.n_layer) is not one more
        may_change = [name for name in mutable if any(_is_below(field, (name,)) for field in now)]
        told = [text for name, text in refused.items() if f"config.{name}" not in refused]
        raise InputError(
            f"workdir={path} belongs to a run with other settings: {'; '.join(told)}. "
            "To resume that run, give its values; to start one with these, choose another workdir"
            + (f". What may change on a resume: {', '.join(may_change)}." if may_change else ".")
        )
    for change in changed:
        logging.info("%s: %s from now on", path, change)


def _why_no_workdir(path: Path) -> str:
    if path.is_dir():
        candidates = [*path.absolute().parents[:2], *sorted(path.iterdir())]
        meant = [str(candidate) for candidate in candidates if (candidate / CONFIG).is_file()]
        return f"it has no {CONFIG}" + (f". Did you mean {' or '.join(meant[:3])}?" if meant else "")
    if path.exists():
        return "it is a file; a workdir is the folder of a run"
    missing = first_missing(path.absolute())
    near = " or ".join(map(str, similar(missing, folder=True, n=3)))
    return f"it does not exist; {missing.parent} does" + (f". Did you mean {near}?" if near else "")
