"""SIGTERM and Ctrl-C in one process; of several see multiprocess_signals_test.py."""

import os
import signal

import pytest

from gpt1_jax.stop import Interrupted, StopSignals, raise_if_stopped, stopping_at


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_the_next_question(signum):
    before = signal.getsignal(signum)
    with StopSignals():
        raise_if_stopped()
        os.kill(os.getpid(), signum)
        with pytest.raises(Interrupted) as stop:
            raise_if_stopped()
    assert stop.value.signum == signum
    assert signal.getsignal(signum) is before
    raise_if_stopped()  # it was for what has ended


def test_second_ctrl_c_interrupts():
    with StopSignals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_work_after_training_tells_the_step():
    def work() -> None:
        with stopping_at(7):
            os.kill(os.getpid(), signal.SIGTERM)
            raise_if_stopped()

    with pytest.raises(Interrupted, match="SIGTERM after step 7: saved") as stop:
        work()
    assert stop.value.step == 7
