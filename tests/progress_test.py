"""The display tells the truth about speed."""

import io

import jax
import pytest

from gpt1_jax.progress import TrainingProgress


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rates_leave_out_compilation_resumed_steps_and_pauses():
    clock, stream = Clock(), io.StringIO()
    with TrainingProgress(1000, start_step=500, peak_flops=1e6, clock=clock, stream=stream) as progress:
        assert progress.rates() == {}
        clock.now += 60.0  # compilation
        progress.advance(501, tokens=64, flops=64e3)
        progress.show(501, {"loss": 9.0})
        for step in range(502, 511):
            clock.now += 0.5
            progress.advance(step, tokens=64, flops=64e3)
        with progress.paused():
            clock.now += 30.0
        rates = progress.rates()
        progress.show(510, {"loss": 5.4321987, "phase": "x"})
        clock.now += 1.0
        progress.advance(511, tokens=64, flops=64e3)
        assert progress.rates() == pytest.approx({"steps_per_second": 1, "tokens_per_second": 64, "mfu": 0.064})
        assert progress.rates() == {}
    assert rates == pytest.approx({"steps_per_second": 2, "tokens_per_second": 128, "mfu": 0.128})
    first, second = stream.getvalue().splitlines()
    assert first == "501/1000 (50%) | loss 9"
    # 9 steps took 34.5 s with their evaluation; 490 are left
    assert second == "510/1000 (51%) | loss 5.432 | phase x | 128 tokens/s | MFU 12.8% | 31:18 left"


def test_an_mfu_of_a_peak_that_was_measured_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpt1_jax.flops.device_peak_flops", lambda: (1000.0, "measured"))
    clock, stream = Clock(), io.StringIO()
    progress = TrainingProgress(10, clock=clock, stream=stream)
    for step in (1, 2):
        clock.now += 1.0
        progress.advance(step, tokens=64, flops=500.0 * jax.device_count())
    progress.rates()
    progress.show(2)
    assert "MFU 50.0% of a measured peak |" in stream.getvalue()


def test_the_peak_is_looked_up_only_if_needed_and_of_all_devices(monkeypatch: pytest.MonkeyPatch):
    clock, asked = Clock(), []

    def device_peak_flops() -> tuple[float, str]:
        clock.now += 100.0  # it may have to measure
        asked.append(clock.now)
        return 1000.0, "data sheet"

    monkeypatch.setattr("gpt1_jax.flops.device_peak_flops", device_peak_flops)
    progress = TrainingProgress(10, clock=clock, stream=io.StringIO())
    for step, flops in enumerate((0.0, 0.0, 500.0 * jax.device_count(), 250.0 * jax.device_count()), start=1):
        clock.now += 1.0
        progress.advance(step, flops=flops)
        assert progress.rates().get("mfu") == (pytest.approx(flops / 1000 / jax.device_count()) if flops else None)
    assert len(asked) == 1


def test_plain_lines_are_seconds_apart_and_the_last_is_shown():
    clock, stream = Clock(), io.StringIO()
    progress = TrainingProgress(100, clock=clock, stream=stream, every_s=5.0)
    for step in range(1, 101):
        clock.now += 0.2
        progress.advance(step)
        progress.show(step)
    progress.note("done")
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["1/100", "26/100", "51/100", "76/100", "100/100"]
    assert lines[1] == "26/100 (26%) | 00:14 left"
    assert lines[-1] == "done"


def test_a_terminal_gets_a_bar_that_starts_where_the_run_does():
    stream, clock = Terminal(), Clock()
    with TrainingProgress(100, start_step=40, stream=stream, clock=clock) as progress:
        for step in range(41, 44):
            progress.advance(step)
            clock.now += 1.0
        progress.show(43, {"loss": 2.5})
        progress.note("step 43: heldout_loss 3")
    shown = stream.getvalue()
    assert "40/100" in shown
    assert "43/100, loss 2.5 | 01:25 left" in shown
    assert "step 43: heldout_loss 3\n" in shown


def test_nothing_is_shown_where_another_process_shows_it():
    stream = io.StringIO()
    silent = TrainingProgress(10, stream=stream, show=False)
    silent.show(1)
    silent.note("nothing")
    assert stream.getvalue() == ""
