import numpy as np
import pytest

from gpt1_jax.data.hosts import host_rows
from gpt1_jax.errors import InputError


@pytest.mark.parametrize(
    ("blocks", "rows"),
    [(1, [2, 3]), ((0,), [0, 1]), ((1, 2), [2, 3, 4, 5]), ((0, 3), [0, 1, 6, 7]), ((0, 1, 2, 3), list(range(8)))],
)
def test_rows_of_blocks(blocks, rows):
    assert np.arange(8)[host_rows(8, blocks, 4)].tolist() == rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, (1, 4), 4), "host_index"),
        ((8, -1, 4), "host_index"),
        ((6, 0, 4), "multiple of 4"),
        ((0, 0, 1), "batch_size=0"),
    ],
)
def test_blocks_that_are_not_there(arguments, message):
    with pytest.raises(InputError, match=message):
        host_rows(*arguments)
