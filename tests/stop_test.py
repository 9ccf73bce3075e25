"""SIGTERM and Ctrl-C in one process; of several see multiprocess_signals_test.py."""

import os
import signal
import threading

import pytest

from gpt1_jax.stop import Interrupted, raise_if_stopped, stop_signals, stopping_at


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_the_next_question(signum):
    before = signal.getsignal(signum)
    with stop_signals():
        raise_if_stopped()
        os.kill(os.getpid(), signum)
        with pytest.raises(Interrupted) as stop:
            raise_if_stopped()
    assert stop.value.signum == signum
    assert signal.getsignal(signum) is before
    raise_if_stopped()  # it was for what has ended


def test_second_ctrl_c_interrupts():
    with stop_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_in_another_thread_takes_nothing_from_the_main_one():
    begun, over = threading.Event(), threading.Event()

    def run() -> None:
        with stop_signals():
            begun.set()
            over.wait()

    thread = threading.Thread(target=run)
    with stop_signals():
        thread.start()
        begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            raise_if_stopped()
        over.set()
        thread.join()
        with pytest.raises(Interrupted):
            raise_if_stopped()


def test_work_after_training_tells_the_step():
    def work() -> None:
        with stopping_at(7):
            os.kill(os.getpid(), signal.SIGTERM)
            raise_if_stopped()

    with pytest.raises(Interrupted, match="SIGTERM after step 7: saved") as stop:
        work()
    assert stop.value.step == 7
