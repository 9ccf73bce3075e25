"""What programs share; how they end is tested with the programs themselves, in launch/programs_test.py."""

import pytest

from gpt1_jax.cli import config_arguments


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--config=a.py --topology=v5e:2x4 --config.seed=1", "--config=a.py --config.seed=1"),
        ("--config a.py:small -config.model.n_layer 3 --json x", "--config a.py:small -config.model.n_layer 3"),
        ("--noconfig.plots --config.model.scan_layers --config=a.py", None),
        ("--configs=a.py --length=3", ""),
    ],
)
def test_what_says_the_config_goes_on_to_the_next_command(given, kept):
    assert " ".join(config_arguments(["launch/compile.py", *given.split()])) == (given if kept is None else kept)
