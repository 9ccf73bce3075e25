"""What the makers say of their chips: memory, bandwidths, links, clock. Bounds on a step's time come from here."""

from __future__ import annotations

import dataclasses

from gpt1_jax.flops import PEAK_FLOPS

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip, which is one device of JAX.

    Attributes:
      name: as in a topology's name.
      device_kind: its name in JAX, and in `flops.PEAK_FLOPS`.
      hbm_bytes: device memory.
      hbm_bandwidth: bytes/s to and from it.
      link_bandwidth: bytes/s that leave the chip over one link to another chip; for a GPU over all of its links to the
        switch of its host.
      clock: Hz, of the matrix units; 0 where no time is estimated.
      vector_units: units of 8 x 128 lanes, each of which does an operation on 32 bits a cycle in every lane.
      torus: sizes of an axis of the interconnect that close to a ring; a shorter axis is a line. Every multiple of the
        first, up to the last.
    """

    name: str
    device_kind: str
    hbm_bytes: float
    hbm_bandwidth: float
    link_bandwidth: float
    clock: float = 0.0
    vector_units: int = 0
    torus: tuple[int, int] = (0, 0)

    @property
    def peak_flops(self) -> float:
        """Dense bfloat16 FLOP/s."""
        return PEAK_FLOPS[self.device_kind]

    @property
    def vector_rate(self) -> float:
        """Operations on 32-bit numbers a second; 0 where it is not known."""
        return self.vector_units * 8 * 128 * self.clock

    @property
    def platform(self) -> str:
        """The compiler: "tpu" or "cuda"."""
        return "tpu" if self.device_kind.startswith("TPU") else "cuda"

    def links(self, shape: tuple[int, ...]) -> int:
        """Links by which the chip with the fewest neighbours sends: a corner of the `shape`."""
        if self.platform == "cuda":
            return 1
        step, largest = self.torus
        return sum(2 if size % step == 0 and size <= largest else 1 for size in shape if size > 1)


# Memory and bandwidths: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, where the interconnect's figure is the sum of
# both directions over all ports (v4: 50 GB/s a link, Jouppi et al. 2023, "TPU v4"). Axes of v5e and v6e close to rings
# at the 16 of a whole pod, those of v4 and v5p in cubes of 4. The clock is the one at which a large product alone, in
# the compiler's cycles, reaches the peak of the data sheet. The vector units are the four that the compiler's schedules
# of kernels have to fill (VALU slots of a bundle: v5e, v5p, v6e, and taken over for v4), of both cores of v4 and v5p:
# not a maker's figure.
# NVIDIA: the data sheets of H100 SXM, H200 SXM and A100 SXM 80 GB; NVLink, one direction.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", 32 * GIB, 1200e9, 50e9, clock=1.05e9, vector_units=8, torus=(4, 1 << 20)),
        Chip("v5e", "TPU v5 lite", 16 * GIB, 819e9, 50e9, clock=1.5e9, vector_units=4, torus=(16, 16)),
        Chip("v5p", "TPU v5", 95 * GIB, 2765e9, 100e9, clock=1.75e9, vector_units=8, torus=(4, 1 << 20)),
        Chip("v6e", "TPU v6 lite", 32 * GIB, 1638e9, 100e9, clock=1.75e9, vector_units=4, torus=(16, 16)),
        Chip("a100", "NVIDIA A100", 80 * GIB, 2039e9, 300e9),
        Chip("h100", "NVIDIA H100", 80 * GIB, 3350e9, 450e9),
        Chip("h200", "NVIDIA H200", 141 * GIB, 4800e9, 450e9),
    )
}
