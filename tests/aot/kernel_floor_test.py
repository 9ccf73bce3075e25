"""The bound on kernels, from what they say of themselves in a compiled program."""

import pytest

from gpt1_jax.aot import hlo
from gpt1_jax.aot.chips import CHIPS
from gpt1_jax.aot.kernel_floor import kernel_floor_ms
from gpt1_jax.kernels.work import Work

WORK = Work(matrix_flops=394 * 10**9, vector_ops=6144 * 10**6, exponentials=5, bytes=819 * 10**6)


def program(work: Work | None, calls: int = 1) -> hlo.Module:
    """As the TPU's compiler writes it: what is said about a kernel goes over several lines."""
    said = "{}" if work is None else "{\n" + ",\n".join(f'"{k}":"{v}"' for k, v in work.metadata.items()) + "\n}"
    lines = [
        f'  %k.{i} = f32[8]{{0}} custom-call(%a), custom_call_target="tpu_custom_call", '
        f'frontend_attributes={{kernel_metadata={said}}}, metadata={{op_name="jit(f)/kernel"}}'
        for i in range(calls)
    ]
    text = "\n".join(["ENTRY %main (a: f32[8]) -> f32[8] {", "  %a = f32[8]{0} parameter(0)", *lines, "}", ""])
    return hlo.parse_module(text)


def test_twice_the_busiest_unit_of_every_call():
    """Of a v5e: 2 ms of products at 197 TFLOP/s, 1 ms of vector operations at 6.144 a ps, 1 ms at 819 GB/s."""
    assert kernel_floor_ms(program(WORK, calls=3), CHIPS["v5e"]) == pytest.approx(3 * 2 * 2.0)
    vectors = Work(0, WORK.vector_ops, 0, WORK.bytes // 2)
    assert kernel_floor_ms(program(vectors), CHIPS["v5e"]) == pytest.approx(2 * 1.0)
    memory = Work(0, 0, 0, WORK.bytes * 3)
    assert kernel_floor_ms(program(memory), CHIPS["v5e"]) == pytest.approx(2 * 3.0)


def test_no_bound_is_made_up():
    assert kernel_floor_ms(program(WORK, calls=0), CHIPS["v5e"]) == 0
    assert kernel_floor_ms(program(None), CHIPS["v5e"]) is None
    assert kernel_floor_ms(program(WORK), CHIPS["h100"]) is None
