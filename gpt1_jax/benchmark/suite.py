"""All cases of a run of the benchmark, one after another; what is measured stays whatever happens to the rest."""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax

from gpt1_jax.benchmark import memory, peers, training, yardstick
from gpt1_jax.benchmark.settings import Settings
from gpt1_jax.benchmark.timing import Clock, Contestant, take_turns, warm_up
from gpt1_jax.errors import InputError

Maker = Callable[[], Contestant]


@dataclasses.dataclass
class Case:
    """Contestants that do the same work, the first of them ours, and what came of them.

    Attributes:
      part: see `settings.PARTS`.
      work: what is done, such as "2 x 512 tokens".
      makers: name -> what makes the contestant.
      product_rows: rows of the matrix product beside it; 0: there is none.
      contestants: who was made, in the order of the rounds.
      first_seconds: of the first call of each, compilation included; None: not timed.
      peaks: memory of each.
      rounds: seconds of a call of each, round by round.
      failed: name -> why there is no such contestant.
    """

    part: str
    work: str
    makers: Mapping[str, Maker]
    product_rows: int = 0
    contestants: list[Contestant] = dataclasses.field(default_factory=list)
    first_seconds: list[float | None] = dataclasses.field(default_factory=list)
    peaks: list[memory.Peak] = dataclasses.field(default_factory=list)
    rounds: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


def cases(settings: Settings) -> Iterator[Case]:
    """What there is to measure, in the order of `settings.parts`."""
    for part in settings.parts:
        yield from _PARTS[part](settings)


def measure(
    case: Case, settings: Settings, *, say: Callable[[str], None] = print, clock: Clock = time.perf_counter
) -> None:
    """Fills in a case.

    Raises:
      InputError: a peer is not of the same size.
    """
    calls = []
    for name, make in case.makers.items():
        say(f"{case.part}, {case.work}: {name}")
        try:
            with memory.watch() as peak:
                contestant = make()
                _check_same_size(contestant, case.contestants)
                first, n_calls = warm_up(contestant, clock)
        except InputError:
            raise
        except Exception as error:
            if not case.contestants and "RESOURCE_EXHAUSTED" not in str(error):
                raise  # ours: a bug
            case.failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]:.200}"
            say(f"  {name} failed: {case.failed[name]}")
            if not case.contestants:
                return
            continue
        case.contestants.append(contestant)
        case.first_seconds.append(first)
        case.peaks.append(peak)
        calls.append(n_calls)
    if case.product_rows:
        product = yardstick.best_product(settings.model, case.product_rows)
        case.contestants.append(product)
        calls.append(warm_up(product, clock)[1])
    say(f"{case.part}, {case.work}: rounds")
    take_turns(
        case.contestants,
        calls,
        case.rounds,
        repeats=settings.repeats,
        seconds=settings.seconds,
        clock=clock,
        on_round=lambda done: say(
            f"  round {done}: "
            + ", ".join(
                f"{one.name} {seconds:.4g} s" for one, seconds in zip(case.contestants, case.rounds[-1], strict=True)
            )
        ),
    )
    if settings.profile:
        _trace(case, Path(settings.profile))
    for contestant in case.contestants:  # states of gigabytes: the next case needs the room
        contestant.start = contestant.wait = _over
    gc.collect()


def _over(*_: Any) -> Any:
    raise RuntimeError("this case is over")


def _check_same_size(contestant: Contestant, others: list[Contestant]) -> None:
    sizes = {one.name: one.n_parameters for one in (*others, contestant) if one.n_parameters is not None}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the models of {', '.join(sizes)} have {', '.join(map(str, sizes.values()))} parameters")


def _trace(case: Case, folder: Path) -> None:
    """A few calls of ours for xprof or TensorBoard."""
    with jax.profiler.trace(folder / f"{case.part}-{case.work.replace(' ', '_')}"):
        case.contestants[0].seconds(3)


def _pretrain(settings: Settings) -> Iterator[Case]:
    model, others = settings.model, {name: peers.load_peer(name) for name in settings.peers}
    for batch_size in settings.batches("pretrain"):
        shape = (batch_size, model.n_ctx)
        makers: dict[str, Maker] = {training.OURS: partial(training.pretraining, settings, batch_size)}
        for name, peer in others.items():
            makers[name] = partial(peer.train, model, settings.pretrain.optimizer, settings.tokens(*shape))
        yield Case("pretrain", f"{batch_size} x {model.n_ctx} tokens", makers, math.prod(shape))


_PARTS: dict[str, Callable[[Settings], Iterator[Case]]] = {"pretrain": _pretrain}


def plan(cases: list[Case], settings: Settings) -> str:
    """What will be done, and about how long it takes: compiling is the larger part of it for large models."""
    n_contestants = sum(len(case.makers) for case in cases)
    named = ", ".join(f"{part} {sum(case.part == part for case in cases)}" for part in settings.parts)
    minutes = sum(settings.seconds + 40.0 * len(case.makers) for case in cases) / 60
    return (
        f"{len(cases)} cases ({named}), {n_contestants} contestants; at most {settings.repeats} rounds or "
        f"{settings.seconds:g} s each and what has to be compiled: up to some {max(1, round(minutes))} minutes"
    )
