"""What a run reports: `metrics.jsonl` and TensorBoard events. Process 0 only.

`metrics.jsonl` has one JSON object a line: `step`, then the other fields in alphabetical order. JSON has no NaN and no
infinities: they are written as the strings "NaN", "Infinity" and "-Infinity", which `read_metrics` turns back into
floats. Write what belongs to a step before its checkpoint is saved: on a resume everything past that step is dropped,
as it will be computed again, so that curves have no duplicate and no gap.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
from absl import logging

from gpt1_jax.errors import InputError
from gpt1_jax.files import write_atomically
from gpt1_jax.mirror import copy_of, try_push

FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def read_metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a workdir's `metrics.jsonl`, in order. A last line that a crash cut short is left out.

    Raises:
      InputError: there is no such file, or one of its other lines is not valid.
    """
    path = copy_of(workdir) / FILE
    if not path.is_file():
        raise InputError(f"{path} does not exist: give the workdir of a run that has logged something")
    lines = path.read_bytes().splitlines()
    records = [_parse(line) for line in lines]
    if records and records[-1] is None:
        records.pop()
    whole = [record for record in records if record is not None]
    if len(whole) < len(records):
        raise InputError(f"{path}, line {records.index(None) + 1} is not a JSON object with a step: remove that line")
    return [
        {name: _NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in record.items()}
        for record in whole
    ]


class MetricsWriter:
    """Writes metrics to a workdir's `metrics.jsonl` and to TensorBoard events in `tensorboard/`.

    Logging never ends a run: on a full disk the lines wait in memory for the next write, and TensorBoard is given up
    with one warning.

    Args:
      workdir: the run's folder.
      resume_step: the step of the checkpoint that the run continues from: lines past it are dropped, and events past it
        are hidden. None starts afresh: all go.
      process_index: this process's number; None asks JAX. All but process 0 write nothing.
    """

    def __init__(
        self, workdir: str | os.PathLike[str], *, resume_step: int | None = None, process_index: int | None = None
    ):
        self._tensorboard: _TensorBoard | None = None
        self._descriptor: int | None = None
        self._unwritten = b""
        self._there: set[tuple[Any, ...]] = set()  # step and names of lines that are not written again
        self._workdir = Path(workdir)
        if _process_index(process_index) != 0:
            return
        path = Path(workdir) / FILE
        kept = _drop_past(path, resume_step)
        self._there = {(record["step"], *sorted(record)) for record in kept if record["step"] == resume_step}
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        first_step = 0 if resume_step is None else resume_step + 1
        with self._giving_up_tensorboard():
            self._tensorboard = _TensorBoard(Path(workdir) / TENSORBOARD, first_step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends one line, at once visible to readers.

        A run that was killed between the line of an evaluation and its checkpoint evaluates once more when it is
        resumed: the line of the step that it resumes from is not written twice.

        Args:
          step: number of updates done.
          metrics: numbers, or arrays of one number; strings, booleans and None go to metrics.jsonl only.

        Raises:
          TypeError: a value is something else.
        """
        if self._descriptor is None:
            return
        plain = {name: _plain(name, metrics[name]) for name in sorted(metrics)}
        record = {"step": int(step), **{name: _for_json(value) for name, value in plain.items()}}
        if (record["step"], *sorted(record)) in self._there:
            return
        line = json.dumps(record)
        self._unwritten += f"{line}\n".encode()
        self._append(self._descriptor)
        if self._tensorboard is not None:
            with self._giving_up_tensorboard():
                self._tensorboard.write(step, plain)

    def flush(self) -> None:
        """Has the system put everything on the disk and, from a mirror, into the bucket (`gpt1_jax.mirror`).

        Call it before a checkpoint is saved.
        """
        if self._descriptor is not None:
            self._append(self._descriptor)
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)
            try_push(self._workdir)

    def close(self) -> None:
        """Flushes and closes. Reports how many lines could not be written, if any."""
        if self._descriptor is None:
            return
        self.flush()
        if self._unwritten:
            logging.error("%d lines of %s are lost: the disk is full", self._unwritten.count(b"\n"), FILE)
        os.close(self._descriptor)
        self._descriptor = None
        if self._tensorboard is not None:
            with self._giving_up_tensorboard():
                self._tensorboard.close()
        self._tensorboard = None

    def _append(self, descriptor: int) -> None:
        """Writes whole lines or nothing."""
        if not self._unwritten:
            return
        end = os.fstat(descriptor).st_size
        try:
            done = 0
            while done < len(self._unwritten):
                done += os.write(descriptor, self._unwritten[done:])
            self._unwritten = b""
        except OSError as error:
            os.ftruncate(descriptor, end)
            if self._unwritten.count(b"\n") == 1:  # the first of a series
                logging.warning("%s cannot be written (%s): its lines are kept until it can", FILE, error)

    @contextlib.contextmanager
    def _giving_up_tensorboard(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            logging.warning("no TensorBoard events from here on (%s); %s goes on", error, FILE)
            self._tensorboard = None


class _TensorBoard:
    """Scalars for TensorBoard, through tensorboardX's synchronous writer.

    (Its `SummaryWriter` writes in a thread, behind a queue of ten: when that thread dies, of a full disk for example,
    the eleventh scalar blocks for ever.)
    """

    def __init__(self, directory: Path, first_step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        directory.mkdir(exist_ok=True)
        # Names sort by time, which is the order in which TensorBoard reads the files.
        self._writer = EventsWriter(str(directory / "events"), filename_suffix=f".{time.time_ns()}")
        # TensorBoard's "restart" mark: hide what earlier files have from this step on.
        self._event(first_step, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary  # tensorboardX's own `scalar` logs every NaN

        for name, value in metrics.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._event(step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _event(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(step=int(step), wall_time=time.time(), **content))


def _process_index(given: int | None) -> int:
    return jax.process_index() if given is None else given


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _drop_past(path: Path, step: int | None) -> list[dict[str, Any]]:
    """Leaves the lines up to a step, none if that is None, and gives them. Unreadable ones go too, with a warning."""
    if not path.exists():
        return []
    content = path.read_bytes()
    kept, records, unreadable = [], [], 0
    for line in content.splitlines():
        record = _parse(line)
        unreadable += record is None
        if record is not None and step is not None and record["step"] <= step:
            kept.append(line + b"\n")
            records.append(record)
    if unreadable:
        logging.warning("%s: %d lines that a crash cut short or something changed are dropped", path, unreadable)
    if (text := b"".join(kept)) != content:
        write_atomically(path, text)
    return records


def _plain(name: str, value: Any) -> bool | int | float | str | None:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    array = np.asarray(value)
    if array.size != 1 or not (array.dtype == bool or np.issubdtype(array.dtype, np.number) or array.dtype.kind == "V"):
        raise TypeError(f"metric {name!r} is {type(value).__name__} of shape {array.shape}, not one number")
    if array.dtype == bool:
        return bool(array.reshape(()))
    return int(array.reshape(())) if np.issubdtype(array.dtype, np.integer) else float(array.reshape(()))


def _for_json(value: bool | int | float | str | None) -> bool | int | float | str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
