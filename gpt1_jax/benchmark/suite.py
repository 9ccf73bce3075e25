"""All cases of a run of the benchmark, one after another; what is measured stays whatever happens to the rest."""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from gpt1_jax.benchmark import inference, kernel_check, memory, peers, reading, startup, training, tuning, yardstick
from gpt1_jax.benchmark.apart import apart
from gpt1_jax.benchmark.settings import Settings
from gpt1_jax.benchmark.text import Text
from gpt1_jax.benchmark.timing import Clock, Contestant, take_turns, warm_up
from gpt1_jax.benchmark.training import OURS
from gpt1_jax.errors import InputError, counted
from gpt1_jax.runs import check_sizes
from gpt1_jax.sharding import make_mesh

Maker = Callable[[], Contestant]
_ON_THE_MESH = ("pretrain", "finetune", "evaluate")


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
      peak: memory of ours.
      rounds: seconds of a call of each, round by round.
      failed: name -> why there is no such contestant.
    """

    part: str
    work: str
    makers: Mapping[str, Maker]
    product_rows: int = 0
    contestants: list[Contestant] = dataclasses.field(default_factory=list)
    first_seconds: list[float | None] = dataclasses.field(default_factory=list)
    peak: memory.Peak | None = None
    rounds: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def newest_round(self) -> str:
        """For people who wait."""
        seconds = zip(self.contestants, self.rounds[-1], strict=True)
        return f"round {len(self.rounds)}: " + ", ".join(f"{one.name} {s:.4g} s" for one, s in seconds)


def cases(settings: Settings) -> list[Case]:
    """What there is to measure, in the order of `settings.parts`; nothing is made yet.

    Raises:
      InputError: a peer, the text or the tokenizer cannot be had, a peer does none of the parts, or sizes do not
        divide over the mesh.
    """
    text = Text(settings.source, settings.tokenizer, settings.model.vocab_size)
    text.check()
    for batch_size in {size for part in _ON_THE_MESH if part in settings.parts for size in settings.batches(part)}:
        config = dataclasses.replace(settings.pretrain, batch_size=batch_size)
        check_sizes(config, settings.model, make_mesh(config.mesh))
    others = {name: peers.load_peer(name) for name in settings.peers}
    found = [case for part in settings.parts for case in _PARTS[part](settings, text, others)]
    idle = [name for name in settings.peers if not any(name in case.makers for case in found)]
    if idle:
        raise InputError(f"--peer={','.join(idle)} does none of --parts={','.join(settings.parts)}; leave one out")
    return found


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
        case.peak = case.peak or peak
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
        on_round=lambda: say(f"  {case.newest_round}"),
    )
    if settings.profile:
        _trace(case, Path(settings.profile))
    # States of gigabytes: the next case needs the room.
    case.makers = {}
    for one in case.contestants:
        one.close()
    case.contestants = [dataclasses.replace(one, start=_over, wait=_over) for one in case.contestants]
    gc.collect()


def _over(*_: Any) -> None:
    raise RuntimeError("this case is over")


def _check_same_size(contestant: Contestant, others: list[Contestant]) -> None:
    sizes = {one.name: one.n_parameters for one in (*others, contestant) if one.n_parameters is not None}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the models of {', '.join(sizes)} have {', '.join(map(str, sizes.values()))} parameters")


def _trace(case: Case, folder: Path) -> None:
    """A few calls of ours for xprof or TensorBoard."""
    with jax.profiler.trace(folder / f"{case.part}-{case.work.replace(' ', '_')}"):
        case.contestants[0].seconds(3)


Others = Mapping[str, ModuleType]


def _peer(make: Callable[..., Contestant], *arguments: Any) -> Maker:
    """In a process of its own, but on a TPU, which one process alone can have."""
    work = partial(make, *arguments)
    return work if jax.default_backend() == "tpu" else partial(apart, work)


def _pretrain(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    model = settings.model
    for batch_size in settings.batches("pretrain"):
        shape = (batch_size, model.n_ctx)
        makers: dict[str, Maker] = {OURS: partial(training.pretraining, settings, batch_size)}
        for name, peer in others.items():
            makers[name] = _peer(peer.train, model, settings.pretrain.optimizer, settings.tokens(*shape))
        yield Case("pretrain", f"{batch_size} x {model.n_ctx} tokens", makers, math.prod(shape))


def _finetune(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    for batch_size in settings.batches("finetune"):
        both = tuning.Tuning(settings, batch_size, text)
        makers = {OURS: both.by_buckets, tuning.PADDED: both.padded}
        yield Case("finetune", f"{batch_size} examples", makers, batch_size * settings.model.n_ctx)


def _evaluate(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    model = settings.model
    for batch_size in settings.batches("evaluate"):
        shape = (inference.n_batches(), batch_size, model.n_ctx)
        makers: dict[str, Maker] = {OURS: partial(inference.evaluation, settings, batch_size)}
        for name, peer in others.items():
            makers[name] = _peer(peer.evaluate, model, settings.tokens(*shape))
        yield Case("evaluate", f"{batch_size} x {model.n_ctx} tokens", makers, batch_size * model.n_ctx)


def _decode(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    for batch_size in settings.decode_batch_sizes:
        prompts, n_new = inference.prompts_of(settings, batch_size)
        makers: dict[str, Maker] = {OURS: partial(inference.decoding, settings, batch_size)}
        for name, peer in others.items():
            if hasattr(peer, "decode"):
                makers[name] = _peer(peer.decode, settings.model, prompts, n_new)
        yield Case("decode", f"{batch_size} x {n_new} tokens", makers)


def _tokenize(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    yield Case("tokenize", "text", {OURS: partial(reading.tokenizing, text)})


def _prepare(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    yield Case("prepare", "token shards", {OURS: partial(reading.preparing, text)})


def _load(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    for batch_size in settings.batches("load"):
        work = f"{batch_size} x {settings.model.n_ctx} tokens"
        yield Case("load", work, {OURS: partial(reading.loading, settings, batch_size, text)})


def _start(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    yield Case("start", "quick start", {OURS: partial(startup.starting, text)})


def _kernels(settings: Settings, text: Text, others: Others) -> Iterator[Case]:
    for batch_size in settings.batches("kernels"):
        work = f"{batch_size} x {settings.model.n_ctx} tokens"
        yield Case("kernels", work, kernel_check.timed_kernels(settings, batch_size))


_PARTS: dict[str, Callable[[Settings, Text, Others], Iterator[Case]]] = {
    "pretrain": _pretrain,
    "finetune": _finetune,
    "evaluate": _evaluate,
    "decode": _decode,
    "tokenize": _tokenize,
    "prepare": _prepare,
    "load": _load,
    "start": _start,
    "kernels": _kernels,
}


def plan(cases: list[Case], settings: Settings) -> str:
    """What will be done, and about how long it takes: compiling is the larger part of it for large models."""
    n_contestants = sum(len(case.makers) for case in cases)
    named = ", ".join(f"{part} {sum(case.part == part for case in cases)}" for part in settings.parts)
    minutes = sum(settings.seconds + 40.0 * len(case.makers) for case in cases) / 60
    sizes = f"{counted(len(cases), 'case')} ({named}), {counted(n_contestants, 'contestant')}"
    return (
        f"{sizes}; at most {settings.repeats} rounds or {settings.seconds:g} s each and what has to be compiled: up to "
        f"some {counted(max(1, round(minutes)), 'minute')}"
    )
