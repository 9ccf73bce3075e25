"""The reproduction: what is missing is run, cell by cell, and all that is there is shown.

`run(config, workdir, pretrained)` is the whole of it. It may be ended anywhere; the same call runs only what is
missing. Seeds, tasks, parts and numbers of layers may be added then; what is there with other settings is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import logging

from gpt1_jax import agreement
from gpt1_jax.config import from_config, to_dict
from gpt1_jax.errors import InputError, counted
from gpt1_jax.files import check_path, is_address
from gpt1_jax.reproduce import examples
from gpt1_jax.reproduce.cells import Done, read_done, run_cell
from gpt1_jax.reproduce.claims import Claim
from gpt1_jax.reproduce.config import ReproduceConfig
from gpt1_jax.reproduce.estimate import Estimate
from gpt1_jax.reproduce.page import FOLDER, PAGE, write_report
from gpt1_jax.reproduce.plan import Cell, Plan, make_plan
from gpt1_jax.reproduce.scores import Scores
from gpt1_jax.reproduce.tables import Table
from gpt1_jax.reproduce.tasks import Scored, second_scored
from gpt1_jax.version import __version__
from gpt1_jax.workdir import CONFIG, check_same_program, open_workdir, read_config

PROGRAM = "reproduce"
_PAGE_EVERY_S = 120.0


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What there is of a reproduction.

    Attributes:
      scores: of the cells that are done.
      tables: as the page has them.
      claims: likewise.
      page: the page.
      left: cells that are still to be run: none, but after a dry run.
    """

    scores: Scores
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    page: Path
    left: tuple[Cell, ...]


@agreement.together()
def run(config: Any, workdir: str | Path, pretrained: str | Path | None = None) -> Reproduction:
    """Runs what is missing, and writes the page.

    Args:
      config: a `ReproduceConfig`, a mapping or a `ConfigDict`.
      workdir: a folder of this machine, or one that all machines share: gets the folders of all cells and report/.
      pretrained: the Transformer, as `load_pretrained` reads it; None: it is pre-trained on `config.pretrain.source`.

    Raises:
      InputError: something in the config, the data or the workdir cannot be used; before anything is run, or at the
        end for the data of single tasks, whose runs are left out.
      gpt1_jax.train.Interrupted: SIGTERM or Ctrl-C; saved.
    """
    config, root = _checked(config, workdir)
    record = {
        "version": __version__,
        "program": PROGRAM,
        "pretrained": None if pretrained is None else str(pretrained),
        "config": to_dict(config),
    }
    with open_workdir(root, record, mutable=("version", "pretrained", "config")) as opened:
        try:
            if config.example_data:
                agreement.on_first(lambda: examples.prepare(root))
            state = _State.open(config, root, pretrained)
        except InputError:
            opened.forget()
            raise
        for line in state.outline():
            logging.info("%s", line)
        return state.run_all()


def outline(config: Any, workdir: str | Path, pretrained: str | Path | None = None) -> str:
    """What `run` would run, and what it could not, as text; nothing is fetched, made or run.

    Raises:
      InputError: as `run`, before anything is run.
    """
    config, root = _checked(config, workdir)
    if (root / CONFIG).exists():
        check_same_program(root, read_config(root), {"program": PROGRAM})
    elif root.exists() and not root.is_dir():
        raise InputError(f"workdir={root} is a file; choose a folder")
    return "\n".join(_State.open(config, root, pretrained).outline())


def _checked(config: Any, workdir: str | Path) -> tuple[ReproduceConfig, Path]:
    config = from_config(ReproduceConfig, config).in_the_papers_order()
    agreement.check_equal(config)
    check_path(workdir, "workdir")
    if is_address(workdir):
        raise InputError(f"workdir={workdir}: a reproduction is many runs, in a folder of this machine; choose one")
    return config, Path(workdir)


class _State:
    """A reproduction in progress."""

    def __init__(self, config: ReproduceConfig, plan: Plan, root: Path, found: dict[str, Done | None]) -> None:
        self.config, self.plan, self.root = config, plan, root
        self.done = {name: done for name, done in found.items() if done is not None}
        self.failed: dict[str, str] = {}
        self.written = time.monotonic()
        self.estimate = Estimate(self.done.values())

    @classmethod
    def open(cls, config: ReproduceConfig, root: Path, pretrained: str | Path | None) -> _State:
        """What there is of it."""
        fetched: tuple[Path, ...] = ()
        if config.example_data:
            config = examples.with_example_data(config, root)
            fetched = (examples.folder_of(root),)
        plan = make_plan(config, pretrained, fetched=fetched)
        return cls(config, plan, root, {cell.name: read_done(cell, root) for cell in plan.cells})

    @property
    def left(self) -> list[Cell]:
        """The cells that are neither done nor failed."""
        return [cell for cell in self.plan.cells if cell.name not in self.done and cell.name not in self.failed]

    def outline(self) -> list[str]:
        """What is there, what will be run, and what cannot be, as lines."""
        cells, left = self.plan.cells, self.left
        lines = [f"reproduction in {self.root}: {self.config.summary()}"]
        lines += [f"  {line}" for line in _groups(cells, self.done)]
        lines += [f"  left out: {name}: {reason}" for name, reason in self.plan.missing.items()]
        lines.append(f"{counted(len(cells), 'run')}, of which {len(self.done)} done; {self.estimate.of(left)}")
        return lines

    def run_all(self) -> Reproduction:
        """Runs the cells that are left."""
        n = len(self.plan.cells)
        for i, cell in enumerate(self.plan.cells, 1):
            if cell.name in self.done:
                continue
            if cell.needs and cell.init_from in self.failed:
                self.failed[cell.name] = f"it needs {cell.init_from}"
                continue
            if cell.needs and (there := self.done.get(cell.init_from or "")) and there.diverged:
                self.failed[cell.name] = f"it needs {cell.init_from}, which diverged"
                continue
            left = self.estimate.of(self.left)
            logging.info("%s", f" {i}/{n} {cell.name}; {left} ".center(100, "-"))
            try:
                with _told_less(cell):
                    done = run_cell(cell, self.root, self._wanted(cell), keep_checkpoints=self._keeps(cell))
                self._finished(done)
            except InputError as error:
                logging.error("%s: %s", cell.name, error)
                self.failed[cell.name] = str(error)
        result = self._write()
        if self.failed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(self.failed.items())[:5])
            raise InputError(
                f"{counted(len(self.failed), 'run')} of {n} could not be made; those that are done, {len(self.done)}, "
                f"are in {result.page}. {reasons}"
            )
        return result

    def _finished(self, done: Done) -> None:
        self.done[done.cell.name] = done
        self.estimate.add(done)
        values = ", ".join(f"{s.title} {s.split} {s.metric} {s.value:.1f}" for s in done.scores[-3:])
        logging.info("%s: %s (%.0f s)", done.cell.name, values or done.diverged or "done", done.seconds)
        if time.monotonic() - self.written > _PAGE_EVERY_S:
            self._write()

    def _write(self) -> Reproduction:
        done = tuple(self.done[cell.name] for cell in self.plan.cells if cell.name in self.done)
        scores = Scores(self.plan, done)
        tables: Sequence[Table] = ()
        claims: Sequence[Claim] = ()
        folder = self.root / FOLDER
        if jax.process_index() == 0:
            tables, claims = write_report(self.config, scores, folder, left=self.left, failed=self.failed)
        self.written = time.monotonic()
        return Reproduction(scores, tuple(tables), tuple(claims), folder / PAGE, tuple(self.left))

    def _wanted(self, cell: Cell) -> Sequence[Scored]:
        if cell.kind != "finetune":
            return ()
        scored = self.plan.scored[cell.task]
        return (*scored, *second_scored(self.config.tasks[cell.task].task.name, scored))

    def _keeps(self, cell: Cell) -> bool:
        keep = self.config.keep_checkpoints
        return keep == "all" or (keep == "full" and cell.variant == "full")


@contextlib.contextmanager
def _told_less(cell: Cell) -> Iterator[None]:
    """Of the many runs after pre-training the progress and the warnings are shown, not all that each says of itself."""
    before = logging.get_verbosity()
    if cell.kind != "pretrain" and before == logging.INFO:
        logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _groups(cells: Iterable[Cell], done: dict[str, Done]) -> list[str]:
    """The cells without their seeds, a line for each kind and task."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        kind, _, rest = cell.name.partition("/")
        groups.setdefault(f"{kind} {cell.task or rest}", []).append(cell)
    lines = []
    for name, group in groups.items():
        variants = list(dict.fromkeys(cell.variant for cell in group if cell.variant))
        n_done = sum(cell.name in done for cell in group)
        about = f": {', '.join(variants)}" if variants else ""
        lines.append(f"{name}{about}; {counted(len(group), 'run')}" + (f", {n_done} done" if n_done else ""))
    return lines
