"""What the rounds of a case say, as numbers with names: also the fields of the JSON file."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from gpt1_jax.benchmark import reading, yardstick
from gpt1_jax.benchmark.suite import Case
from gpt1_jax.benchmark.timing import Contestant, Spread, ratio
from gpt1_jax.benchmark.training import OURS
from gpt1_jax.flops import device_peak_flops
from gpt1_jax.tokenizers.parallel import n_cores
from gpt1_jax.version import __version__

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "sentencepiece", "torch", "transformers")
_VARIABLES = ("GLIBC_TUNABLES", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "OMP_NUM_THREADS", "LD_PRELOAD")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A contestant of a case.

    Attributes:
      part: see `settings.PARTS`.
      work: what is done.
      name: who does it.
      rounds: how many there were.
      seconds: of a call, over the rounds.
      unit: what `amount` counts.
      amount: units in a call.
      rate: units in a second, by the median.
      flops: matrix products of a call, counted by hand; 0: not counted.
      of_peak: their share of the devices' bfloat16 peak by the data sheet; None where it is not in the table.
      of_product: their rate over that of a lone matrix product, within each round; None where there was none.
      ahead: how many times this one's rate ours is, within each round; None for ours.
      compile_seconds: of the compiler; where it could not be timed by itself, what the first call took longer.
      first_call_seconds: with what is compiled in it; None where it was not timed.
      temp_bytes: temporary memory of a device by the compiler's plan.
      peak_bytes: most memory, see `memory.Peak`; None but for ours.
      peak_of: whose.
      n_parameters: of the model.
      about: how it was run.
      round_seconds: of a call, round by round.
    """

    part: str
    work: str
    name: str
    rounds: int
    seconds: Spread
    unit: str
    amount: float
    rate: float
    flops: float
    of_peak: float | None
    of_product: Spread | None
    ahead: Spread | None
    compile_seconds: float | None
    first_call_seconds: float | None
    temp_bytes: int | None
    peak_bytes: int | None
    peak_of: str
    n_parameters: int | None
    about: str
    round_seconds: tuple[float, ...]


def figures(case: Case) -> list[Figure]:
    """The figures of a case; none where no round was complete."""
    if not case.rounds:
        return []
    columns = list(zip(*case.rounds, strict=True))
    ours, our_seconds = case.contestants[0], columns[0]
    product = columns[-1] if case.product_rows else None
    found = []
    for i, (one, seconds) in enumerate(zip(case.contestants, columns, strict=True)):
        spread = Spread.of(seconds)
        flops = one.flops or (ours.flops * one.amount / ours.amount if one.unit == ours.unit else 0.0)
        is_product, peak = one.name == yardstick.NAME, _peak_flops() if flops else None
        of_product = None
        if product is not None and flops and not is_product:
            of_product = ratio(seconds, product, amount=flops, other_amount=case.contestants[-1].flops)
        ahead = None
        if i and one.unit == ours.unit:
            ahead = ratio(our_seconds, seconds, amount=ours.amount, other_amount=one.amount)
        first = case.first_seconds[i] if i < len(case.first_seconds) else None
        memory = None if i else case.peak
        found.append(
            Figure(
                part=case.part,
                work=case.work,
                name=one.name,
                rounds=len(seconds),
                seconds=spread,
                unit=one.unit,
                amount=one.amount,
                rate=one.amount / spread.median,
                flops=flops,
                of_peak=flops / spread.median / peak if peak else None,
                of_product=of_product,
                ahead=ahead,
                compile_seconds=_compile_seconds(one, first, spread.median),
                first_call_seconds=first,
                temp_bytes=one.temp_bytes,
                peak_bytes=memory.bytes if memory else None,
                peak_of=memory.of if memory else "",
                n_parameters=one.n_parameters,
                about=one.about,
                round_seconds=tuple(seconds),
            )
        )
    return found


def _compile_seconds(one: Contestant, first: float | None, usual: float) -> float | None:
    return max(0.0, first - usual) if one.compile_seconds is None and first is not None else one.compile_seconds


def loading_over_training(found: Sequence[Figure]) -> dict[str, float]:
    """Batch -> how many times faster it is loaded than an update of the same run takes it, where both were measured."""
    update = {f.work: f.seconds.median for f in found if f.part == "pretrain" and f.name == OURS}
    batch = {f.work: f.seconds.median / reading.N_BATCHES for f in found if f.part == "load"}
    return {work: update[work] / seconds for work, seconds in batch.items() if work in update}


def record(cases: Iterable[Case], *, command: str, config: dict[str, Any], interrupted: bool) -> dict[str, Any]:
    """Everything, for the JSON file.

    Args:
      cases: as far as they were measured.
      command: that made the figures.
      config: as nested dicts of JSON values.
      interrupted: a signal or bad input ended it.
    """
    cases = list(cases)
    found = [figure for case in cases for figure in figures(case)]
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "interrupted": interrupted,
        "device": device(),
        "versions": {
            "python": platform.python_version(),
            "gpt1_jax": __version__,
            **{p: importlib.metadata.version(p) for p in _PACKAGES if importlib.util.find_spec(p) is not None},
        },
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "config": config,
        "figures": [dataclasses.asdict(figure) for figure in found],
        "loading_over_training": loading_over_training(found),
        "failed": [
            {"part": case.part, "work": case.work, "name": name, "reason": reason}
            for case in cases
            for name, reason in case.failed.items()
        ],
    }


def device() -> dict[str, Any]:
    """What it ran on."""
    first = jax.local_devices()[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": jax.local_device_count(),
        "cores": n_cores(),
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _peak_flops() -> float | None:
    """FLOP/s of all devices by the data sheet; None where they are not in the table."""
    if jax.default_backend() == "cpu":
        return None
    peak, source = device_peak_flops()
    return peak * jax.local_device_count() if source == "data sheet" else None
