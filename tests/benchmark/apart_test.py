"""Work in another process: what is known of it comes back, and how long it takes, or why it could not be done."""

import os
import time
from functools import partial

import pytest

from gpt1_jax.benchmark.apart import apart
from gpt1_jax.benchmark.timing import Contestant


def test_work_is_done_and_timed_elsewhere():
    make = partial(Contestant, "sleep", partial(time.sleep, 0.05), bool, amount=3.0, about="it sleeps")
    contestant = apart(make)
    assert (contestant.name, contestant.amount, contestant.about) == ("sleep", 3.0, "it sleeps")
    assert contestant.process.pid != os.getpid()
    assert contestant.seconds(4) >= 0.05
    with pytest.raises(RuntimeError, match="done in another process"):
        contestant.start()
    contestant.close()
    assert contestant.process.exitcode == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(os.listdir, "/no/such/folder"), "FileNotFoundError: .*/no/such/folder"),
        (partial(os._exit, 3), "its process ended with status 3"),
    ],
    ids=["an error", "its end"],
)
def test_what_goes_wrong_there_is_told_here(make, message):
    with pytest.raises(RuntimeError, match=message):
        apart(make)
