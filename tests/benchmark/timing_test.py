"""Turns, rounds and ratios, by a clock that the test moves."""

import pytest

from gpt1_jax.benchmark.timing import Contestant, Spread, ratio, take_turns, warm_up


class Machine:
    """A clock, and work that takes as long as it says."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def clock(self):
        return self.now

    def contestant(self, name, *durations, **options):
        left = iter(durations)

        def start():
            self.log.append(name)
            return next(left)

        def wait(seconds):
            self.now += seconds
            return seconds

        return Contestant(name, start, wait, **options)


@pytest.fixture
def machine():
    return Machine()


def test_contestants_take_turns_and_ratios_are_within_a_round(machine):
    # The machine is twice as slow in the second round: the ratio is the same in all three.
    ours, theirs = machine.contestant("ours", 1.0, 2.0, 1.0), machine.contestant("theirs", 3.0, 6.0, 3.0)
    rounds = []
    take_turns([ours, theirs], [1, 1], rounds, repeats=3, seconds=1e9, clock=machine.clock)
    assert machine.log == ["ours", "theirs"] * 3
    assert rounds == [(1.0, 3.0), (2.0, 6.0), (1.0, 3.0)]
    assert ratio(*zip(*rounds, strict=True)) == Spread(3.0, 3.0, 3.0)


def test_a_ratio_is_of_rates():
    # 8 examples in 2 s are 4 a second, 1 example in 1 s is 1 a second.
    assert ratio([2.0], [1.0], amount=8, other_amount=1).median == 4.0


def test_a_spread_is_median_and_quartiles():
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("repeats", "seconds", "done"),
    [(2, 1e9, 2), (9, 25.0, 3), (9, 0.0, 1)],
    ids=["enough rounds", "the time is up", "always one"],
)
def test_when_the_rounds_end(machine, repeats, seconds, done):
    rounds = []
    take_turns(
        [machine.contestant("ours", *[10.0] * 9)], [1], rounds, repeats=repeats, seconds=seconds, clock=machine.clock
    )
    assert len(rounds) == done


def test_only_whole_rounds_stay_where_it_is_interrupted(machine):
    def interrupt():
        raise KeyboardInterrupt

    broken = Contestant("broken", interrupt, lambda _: None)
    rounds = [(1.0, 1.0)]
    with pytest.raises(KeyboardInterrupt):
        take_turns([machine.contestant("ours", 1.0), broken], [1, 1], rounds, repeats=3, seconds=9, clock=machine.clock)
    assert rounds == [(1.0, 1.0)]


def test_short_calls_are_done_in_a_row(machine):
    # The first call compiles for 5 s; then a call takes 0.05 s, and four of them make a sample of 0.2 s.
    ours = machine.contestant("ours", 5.0, *[0.05] * 9)
    assert warm_up(ours, machine.clock) == (5.0, 4)
    assert ours.seconds(4, machine.clock) == pytest.approx(0.05 / 4)  # only the last is waited for


def test_what_is_warm_or_times_itself_is_taken_at_its_word(machine):
    ours = machine.contestant("ours", 7.0, is_warm=True, times_itself=True)
    assert warm_up(ours, machine.clock) == (None, 1)
    assert machine.log == []
    machine.now = 1e6
    assert ours.seconds(clock=machine.clock) == 7.0
