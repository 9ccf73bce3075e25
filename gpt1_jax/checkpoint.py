"""Checkpoints: Orbax behind one file.

A checkpoint is one folder, named by the number of updates done::

    checkpoints/300/state/          the arrays of the training state, by name (Orbax)
    checkpoints/300/manifest.json   ours: every array's name, dtype and shape, the metrics, every file's size and sha256

What holds:

- A folder with a plain number for a name is complete. Files are written, flushed to the disk and listed in the manifest
  under a temporary name; the final name comes last, in one rename (on `gs://`, as a commit file). So a step that lacks
  its manifest was not cut short by a crash, it was damaged afterwards, and is refused like any other damage. What a
  crash leaves under a temporary name is never read, and is removed by the next run that writes there.
- Old checkpoints go only after the new one is complete: they are renamed first and deleted afterwards, so that a crash
  leaves no half of one (on `gs://` it may: that half is refused).
- Orbax does not check the bytes of arrays, and loads flipped bits without a word. So every restore first compares all
  files with the manifest. (Two files that Orbax finishes after the manifest are left out: nothing is read from them.)
- Arrays are stored by path, as nested dictionaries: the types of the containers (a dataclass, optax's named tuples)
  come from the tree that is being filled, and so does the sharding. A checkpoint of one mesh loads on any other.
- A typed random key is stored as its key data, under the name of its generator: `key` becomes `key/threefry2x32`.
- One writer at a time (`gpt1_jax.workdir` locks). Several processes share one file system, and all call every method.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt1_jax import agreement, bucket
from gpt1_jax.errors import InputError
from gpt1_jax.files import MAKE_SPACE
from gpt1_jax.manifest import ArraySpec, Manifest
from gpt1_jax.quiet_orbax import QuietOrbax, drop_repeated_errors
from gpt1_jax.storage_form import check_fits, fill, storage_form

PyTree = Any

_TRASH = "deleted"  # where Orbax renames old checkpoints to


class Checkpointer:
    """Saves and restores training states under one directory.

    Use it as a context manager, or call `close`: a save in progress is then finished.

    Args:
      directory: where the step folders are, usually `<workdir>/checkpoints`; a local path or `gs://...`.
      keep_latest: how many of the newest checkpoints to keep; at least 1.
      keep_every: keep, beside these, every checkpoint whose step is a multiple of this number.
      best_metric: keep, beside these, the checkpoint with the best value of this metric (see `save`).
      best_mode: "max" if a larger value of `best_metric` is better, else "min".
      read_only: to load from a directory that another run may be writing to; nothing is created or removed.

    Raises:
      InputError: `keep_latest`, `keep_every` or `best_mode` has a value that is not allowed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_latest: int = 2,
        keep_every: int | None = None,
        best_metric: str | None = None,
        best_mode: Literal["max", "min"] = "max",
        read_only: bool = False,
    ):
        if keep_latest < 1:
            raise InputError(f"keep_latest={keep_latest}: at least 1 checkpoint has to be kept to resume from")
        if keep_every is not None and keep_every < 1:
            raise InputError(f"keep_every={keep_every}: give a number of steps from 1, or None to keep none extra")
        if best_mode not in ("max", "min"):
            raise InputError(f"best_mode={best_mode!r}: it is 'max' (larger is better) or 'min'")
        local = "://" not in os.fspath(directory)
        if bucket.is_url(directory):
            bucket.prepare(os.fspath(directory))
        self._directory = epath.Path(os.path.abspath(directory) if local else directory)
        self._in_bucket = bucket.is_url(directory)
        self._best_metric = best_metric
        self._sign = 1.0 if best_mode == "max" else -1.0
        self._read_only = read_only
        self._pending: Manifest | None = None  # of the save in progress
        self._known_metrics: dict[int, Mapping[str, float]] = {}
        self._quiet = QuietOrbax()
        logging.get_absl_logger().addFilter(self._quiet)
        if not read_only:
            drop_repeated_errors()
        options = ocp.CheckpointManagerOptions(
            create=not read_only,
            cleanup_tmp_directories=not read_only,
            lightweight_initialize=True,  # times are not needed, and the metrics are in our manifest
            todelete_subdir=None if read_only else _TRASH,
            preservation_policy=_Keep(keep_latest, keep_every, self._best_of),
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_manifest),
        )
        agreement.on_all(lambda: None)  # Orbax's processes meet in ways of their own, where one that failed is not met
        with self._reaching():
            self._manager = _Manager(self._directory, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            logging.error("%s", failure)  # beside `error`, which must not be replaced

    def save(self, step: int, state: PyTree, metrics: Mapping[str, float] | None = None) -> bool:
        """Starts writing a checkpoint, and returns when `state` has been copied (so its buffers can be donated).

        The writing goes on in the background, until `wait`, `close` or the next `save`. It is one at a time: a save
        that finds the previous one unfinished waits for it first.

        Args:
          step: number of updates done.
          state: a pytree of arrays; typed random keys are allowed.
          metrics: values that `best_step` and `best_metric` look at. NaN and infinities never are the best.

        Returns:
          False when there was nothing to write, since the checkpoint of this step is complete. Its `metrics` are then
          added to the ones it has.

        Raises:
          InputError: this checkpoint, or the previous one, cannot be written (disk full, no permission); or a newer
            checkpoint exists than `step`.
        """
        if self._read_only:
            raise InputError(f"{self._directory} was opened with read_only=True: nothing can be saved to it")
        start = time.monotonic()
        steps = self.all_steps()
        if (waited := time.monotonic() - start) > 1.0:
            logging.warning("saving step %d waited %.1f s for the previous checkpoint: save less often", step, waited)
        finite = {name: float(value) for name, value in (metrics or {}).items() if math.isfinite(value)}
        if step in steps:
            self._add_metrics(step, finite)
            return False
        if steps and step < steps[-1]:
            raise InputError(
                f"a checkpoint of step {step} cannot be saved to {self._directory}, where step {steps[-1]} is the "
                f"latest: a resumed run takes the latest. Delete the folders after {step}, or use another workdir."
            )
        arrays = storage_form(state)
        self._pending = Manifest(step, {name: ArraySpec.of(array) for name, array in arrays.items()}, finite, files={})
        tree = unflatten_dict(arrays, sep="/")
        items = ocp.args.Composite(state=ocp.args.StandardSave(tree))
        try:
            self._manager.save(step, args=items, metrics={}, force=True)
        except Exception as error:
            failure = self._abandon(error)
            if isinstance(error, OSError) or self._in_bucket:
                raise failure from error
            raise
        return True

    def wait(self) -> None:
        """Waits until the save in progress, if any, is complete.

        Raises:
          InputError: it cannot be written; the message has the reason and the last complete step.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            if self._pending is None:
                raise
            raise self._abandon(error) from error
        self._pending = None
        if not self._read_only and not self._in_bucket:  # where nothing is renamed
            self._remove(self._directory / _TRASH)

    def close(self) -> None:
        """Finishes the save in progress and releases Orbax's threads. Raises what `wait` raises."""
        try:
            self.wait()
        finally:
            with self._reaching():
                self._manager.close()
            logging.get_absl_logger().removeFilter(self._quiet)

    def all_steps(self) -> list[int]:
        """The steps that have a complete checkpoint now, in increasing order. Waits for a save in progress."""
        self.wait()
        # Not the manager's list: folders may have been deleted by hand, or, if read_only, written by another run.
        with self._reaching():
            steps = sorted(found.step for found in ocp.path.step.standard_name_format().find_all(self._directory))
            if steps != sorted(self._manager.all_steps()):
                self._manager.reload()
        return steps

    def latest_step(self) -> int | None:
        """The newest step that has a complete checkpoint; None if there is none. Waits for a save in progress."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """The step with the best value of `best_metric`, the earliest on a tie; None if no checkpoint has a value."""
        return self._best_of(self.all_steps())

    def metrics(self, step: int) -> Mapping[str, float]:
        """The metrics that a complete checkpoint was saved with; empty where there were none."""
        self.wait()
        return dict(self._metrics_of(step))

    def restore(self, abstract_state: PyTree, step: int | None = None) -> PyTree:
        """Loads a whole training state.

        Args:
          abstract_state: the wanted tree, of `jax.ShapeDtypeStruct` with shardings (of this machine's devices, whatever
            machine wrote the checkpoint) or of arrays. A shape without a sharding goes to the first local device, a
            numpy array is filled as one.
          step: which checkpoint; None for the latest.

        Returns:
          The state, of the types and shardings of `abstract_state`.

        Raises:
          InputError: there is no such checkpoint; a file of it is missing, cut short or changed; or an array has
            another name, shape or dtype than the wanted one.
        """
        step = self._step_or_latest(step)
        manifest = self._verified(step)
        wanted = storage_form(abstract_state, abstract=True)
        check_fits(self._folder(step), manifest.arrays, wanted, subset="")
        return fill(abstract_state, self._read_arrays(step, wanted))

    def restore_params(self, step: int | None = None, abstract_params: PyTree | None = None) -> PyTree:
        """Loads only the parameters, for a warm start or for inference; whatever optimizer wrote the checkpoint.

        Args:
          step: which checkpoint; None for the latest.
          abstract_params: the wanted tree, as `abstract_state` in `restore`. None takes what the checkpoint has.

        Returns:
          The parameters, of the types and shardings of `abstract_params`; nested dictionaries of numpy arrays when
          that is None.

        Raises:
          InputError: as `restore`.
        """
        step = self._step_or_latest(step)
        stored = {name: spec for name, spec in self._verified(step).arrays.items() if name.startswith("params/")}
        if abstract_params is None:
            arrays = self._read_arrays(step, {name: np.empty(0, spec.dtype) for name, spec in stored.items()})
            return unflatten_dict(arrays, sep="/").get("params", {})
        tree = {"params": abstract_params}
        wanted = storage_form(tree, abstract=True)
        check_fits(self._folder(step), stored, wanted, subset=" parameters")
        return fill(tree, self._read_arrays(step, wanted))["params"]

    def _reaching(self) -> contextlib.AbstractContextManager[Any]:
        """Where a bucket may be found to be out of reach: then that is said."""
        return bucket.named(os.fspath(self._directory)) if self._in_bucket else contextlib.nullcontext()

    def _folder(self, step: int) -> epath.Path:
        return self._directory / str(step)

    def _step_or_latest(self, step: int | None) -> int:
        steps = self.all_steps()
        if not steps:
            raise InputError(
                f"no checkpoint in {self._directory}"
                + ("" if self._directory.exists() else ", which does not exist")
                + ": give the workdir of a run that has saved one"
            )
        if step is None:
            return steps[-1]
        if step not in steps:
            raise InputError(f"step={step}: {self._directory} has no such checkpoint; it has {steps}")
        return step

    def _verified(self, step: int) -> Manifest:
        """The manifest of a step whose files all are as they were written; each process looks at a part of them."""
        return agreement.on_all(lambda: self._verified_part(step))

    def _verified_part(self, step: int) -> Manifest:
        folder = self._folder(step)
        try:
            manifest = Manifest.read(folder)
            problem = manifest.damage(folder)
        except InputError:
            raise
        except ValueError as error:
            problem = str(error)
        if problem:
            others = [other for other in self.all_steps() if other != step]
            goes_on = f"from step {max(others)}" if others else "from the beginning"
            again = f"Delete the folder {folder} and start the same command again: it continues {goes_on}"
            if others and max(others) > step:  # the best one, or one that was asked for
                again += (
                    f", with the best of what is left. To have step {step} again, delete all of {self._directory}: it "
                    "then continues from the beginning"
                )
            raise InputError(f"the checkpoint of step {step} is damaged: {problem}. {again}.")
        return manifest

    def _read_arrays(self, step: int, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the named arrays, each with the wanted one's sharding, or as numpy if that is a numpy array."""

        def restore_args(leaf: Any) -> ocp.RestoreArgs:
            if isinstance(leaf, np.ndarray):
                return ocp.RestoreArgs(restore_type=np.ndarray)
            sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)

        item = unflatten_dict(dict(wanted), sep="/")
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            request = ocp.args.PyTreeRestore(
                item=item, restore_args=jax.tree.map(restore_args, item), partial_restore=True
            )
            return flatten_dict(reader.restore(self._folder(step) / "state", args=request), sep="/")

    def _metrics_of(self, step: int) -> Mapping[str, float]:
        if self._pending is not None and self._pending.step == step:
            return self._pending.metrics
        if step not in self._known_metrics:
            try:
                self._known_metrics[step] = Manifest.read(self._folder(step)).metrics
            except ValueError:
                return {}  # whoever restores this step is told
        return self._known_metrics[step]

    def _best_of(self, steps: Sequence[int]) -> int | None:
        metric = self._best_metric
        if metric is None:
            return None
        scored = {step: value for step in steps if (value := self._metrics_of(step).get(metric)) is not None}
        return max(scored, key=lambda step: (self._sign * scored[step], -step), default=None)

    def _add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        known = self._metrics_of(step)
        if metrics.items() <= known.items():
            return
        manifest = dataclasses.replace(self._verified(step), metrics={**known, **metrics})
        if jax.process_index() == 0:
            manifest.write(self._folder(step))
        self._known_metrics[step] = manifest.metrics

    def _temporary(self, step: int) -> epath.Path:
        return epath.Path(f"{self._folder(step)}{ocp.path.atomicity.TMP_DIR_SUFFIX}")

    def _remove(self, folder: epath.Path) -> None:
        """Removes a folder if it is there, as far as is possible now; the next start or `wait` tries again."""
        if jax.process_index() == 0 and folder.exists():
            try:
                folder.rmtree(missing_ok=True)
            except OSError as error:  # another thread of Orbax still writes there, for example
                logging.info("%s is not removed yet: %s", folder, error)

    def _write_manifest(self) -> None:
        """Called by Orbax, in its thread on process 0, between the last file and the final name."""
        pending = self._pending
        assert pending is not None, "Orbax finishes what `save` began"
        step = pending.step
        folder = self._temporary(step) if self._temporary(step).exists() else self._folder(step)  # gs:// has but one
        pending.of_files_in(folder).write(folder)

    def _abandon(self, error: Exception) -> InputError:
        """Forgets the save in progress, frees the space it took, and says so."""
        assert self._pending is not None
        step, self._pending = self._pending.step, None
        reason = str(error).rpartition('": ')[-1]  # TensorStore repeats long paths before it
        reach = "See that this machine reaches the bucket and may write to it, and start the same command again."
        remedy = reach if self._in_bucket else MAKE_SPACE
        try:
            self._remove(self._temporary(step))
            steps = self.all_steps()
        except Exception:  # of a bucket out of reach: the first error is the one to tell
            return InputError(
                f"the checkpoint of step {step} could not be written to {self._directory} ({reason}). {remedy}"
            )
        if step in steps:
            return InputError(
                f"the checkpoint of step {step} is complete, but the ones it replaces in {self._directory} could not "
                f"be deleted ({reason}). Make that folder writable and start the same command again."
            )
        return InputError(
            f"the checkpoint of step {step} could not be written to {self._directory} ({reason}). "
            + (f"The last complete one is step {steps[-1]}. " if steps else "There is no complete one. ")
            + remedy
        )


class _Manager(ocp.CheckpointManager):
    """Orbax's manager without its preemption check.

    It asks JAX for the preemption sync point in every save and again from a background thread, about a step that is
    over by then. That fails where the preemption service is off, and where it is on, JAX expects to be asked once per
    step in order: the training loop does that.
    """

    def reached_preemption(self, step: int) -> bool:
        return False


@dataclasses.dataclass(frozen=True)
class _Keep(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the newest, every k-th, and the best."""

    latest: int
    every: int | None
    best_of: Callable[[Sequence[int]], int | None]

    def should_preserve(
        self,
        checkpoints: Sequence[ocp.checkpoint_managers.PolicyCheckpointInfo],
        *,
        context: ocp.checkpoint_managers.PreservationContext,
    ) -> Sequence[bool]:
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*sorted(steps)[-self.latest :], self.best_of(steps)}
        return [step in kept or (self.every is not None and step % self.every == 0) for step in steps]
