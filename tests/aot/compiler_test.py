"""The figures of a compilation, on simulated devices in place of a topology's."""

import dataclasses
import json

import jax
import pytest

from gpt1_jax.aot import compiler, report
from gpt1_jax.aot.programs import make_program
from gpt1_jax.aot.topologies import parse_topology
from gpt1_jax.errors import InputError
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.model import GPT1Config, count_parameters

MODEL = {"vocab_size": 380, "n_ctx": 32, "n_embd": 32, "n_head": 4, "n_layer": 1}
V5E = parse_topology("v5e:2x4")


@pytest.fixture(scope="module")
def parts(devices):
    """A program, its text and its memory analysis."""
    program = make_program({"model": MODEL, "batch_size": 16, "mesh": {"shard_optimizer": False}}, devices)
    with jax.set_mesh(program.mesh):
        made = program.step.lower(*program.arguments).compile()
    return program, made.as_text(), made.memory_analysis()


@pytest.fixture(scope="module")
def compiled(parts):
    program, text, memory = parts
    return compiler.describe(program, V5E, text, memory, seconds=1.0)


def test_what_was_compiled(compiled):
    assert (compiled.topology, compiled.n_chips, compiled.batch, compiled.n_ctx) == ("v5e:2x4", 8, 16, 32)
    assert compiled.mesh == {"data": 8, "fsdp": 1, "tensor": 1}
    assert compiled.parameters == count_parameters(GPT1Config(**MODEL))
    assert (compiled.embd_pdrop, compiled.attn_pdrop, compiled.resid_pdrop, compiled.clf_pdrop) == (0.1,) * 4
    assert (compiled.attention, compiled.remat, compiled.loss_chunk, compiled.accumulation_steps) == (
        "xla",
        "none",
        0,
        1,
    )
    assert compiled.versions["jax"]


def test_memory_and_floors(compiled):
    padded = 384 * 32 - 380 * 32 + compiled.parameters
    assert compiled.argument_bytes == pytest.approx(12 * padded, rel=0.05)  # parameters and two moments
    assert compiled.peak_bytes >= compiled.argument_bytes
    assert compiled.fits
    one = train_flops_per_token(GPT1Config(**MODEL), 32) * 16 * 32 / 8
    assert compiled.flops == one
    assert compiled.flops_floor_ms == pytest.approx(one / 197e12 * 1e3)
    assert compiled.compiled_flops == pytest.approx(one, rel=0.15)
    assert compiled.bytes_floor_ms == pytest.approx(24 * padded / 819e9 * 1e3, rel=0.05)


def test_the_gradients_are_reduced_over_data(compiled):
    reduced = [c for c in compiled.collectives if c["kind"] == "all-reduce" and c["axis"] == "data"]
    total = sum(c["bytes"] * c["count"] for c in reduced)
    assert total >= 4 * compiled.parameters
    assert compiled.collective_floor_ms == pytest.approx(sum(c["floor_ms"] for c in compiled.collectives))
    assert sum(c["floor_ms"] for c in reduced) == pytest.approx(total * 2 * 7 / 8 / 100e9 * 1e3)


def test_no_time_is_made_up_where_the_compiler_has_none(compiled):
    assert compiled.estimated_step_ms is compiled.mfu_by_estimate is compiled.tokens_per_second_by_estimate is None
    assert compiled.kernel_floor_ms == 0
    assert "all-reduce" in compiled.without_estimate
    assert "this compiler estimates no time" in report.page(compiled)
    assert "not measured" in report.page(compiled)
    assert "batch 16 is not the paper's 64" in report.page(compiled)


def test_json_and_table(compiled):
    figures = json.loads(json.dumps(compiled.figures()))
    wanted = "estimated_step_ms kernel_floor_ms collective_floor_ms without_estimate batch n_ctx dtype parameters "
    wanted += "embd_pdrop attn_pdrop resid_pdrop clf_pdrop fits mfu_by_estimate tokens_per_second_by_estimate"
    assert set(wanted.split()) <= set(figures)
    lines = report.comparison([compiled, compiled]).splitlines()
    assert lines[1].split()[:4] == ["v5e:2x4", "8x1x1", "16", "float32"]
    assert len(lines) == 4


def test_estimates(compiled):
    """2 ms for 16 x 32 tokens; the matrix products would take what `flops_floor_ms` says."""
    estimated = dataclasses.replace(compiled, estimated_step_ms=2.0)
    assert estimated.tokens_per_second_by_estimate == 256_000
    assert estimated.mfu_by_estimate == compiled.flops_floor_ms / 2
    assert "2.00 ms by the compiler's cycles" in report.page(estimated)


def test_slices_have_no_bound(parts):
    program, text, memory = parts
    one = compiler.describe(program, parse_topology("2xv5e:2x2"), text, memory, seconds=1.0)
    assert one.collective_floor_ms is None
    assert {c["floor_ms"] for c in one.collectives} == {None}


def test_too_large_is_said_in_one_line(devices):
    said = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 17.36G of "
    program = make_program({"model": MODEL, "batch_size": 8}, devices)
    with pytest.raises(InputError) as error, compiler._memory_refused(V5E, program):
        raise jax.errors.JaxRuntimeError(f"{said}15.75G hbm. Exceeded hbm capacity by 1.61G.\n\nTotal ...")
    assert str(error.value).startswith("v5e:2x4: batch 8 on mesh data=8, fsdp=1, tensor=1 does not fit")
    assert "(Used 17.36G of 15.75G)" in str(error.value)
    assert "config.accumulation_steps" in str(error.value)
    with pytest.raises(jax.errors.JaxRuntimeError), compiler._memory_refused(V5E, program):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
