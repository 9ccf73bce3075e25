"""What is read from a compiled program's text."""

import jax
import jax.numpy as jnp
import pytest

from gpt1_jax.aot import hlo
from tests.aot.conftest import TRIPS


def test_products_count_once_a_trip(here):
    one = 2 * 16 * 4 * 16  # c @ c.T, and as many of its product with c
    assert hlo.matmul_flops(here) == TRIPS * 2 * one
    assert hlo.unknown_loops(here) == 0


def test_the_cpu_estimates_nothing(here):
    cycles, without = hlo.estimated_cycles(here)
    assert cycles == 0
    assert without["all-reduce"] == 1  # a line of the text, not a run


def test_cycles_of_a_tpu(there):
    cycles, without = hlo.estimated_cycles(there)
    assert cycles == 4 * 2973 + 100
    assert without == {
        "scalar": 3,
        "copy-start": 1,
        "async-collective-start": 1,
        "async-collective-done": 1,
        "fusion": 1,
        "all-reduce": 1,
        "custom-call tpu_custom_call": 1,
    }


def test_where_the_cycles_are_spent():
    names = {
        "jit(step)/shard_map/jvp(GPT1.features)/h_0/attn/bqhd,bshd->bhqs/dot_general": 1,
        "jit(step)/shard_map/jvp(GPT1.features)/h_11/attn/exp": 2,
        "jit(step)/shard_map/while/body/closed_call/transpose(jvp(GPT1.features))/h_1/attn/c_attn/dot_general": 4,
        "jit(step)/transpose(jvp(bld,rd->blr))/dot_general": 8,
        "jit(step)/add": 16,
        "jit(step)/shard_map/jvp(GPT1.features)/GPT1._embed/gather": 32,
    }
    text = "ENTRY %main (a: f32[4]) -> f32[4] {\n  %a = f32[4]{0} parameter(0)\n"
    for name, n in names.items():
        text += f'  %f.{n} = f32[4]{{0}} negate(%a), metadata={{op_name="{name}" stack_frame_id=5}}, '
        text += f'backend_config={{"estimated_cycles":"{n}"}}\n'
    module = hlo.parse_module(text + "}\n")
    assert hlo.cycles_by_part(module) == {
        "embed": 32,
        "update": 16,
        "loss backward": 8,
        "h/attn/c_attn backward": 4,
        "h/attn": 3,
    }
    assert sum(hlo.cycles_by_part(module).values()) == hlo.estimated_cycles(module)[0]


def test_a_batch_of_products_is_a_convolution_full_of_holes(there):
    assert hlo.matmul_flops(there) == 4 * 2 * (8 * 6) * 64 * 64 * 32


def test_a_loop_that_does_not_say_its_length_is_counted_and_named(there):
    text = hlo.parse_module(HALTING)
    assert hlo.unknown_loops(text) == 1
    assert hlo.estimated_cycles(text)[0] == 7
    assert hlo.unknown_loops(there) == 0


def test_a_while_loop_of_jax_has_no_known_length():
    compiled = (
        jax.jit(lambda x: jax.lax.while_loop(lambda c: c < 100, lambda c: c * 2, x)).lower(jnp.int32(3)).compile()
    )
    assert hlo.unknown_loops(hlo.parse_module(compiled.as_text())) == 1


@pytest.mark.parametrize(
    ("shape", "n"),
    [
        ("f32[]", 4),
        ("bf16[8,64,3]{2,1,0:T(8,128)(2,1)S(1)}", 3072),
        ("(f32[2]{0}, /*index=1*/s32[3,1]{1,0}, pred[])", 21),
        ("s4[6]", 3),
        ("token[]", 0),
    ],
)
def test_bytes_of_a_shape(shape, n):
    assert hlo.shape_bytes(shape) == n


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse_module("module @jit_f {\n}\n")


HALTING = """\
%condition (p: (f32[4])) -> pred[] {
  %p = (f32[4]{0}) parameter(0)
  ROOT %converged = pred[] custom-call(%p), custom_call_target="converged"
}

%body (q: (f32[4])) -> (f32[4]) {
  %q = (f32[4]{0}) parameter(0)
  %g = f32[4]{0} get-tuple-element(%q), index=0
  %f = f32[4]{0} negate(%g), backend_config={"estimated_cycles":"7"}
  ROOT %t = (f32[4]{0}) tuple(%f)
}

ENTRY %main (a: (f32[4])) -> (f32[4]) {
  %a = (f32[4]{0}) parameter(0)
  ROOT %w = (f32[4]{0}) while(%a), condition=%condition, body=%body
}
"""
