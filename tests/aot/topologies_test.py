"""Names of machines."""

import importlib.util

import pytest

from gpt1_jax.aot.chips import CHIPS
from gpt1_jax.aot.gpu_targets import target_description
from gpt1_jax.aot.topologies import parse_topology, topology_devices
from gpt1_jax.errors import InputError


@pytest.mark.parametrize(
    ("name", "chip", "n_chips", "together", "links"),
    [
        ("v5e:2x4", "v5e", 8, 8, 2),
        ("v5e:1x1", "v5e", 1, 1, 0),
        ("v5e:4x16", "v5e", 64, 64, 3),
        ("v5e:16x16", "v5e", 256, 256, 4),
        ("2xv5e:16x16", "v5e", 512, 256, 4),
        ("v5p:2x2x1", "v5p", 4, 4, 2),
        ("v4:4x4x8", "v4", 128, 128, 6),
        ("cuda:h100:8", "h100", 8, 8, 1),
        ("cuda:h100:4", "h100", 4, 4, 1),
        ("cuda:a100:16", "a100", 16, 8, 1),
    ],
)
def test_machines(name, chip, n_chips, together, links):
    topology = parse_topology(name)
    assert (topology.name, topology.chip.name, topology.n_chips) == (name, chip, n_chips)
    assert topology.chips_per_network == together
    assert topology.collective_bandwidth == links * topology.chip.link_bandwidth


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v9:2x4", "chips: v4, v5e, v5p, v6e, cuda:a100, cuda:h100, cuda:h200; such as v5e:2x4"),
        ("v5e-8", "chips: v4"),
        ("v5e", "chips: v4"),
        ("h100:8", "cuda:h100"),
        ("cuda:v5e:8x8", "chips: v4"),
        ("v5e:2x2x2", "v5e has 2 axes"),
        ("v5p:2x2", "v5p has 3 axes; use v5p:2x2x2"),
        ("v5e:0x4", "no chip"),
        ("cuda:h100:0", "no chip"),
        ("cuda:h100:12", "a multiple of 8"),
    ],
)
def test_refused(name, words):
    with pytest.raises(InputError, match=name) as error:
        parse_topology(name)
    assert words in str(error.value)


def test_the_table_is_whole():
    for name, chip in CHIPS.items():
        assert chip.name == name
        assert chip.peak_flops > 0
        assert (chip.clock > 0) == (chip.platform == "tpu")
        if chip.platform == "cuda":
            assert f"device_memory_size: {int(chip.hbm_bytes)}\n" in target_description(chip)
            assert f'device_description_str: "{chip.device_kind}"\n' in target_description(chip)


def test_a_reduction_over_a_pod_is_as_fast_as_its_maker_says():
    """docs.cloud.google.com/tpu/docs/v5e: all-reduce bandwidth per pod 51.2 TB/s, that is 200 GB/s a chip."""
    assert parse_topology("v5e:16x16").collective_bandwidth * 256 == 51.2e12
    assert parse_topology("v6e:16x16").collective_bandwidth * 256 == 102.4e12


@pytest.mark.parametrize(
    ("name", "module", "words"),
    [
        ("v5e:2x4", "libtpu", "pip install --no-deps 'libtpu=="),
        ("cuda:h100:8", "jax_cuda13_plugin", "pip install --no-deps jax-cuda13-plugin=="),
    ],
)
def test_a_missing_compiler_is_named(name, module, words):
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(InputError) as error:
        topology_devices(parse_topology(name))
    assert words in str(error.value)
