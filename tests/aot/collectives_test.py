"""The collectives of a compiled program, and the bound on their time."""

import pytest

from gpt1_jax.aot.collectives import Collective, find_collectives
from gpt1_jax.aot.hlo import parse_module
from tests.aot.conftest import AXES, TRIPS


def test_every_kind_with_its_axis_and_bytes(here):
    x = 16 * 4 * 4  # bytes of float32 [16, 4]
    assert set(find_collectives(here, AXES)) == {
        Collective("all-reduce", "data", 2, x, count=TRIPS),
        Collective("all-gather", "tensor", 2, 2 * x),
        Collective("reduce-scatter", "data+fsdp", 4, 2 * x),
        Collective("collective-permute", "fsdp", 2, 2 * x / 4),
        Collective("all-to-all", "tensor", 2, x),
    }


def test_a_gather_that_runs_beside_a_loop_is_one(there):
    assert find_collectives(there, AXES) == [
        Collective("all-gather", "fsdp", 2, 384 * 768 * 2),
        Collective("reduce-scatter", "fsdp", 2, 768 * 384 * 2),
        Collective("all-reduce", "tensor", 2, 8 * 16 * 4, count=4),
    ]


def test_groups_that_are_no_axis_are_part_of_one():
    line = "%r = f32[8]{0} all-reduce(%p), replica_groups={{0,3},{1,2}}, to_apply=%add"
    text = f"ENTRY %main (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n  ROOT {line}\n}}\n"
    module = parse_module(text)
    assert find_collectives(module, {"data": 2, "tensor": 2}) == [
        Collective("all-reduce", "part of data+tensor", 2, 32)
    ]
    nobody = parse_module(text.replace("{{0,3},{1,2}}", "{{0},{1},{2},{3}}"))
    assert find_collectives(nobody, {"data": 2, "tensor": 2}) == []
    everybody = parse_module(text.replace("{{0,3},{1,2}}", "{}"))
    assert find_collectives(everybody, {"data": 2, "tensor": 2}) == [Collective("all-reduce", "data+tensor", 4, 32)]
    by_axes = parse_module(text.replace("{{0,3},{1,2}}", "mesh['data'=2,'tensor'=2] {'tensor'}"))
    assert find_collectives(by_axes, {"data": 2, "tensor": 2}) == [Collective("all-reduce", "tensor", 2, 32)]
    moved = "mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}"  # 0, 2, 1, 3: along 'a' are 0 and 1
    turned = parse_module(text.replace("{{0,3},{1,2}}", moved))
    assert find_collectives(turned, {"data": 2, "tensor": 2}) == [Collective("all-reduce", "tensor", 2, 32)]
    unknown = parse_module(text.replace("{{0,3},{1,2}}", "mesh['data'=4] {'data':(1)2}"))
    with pytest.raises(ValueError, match="a form that is not known here"):
        find_collectives(unknown, {"data": 4})


def test_what_goes_between_slices_is_sent():
    lines = "  %p = bf16[8]{0} parameter(0)\n  %t = token[] after-all()\n"
    lines += "  ROOT %s = (bf16[8]{0}, u32[], token[]) send(%p, %t), channel_id=3, is_host_transfer=true\n"
    module = parse_module(f"ENTRY %main (p: bf16[8]) -> (bf16[8], u32[], token[]) {{\n{lines}}}\n")
    assert find_collectives(module, {"data": 4}) == [Collective("send", "slices", 2, 16)]


@pytest.mark.parametrize(
    ("kind", "sent"), [("all-reduce", 175), ("all-gather", 87.5), ("reduce-scatter", 87.5), ("collective-permute", 100)]
)
def test_bytes_that_have_to_be_sent(kind, sent):
    """Of 100 bytes among 8: a reduction scatters, then gathers, 7/8 each."""
    assert Collective(kind, "data", 8, 100).sent == sent
    assert Collective(kind, "data", 8, 100, count=3).seconds(bandwidth=50) == 3 * sent / 50
