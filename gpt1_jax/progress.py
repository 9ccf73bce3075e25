"""How far long work is, how fast it goes and what is left: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self, TextIO

from absl import logging
from tqdm import tqdm


class _Display:
    """What ends with a bar, where there is one, that leaves the terminal in order."""

    _bar: tqdm | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class Progress(_Display):
    """Of what is counted, such as bytes of a text or batches of an evaluation; speed counts what this process did.

    Args:
      label: what is done.
      total: how much there is.
      unit: of both: "B" (bytes), or what is counted, such as "documents".
      show: whether anything is shown.
      delay: seconds that pass before there is a bar, which then does not stay: for what is mostly short.
      every_s: seconds between lines in the log.
    """

    def __init__(
        self, label: str, *, total: int, unit: str, show: bool = True, delay: float = 0.0, every_s: float = 30.0
    ):
        self._label, self._total, self._unit, self._show, self._every_s = label, max(total, 1), unit, show, every_s
        self._done = self._before = 0
        self._start = self._line_at = time.monotonic()
        if show and sys.stderr.isatty():
            unit_text = unit if unit == "B" else f" {unit}"
            self._bar = tqdm(
                desc=label, total=total, unit=unit_text, unit_scale=unit == "B", delay=delay, leave=not delay
            )

    def skip(self, amount: int) -> None:
        """Counts what had been done before."""
        self._before += amount
        self._start = time.monotonic()
        self.advance(amount)

    def advance(self, amount: int) -> None:
        """Counts what has been done."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif self._show and (now := time.monotonic()) - self._line_at >= self._every_s:
            self._line_at = now
            logging.info("%s: %s", self._label, self._line(now - self._start))

    def _line(self, seconds: float) -> str:
        rate = (self._done - self._before) / max(seconds, 1e-9)
        left = tqdm.format_interval(max(self._total - self._done, 0) / max(rate, 1e-9))
        scale, unit = (1e6, "MB") if self._unit == "B" else (1, self._unit)
        done, total = (f"{n / scale:,.0f}" for n in (self._done, self._total))
        return f"{done} of {total} {unit} ({self._done / self._total:.0%}), {rate / scale:,.1f} {unit}/s, {left} left"


class TrainingProgress(_Display):
    """Of the updates of a run, with tokens/s and MFU.

    Speed and the time left come from what this process did after its first update, which is the one that compiles, and
    not from what was done before a resume.

    Args:
      total: updates in all.
      start_step: updates done before, by the run that is resumed.
      show: whether anything is shown; there are rates in any case.
      peak_flops: FLOP/s of all devices together, for the MFU; None looks it up (`gpt1_jax.flops`).
      every_s: seconds between plain lines.
      stream: where to; None is standard error.
      clock: gives the time in seconds.
    """

    def __init__(
        self,
        total: int,
        *,
        start_step: int = 0,
        show: bool = True,
        peak_flops: float | None = None,
        every_s: float = 5.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._show, self._peak_flops, self._of_peak = total, show, peak_flops, ""
        self._every_s, self._clock = every_s, clock
        self._stream = stream or sys.stderr
        self._begin: tuple[float, int] | None = None  # time and step when the first update was done
        self._window = _Window(start_step, 0.0)
        self._step = start_step
        self._rates: dict[str, float] = {}
        self._line_at = -math.inf
        if show and self._stream.isatty():
            self._bar = tqdm(
                total=total,
                initial=start_step,
                file=self._stream,
                dynamic_ncols=True,
                bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}",
            )

    def advance(self, step: int, *, tokens: int = 0, flops: float = 0.0) -> None:
        """Counts an update that has been started; it costs nothing and shows nothing.

        Args:
          step: updates in all so far.
          tokens: tokens in this one, of all processes.
          flops: what they cost the model.
        """
        self._step = step
        if self._begin is None:
            self._begin = (self._clock(), step)
            self._window = _Window(step, self._clock())
        else:
            self._window.tokens += tokens
            self._window.flops += flops

    def rates(self) -> dict[str, float]:
        """The speed since the previous call. Call it when the devices have finished: after reading a loss.

        Returns:
          `steps_per_second`; `tokens_per_second` and `mfu` (0 to 1) where `advance` was given tokens and FLOPs. Empty
          as long as only the first update is done.
        """
        now, window = self._clock(), self._window
        seconds = now - window.start - window.paused
        self._rates = {}
        if self._begin is not None and self._step > window.step and seconds > 0:
            self._rates["steps_per_second"] = (self._step - window.step) / seconds
            if window.tokens:
                self._rates["tokens_per_second"] = window.tokens / seconds
            if window.flops:
                if self._peak_flops is None:
                    import jax

                    from gpt1_jax.flops import device_peak_flops  # may have to measure it, now that nothing runs

                    peak, source = device_peak_flops()
                    self._peak_flops = peak * jax.device_count()
                    self._of_peak = "" if source == "data sheet" else f" of a {source} peak"
                self._rates["mfu"] = window.flops / seconds / self._peak_flops
        self._window = _Window(self._step, self._clock())
        return dict(self._rates)

    def show(self, step: int, values: Mapping[str, float | str] | None = None) -> None:
        """Shows how far it is, the values, the speed of the last `rates` and the time left."""
        if not self._show:
            return
        now = self._clock()
        parts = [f"{k} {v if isinstance(v, str) else format(float(v), '.4g')}" for k, v in (values or {}).items()]
        if "tokens_per_second" in self._rates:
            parts.append(f"{tqdm.format_sizeof(self._rates['tokens_per_second'])} tokens/s")
        if "mfu" in self._rates:
            parts.append(f"MFU {self._rates['mfu']:.1%}{self._of_peak}")
        if self._begin is not None and step > self._begin[1]:
            left = (self._total - step) * (now - self._begin[0]) / (step - self._begin[1])
            parts.append(f"{tqdm.format_interval(left)} left")
        if self._bar is not None:
            self._bar.n = step
            self._bar.set_postfix_str(" | ".join(parts))
        elif now - self._line_at >= self._every_s or step == self._total:
            self._line_at = now
            done = f"{step}/{self._total} ({step / self._total:.0%})"
            print(" | ".join([done, *parts]), file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Shows a line of its own, above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        elif self._show:
            print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Takes the time within (an evaluation, say) out of the rates. The time left includes more of the same."""
        start = self._clock()
        try:
            yield
        finally:
            self._window.paused += self._clock() - start


@dataclasses.dataclass
class _Window:
    """What happened since the last `rates`."""

    step: int
    start: float
    tokens: int = 0
    flops: float = 0.0
    paused: float = 0.0
