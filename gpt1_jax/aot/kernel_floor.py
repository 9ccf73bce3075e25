"""A bound on the time of the kernels in a compiled program, of which the compiler estimates nothing.

Each kernel says what it has to do (`gpt1_jax.kernels.work`): its matrix products at the chip's peak, its vector
operations at the rate of the vector units, its bytes at the memory's bandwidth. These units work beside each other, but
never perfectly so: a kernel is given twice the time of the one that takes longest.
"""

from __future__ import annotations

from gpt1_jax.aot.chips import Chip
from gpt1_jax.aot.hlo import Module, executed
from gpt1_jax.kernels.work import Work, work_of

KERNELS = frozenset(("tpu_custom_call", "__gpu$xla.gpu.triton"))
"""Custom calls that are kernels."""

SLACK = 2.0


def kernel_floor_ms(module: Module, chip: Chip) -> float | None:
    """The sum over all kernels of a run, in milliseconds; None where one does not say its work, or the chip's rate of
    vector operations is not in the table.
    """
    total = 0.0
    for run in executed(module):
        if run.instruction.target in KERNELS:
            work = work_of(run.instruction.attributes)
            if work is None or not chip.vector_rate:
                return None
            total += run.times * SLACK * floor_seconds(work, chip)
    return total * 1e3


def floor_seconds(work: Work, chip: Chip) -> float:
    """The time of the busiest unit."""
    return max(work.matrix_flops / chip.peak_flops, work.vector_ops / chip.vector_rate, work.bytes / chip.hbm_bandwidth)
