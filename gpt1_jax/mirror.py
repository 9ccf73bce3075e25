"""Workdirs in a bucket: `gs://bucket/run`, with a mirror on a local disk.

A bucket has no locks, nothing can be appended to a file in it, and nothing mapped into memory. So a run works in a
local folder, as any other does, and what a fresh machine needs to go on is copied to the bucket:

- `checkpoints/` is in the bucket only, written and read there directly (`gpt1_jax.checkpoint`).
- `config.json`, `tokenizer/`, `metrics.jsonl`, `tensorboard/` and results are in the mirror, and are copied before
  every checkpoint and at the end.
- `shards/` is in the mirror of every machine: made there, or fetched where somebody has copied it to the bucket.
- `.lock` is in the mirror: it keeps off a second run on this machine. Nothing keeps off one on another machine.

The mirror is `$GPT1_MIRROR_DIR/runs/<bucket>-<run>-<hash>` (default `~/.cache/gpt1_jax`), and is a workdir itself: its
`.gcs.json` says which address it stands for, and what was the same here and there when they last met. What changed on
one side only since then is the newer; where both sides did, another machine went on with the run, and the bucket holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import jax
from absl import logging
from etils import epath

from gpt1_jax import agreement, bucket
from gpt1_jax.errors import InputError
from gpt1_jax.files import check_path, read_json, write_json
from gpt1_jax.lock import release_lock, take_lock

STATE = ".gcs.json"
CHECKPOINTS = "checkpoints"

_LOCAL = frozenset({CHECKPOINTS, "shards"})  # not copied
_NOT_FETCHED = _LOCAL | {"tensorboard"}  # TensorBoard reads what is in the bucket from there
_NOT_OF_A_MODEL = _NOT_FETCHED | {"predictions", "reports", "submission", "plots"}
_MADE_ANEW = "tokenizer"  # a folder that a run may remove, to make it from other settings
_TURN = ".turn"
_PATIENCE_S = 60.0

_pushing: dict[Path, threading.Thread] = {}  # of each mirror, the copying that may be going on


def mirror(workdir: str | os.PathLike[str]) -> Path:
    """The local folder in which a run works: the workdir itself, or the mirror of one in a bucket, brought up to date.

    All processes of a run call it; process 0 alone asks the bucket.

    Raises:
      InputError: gcsfs is not installed, or the bucket cannot be read and written; or it is no path.
    """
    check_path(workdir, "workdir")
    if not bucket.is_url(workdir):
        return Path(workdir)
    url = bucket.url_of(workdir)
    local = _local_folder("runs", url)
    agreement.on_first(lambda: _open(url, local))
    if not (local / STATE).exists():  # on another machine than process 0's
        local.mkdir(parents=True, exist_ok=True)
        _write_state(local, url, {})
    return local


def copy_of(path: str | os.PathLike[str]) -> Path:
    """The local folder of a model: the path itself, or a copy of what there is in a bucket beside the checkpoints.

    Raises:
      InputError: gcsfs is not installed, or there is no such folder, or it cannot be read; or it is no path.
    """
    check_path(path, "path")
    if not bucket.is_url(path):
        return Path(path)
    url = bucket.url_of(path)
    local = _local_folder("read", url)
    files = bucket.list_files(url, skip=_NOT_OF_A_MODEL)
    if not files:
        raise InputError(f"{url} does not exist or has no files: give the folder of a run or of a model")
    local.mkdir(parents=True, exist_ok=True)
    for name, md5 in files.items():
        if bucket.md5_of(local / name) != md5:
            bucket.get(f"{url}/{name}", local / name)
    for name in _names(local, skip=_LOCAL).keys() - files.keys():
        (local / name).unlink(missing_ok=True)
    _write_state(local, url, {})
    shards = _local_folder("runs", url) / "shards"
    if shards.is_dir():  # the run was on this machine
        with contextlib.suppress(FileExistsError):  # another process of this machine may be as far
            (local / "shards").symlink_to(shards)
    return local


def remote_of(workdir: Path) -> str | None:
    """The address that a mirror, or a folder in one, stands for; None for any other folder."""
    if bucket.is_url(workdir):
        return bucket.url_of(workdir)
    root = _root(workdir)
    if root is None:
        return None
    below = workdir.absolute().relative_to(root).as_posix()
    url = _read_state(root)["url"]
    return url if below == "." else f"{url}/{below}"


def checkpoints_of(workdir: Path) -> epath.Path:
    """The folder of a workdir's checkpoints: in it, or in the bucket that it is a mirror of."""
    url = remote_of(workdir)
    if url is None:
        return epath.Path(workdir / CHECKPOINTS)
    bucket.prepare(url)
    return epath.Path(f"{url}/{CHECKPOINTS}")


def push(workdir: Path) -> None:
    """Copies to the bucket what has changed in a mirror, or a folder in one. Nothing to do for other workdirs.

    Raises:
      InputError: it cannot be written.
    """
    url, root = remote_of(workdir), _root(workdir)
    if url is None or root is None:
        return
    there = bucket.list_files(url, skip=_LOCAL)
    here = _names(workdir, skip=_LOCAL)
    synced = _read_state(root)["synced"]
    below = "" if workdir.absolute() == root else f"{workdir.absolute().relative_to(root).as_posix()}/"
    # config.json says what the rest was made from, so it comes last.
    for name in sorted(here, key=lambda name: (name.endswith("config.json"), name)):
        if (md5 := bucket.md5_of(here[name])) != there.get(name):
            bucket.put(here[name], f"{url}/{name}")
        synced[f"{below}{name}"] = md5
    for name in there.keys() - here.keys():
        if _MADE_ANEW in name.split("/")[:-1] and synced.pop(f"{below}{name}", None):
            bucket.remove(f"{url}/{name}")
    _write_state(root, _read_state(root)["url"], synced)


def try_push(workdir: Path) -> None:
    """`push` that does not end a run where it fails, nor keeps it waiting for long: it says so and goes on."""
    root = _root(workdir)
    if root is None:
        return
    if root in _pushing:  # it may not have all that this one is to copy
        _pushing[root].join(_PATIENCE_S)
        if _pushing[root].is_alive():
            logging.warning("%s is not copied to the bucket now: the copying before is not done yet", workdir)
            return

    def work() -> None:
        try:
            push(workdir)
        except Exception as error:
            logging.warning("%s could not be copied to the bucket, and is tried again later: %s", workdir, error)

    _pushing[root] = threading.Thread(target=work, name="mirror.push", daemon=True)
    _pushing[root].start()
    _pushing[root].join(_PATIENCE_S)
    if _pushing[root].is_alive():
        logging.warning("%s is still being copied to the bucket, and the run does not wait for it", workdir)


def share(workdir: Path) -> None:
    """Puts what process 0 has made in a mirror within the reach of all, through the bucket. All processes call it.

    Raises:
      InputError: the bucket cannot be read or written.
    """
    url = remote_of(workdir)
    if url is None:
        return
    agreement.on_first(lambda: push(workdir))
    agreement.on_some(lambda: _fetch_model(workdir, url), here=jax.process_index() > 0)


def on_each_disk(workdir: Path, work: Callable[[], str]) -> None:
    """Does `work` on every disk that its result is read from: once, or for a mirror once on each machine.

    Args:
      workdir: of the run.
      work: returns something that is the same wherever the same was made.

    Raises:
      InputError: the machines have made something different, or `work` raised it.
    """
    root = _root(workdir)
    if root is None:
        agreement.on_first(work)
        return

    def in_turn() -> str:  # machines may share a disk after all
        (root / _TURN).mkdir(exist_ok=True)
        lock = take_lock(root / _TURN, "workdir", wait=True)
        try:
            return work()
        finally:
            release_lock(lock)

    machine = f"{socket.gethostname()} {root}"
    machines = agreement.on_each(lambda: machine)
    made = agreement.on_some(in_turn, here=machines.index(machine) == jax.process_index())
    if len(set(made) - {None}) > 1:
        others = [machines[i] for i, result in enumerate(made) if result not in (None, made[0])]
        raise InputError(
            f"{workdir}: on {', '.join(others)} it is made from other text than on {machines[0]}: give all machines "
            "the same files, in folders of the same name"
        )


def _fetch_model(workdir: Path, url: str) -> None:
    """What a model is read from, beside its checkpoints."""
    for name, md5 in bucket.list_files(url, skip=_NOT_OF_A_MODEL).items():
        if name != "config.json" and not name.startswith(f"{_MADE_ANEW}/"):
            continue
        if bucket.md5_of(workdir / name) != md5:  # else process 0 is on this machine, or it has been here before
            bucket.get(f"{url}/{name}", workdir / name)


def _open(url: str, local: Path) -> None:
    """Makes the mirror, or brings it up to date."""
    bucket.check_writable(url)
    logging.info("%s has its mirror in %s", url, local)
    logging.warning("%s has no lock: see to it that no other machine has a run in it", url)
    local.mkdir(parents=True, exist_ok=True)
    lock = take_lock(local, "workdir")  # a run that is at work there has it
    try:
        _fetch(url, local)
    finally:
        release_lock(lock)


def _fetch(url: str, local: Path) -> None:
    synced = _read_state(local)["synced"] if (local / STATE).exists() else {}
    there = bucket.list_files(url, skip=_NOT_FETCHED)
    if not (local / "shards").exists():
        shards = bucket.list_files(f"{url}/shards")
        there |= {f"shards/{name}": md5 for name, md5 in shards.items()}
    for name, md5 in there.items():
        if synced.get(name) == md5 and not name.startswith("shards/"):
            continue  # what is different here, or gone, is so since
        if bucket.md5_of(local / name) != md5:
            logging.info("fetching %s/%s", url, name)
            bucket.get(f"{url}/{name}", local / name)
        synced[name] = md5
    _write_state(local, url, synced)


def _local_folder(kind: str, url: str) -> Path:
    base = Path(os.environ.get("GPT1_MIRROR_DIR") or Path.home() / ".cache" / "gpt1_jax")
    parts = url.removeprefix("gs://").split("/")
    return base.absolute() / kind / f"{parts[0]}-{parts[-1]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _root(workdir: Path) -> Path | None:
    """The mirror that a folder is, or is in."""
    workdir = workdir.absolute()
    return next((folder for folder in (workdir, *workdir.parents) if (folder / STATE).is_file()), None)


def _names(folder: Path, *, skip: Container[str]) -> dict[str, Path]:
    """Name below the folder -> path of its files, without hidden ones."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith("."):
            continue
        if path.is_file():
            found[path.name] = path
        elif path.is_dir() and path.name not in skip:
            found |= {f"{path.name}/{name}": inner for name, inner in _names(path, skip=skip).items()}
    return found


def _read_state(root: Path) -> dict[str, Any]:
    return read_json(root / STATE, "the state of a mirror")


def _write_state(root: Path, url: str, synced: dict[str, str]) -> None:
    write_json(root / STATE, {"url": url, "synced": synced})
