"""Parts of the training rows set aside: a partition, in proportion, that keeps equal rows together."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.tasks.held_out import stratified_split


@settings(deadline=None, max_examples=200)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=60),
    fractions=st.fixed_dictionaries({"a": st.floats(0.01, 0.5), "b": st.floats(0.01, 0.4)}),
    seed=st.integers(0, 5),
)
def test_a_split_is_a_partition_that_keeps_groups_together(rows, fractions, seed):
    strata, groups = zip(*rows, strict=True)
    parts = stratified_split(strata, groups, fractions, seed)
    assert sorted(row for part in parts.values() for row in part) == list(range(len(rows)))
    sides = [{groups[row] for row in part} for part in parts.values()]
    assert sum(map(len, sides)) == len(set(groups))
    # The same rows are chosen again, whatever was drawn in between.
    again = stratified_split(strata, groups, fractions, seed)
    assert {name: part.tolist() for name, part in parts.items()} == {
        name: part.tolist() for name, part in again.items()
    }


def test_split_sizes_are_the_rounded_fractions_of_each_label():
    strata = ["x"] * 40 + ["y"] * 60
    parts = stratified_split(strata, range(100), {"test": 0.25}, seed=0)
    assert Counter(strata[row] for row in parts["test"]) == {"x": 10, "y": 15}
    other = stratified_split(strata, range(100), {"test": 0.25}, seed=1)
    assert parts["test"].tolist() != other["test"].tolist()


def test_many_small_strata_give_their_fraction_together():
    strata = [i % 77 for i in range(77 * 4)]  # a tenth of 4 rows is none, and of all 308 rows 31
    parts = stratified_split(strata, range(len(strata)), {"validation": 0.1, "test": 0.2}, seed=0)
    assert {name: len(part) for name, part in parts.items()} == {"validation": 31, "test": 62, "train": 215}
    assert max(Counter(strata[row] for row in parts["validation"]).values()) == 1
