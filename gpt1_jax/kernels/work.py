"""How much a kernel has to do, told by the kernel itself: no compiler estimates what is inside of one.

It travels as the metadata of the call into the compiled program, where `gpt1_jax.aot.kernel_floor` finds it.
"""

from __future__ import annotations

import dataclasses
import re

from jax.experimental import pallas as pl


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one call on one device.

    Attributes:
      matrix_flops: of its matrix products, as the matrix units make them: short sides padded to their 128.
      vector_ops: operations on single numbers, counted by hand; the unit that makes exponentials has its own.
      exponentials: these.
      bytes: that are read from device memory, and written to it.
    """

    matrix_flops: int
    vector_ops: int
    exponentials: int
    bytes: int

    @property
    def cost(self) -> pl.CostEstimate:
        """For the compiler, which schedules other work beside the kernel."""
        return pl.CostEstimate(self.matrix_flops + self.vector_ops, self.exponentials, self.bytes)

    @property
    def metadata(self) -> dict[str, str]:
        """For a reader of the compiled program."""
        return {name: str(value) for name, value in dataclasses.asdict(self).items()}


def work_of(attributes: str) -> Work | None:
    """The work of a call from the attributes that a compiled program's text gives it, or None where it says none."""
    fields = dataclasses.fields(Work)
    found = [re.search(rf'"?\b{field.name}"?[:=]\s*"?(\d+)', attributes) for field in fields]
    numbers = [int(match[1]) for match in found if match]
    return Work(*numbers) if len(numbers) == len(fields) else None
