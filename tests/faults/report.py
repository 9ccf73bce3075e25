"""What was tried and how it ended, as a table."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

ENDS = ("continued", "refused", "lost", "skipped")
"""The same command went on to the same end; it was refused with a remedy that worked; anything else; not possible here.
"""


@dataclasses.dataclass(frozen=True)
class Result:
    """One fault.

    Attributes:
      fault: what was done to the run.
      job: its program.
      phase: where it was hit.
      end: one of `ENDS`.
      note: of a lost or skipped one, why; of a refused one, the message.
      seconds: from SIGTERM to the end.
    """

    fault: str
    job: str
    phase: str
    end: str
    note: str = ""
    seconds: float | None = None


def table(results: Sequence[Result]) -> str:
    """Fault, program and phase against how it ended, and the number of runs that were lost."""
    counts: dict[tuple[str, str, str], collections.Counter] = collections.defaultdict(collections.Counter)
    for result in results:
        counts[result.fault, result.job, result.phase][result.end] += 1
    rows = [("fault", "program", "phase", "tried", *ENDS)]
    for key, ends in counts.items():
        tried = sum(count for end, count in ends.items() if end != "skipped")
        rows.append((*key, str(tried), *(str(ends[end] or "-") for end in ENDS)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", *_notes(results)]
    slowest = max((result.seconds for result in results if result.seconds is not None), default=0.0)
    tried = [result for result in results if result.end != "skipped"]
    lost = [result for result in tried if result.end == "lost"]
    kills = sum(result.fault == "SIGKILL" for result in tried)
    lines.append(f"slowest end after SIGTERM: {slowest:.1f} s")
    lines.append(f"faults tried: {len(tried)} ({kills} SIGKILL), runs lost: {len(lost)}")
    return "\n".join(lines)


def _notes(results: Iterable[Result]) -> list[str]:
    shown = {f"{r.end}: {r.fault}, {r.job}, {r.phase}: {r.note}" for r in results if r.end in ("lost", "skipped")}
    return sorted(shown)
