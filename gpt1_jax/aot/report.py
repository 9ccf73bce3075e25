"""A `Report` for people: a page for one compilation, a table for several."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gpt1_jax.aot.chips import GIB
from gpt1_jax.aot.compiler import Report
from gpt1_jax.text_table import aligned

PAPER_BATCH = 64
_N_PARTS = 10
NOT_MEASURED = "compiler's estimate and bounds, not measured; nothing was executed on these chips"


def page(report: Report) -> str:
    """Everything about one compilation."""
    r = report
    mesh = " x ".join(f"{axis} {size}" for axis, size in r.mesh.items())
    rows = f"{r.batch} x {r.n_ctx} tokens" if r.n_streams == 1 else f"{r.batch} x {r.n_streams} x {r.n_ctx} tokens"
    lines = [
        f"{r.topology}: {r.n_chips} chips {r.chip}, mesh {mesh}{', optimizer sharded' * r.shard_optimizer}",
        f"{r.program}: batch {rows}, {r.dtype}, {r.parameters / 1e6:.1f} M parameters",
        f"dropout: embeddings {r.embd_pdrop:g}, attention {r.attn_pdrop:g}, residual {r.resid_pdrop:g}, "
        f"task head {r.clf_pdrop:g}",
        f"attention {r.attention}, accumulation {r.accumulation_steps}, remat {r.remat}, "
        f"{'layers scanned, ' * r.scan_layers}loss chunk {r.loss_chunk or 'all positions'}",
        "",
        f"compiled in {r.compile_seconds:.0f} s",
        f"memory of a chip     {_gib(r.peak_bytes)} GiB of {_gib(r.hbm_bytes)} at most: "
        f"{'fits' if r.fits else 'DOES NOT FIT'} (arguments {_gib(r.argument_bytes)}, temporaries "
        f"{_gib(r.temp_bytes)})",
        f"matrix products      {r.flops / 1e12:.3f} TFLOP a chip by hand, {r.compiled_flops / 1e12:.3f} as compiled",
        f"floors               {r.flops_floor_ms:.2f} ms of matrix products at peak; {r.bytes_floor_ms:.2f} ms to read "
        "and write the state",
        f"estimated step       {_ms(r.estimated_step_ms)}{_without_kernels(r)}",
        *_parts(r),
        f"kernels' floor       {_ms(r.kernel_floor_ms)}{_by_estimate(r)}",
        f"collectives' floor   {_ms(r.collective_floor_ms)}, one after another, beside the estimate",
        f"not in the estimate  {_without(r)}",
    ]
    if r.loops_of_unknown_length:
        lines.append(f"loops of unknown length, counted as one trip: {r.loops_of_unknown_length}")
    lines += ["", *_collectives(r)]
    if r.program == "pretrain" and r.batch != PAPER_BATCH:
        lines += ["", f"batch {r.batch} is not the paper's {PAPER_BATCH}: another recipe; the rate is not scaled."]
    versions = ", ".join(f"{name} {version}" for name, version in r.versions.items())
    lines += ["", f"({NOT_MEASURED}; {versions}; {r.date})"]
    return "\n".join(lines)


def comparison(reports: Sequence[Report]) -> str:
    """One line for each compilation."""
    head: tuple[str, ...] = (
        "topology",
        "mesh",
        "batch",
        "dtype",
        "remat",
        "memory GiB",
        "estimate ms",
        "kernels ms",
        "MFU by both",
    )
    head += ("tokens/s by both", "collectives ms")
    table = [head]
    for r in reports:
        mfu, rate = r.mfu_by_estimate, r.tokens_per_second_by_estimate
        table.append(
            (
                r.topology,
                "x".join(str(size) for size in r.mesh.values()) + " zero" * r.shard_optimizer,
                str(r.batch),
                r.dtype,
                r.remat,
                f"{_gib(r.peak_bytes)} of {_gib(r.hbm_bytes)}",
                _number(r.estimated_step_ms),
                _number(r.kernel_floor_ms),
                "none" if mfu is None else f"{mfu:.0%}",
                "none" if rate is None else f"{rate:,.0f}",
                _number(r.collective_floor_ms),
            )
        )
    return "\n".join([*aligned(table, n_left=len(table[0])), f"({NOT_MEASURED})"])


def _parts(r: Report) -> list[str]:
    """Where the estimate is spent, two lines of it."""
    named = [f"{part} {ms:.2f}" for part, ms in r.estimated_ms_by_part.items()]
    if not named:
        return []
    shown, rest = named[:_N_PARTS], sum(list(r.estimated_ms_by_part.values())[_N_PARTS:])
    lines = textwrap.wrap(", ".join(shown) + f", all others {rest:.2f}", 95, break_on_hyphens=False)
    return [f"{'  of which' if i == 0 else '':20} {line}" for i, line in enumerate(lines)]


def _collectives(r: Report) -> list[str]:
    if not r.collectives:
        return ["no collectives"]
    table = [("collective", "over", "n", "count", "MB each", "floor ms")]
    small = [c for c in r.collectives if c["bytes"] * c["count"] < 1e5]
    for c in r.collectives:
        if c not in small:
            figures = (str(c["group_size"]), str(c["count"]), f"{c['bytes'] / 1e6:.2f}", _number(c["floor_ms"]))
            table.append((c["kind"], c["axis"], *figures))
    lines = aligned(table, n_left=len(table[0]))
    if small:
        total = sum(c["bytes"] * c["count"] for c in small) / 1e6
        lines.append(f"and {sum(c['count'] for c in small)} of less than 0.1 MB, {total:.2f} MB in all")
    return lines


def _without(r: Report) -> str:
    named = ", ".join(f"{count} {name}" for name, count in r.without_estimate.items() if name != "scalar")
    return named or "nothing"


def _without_kernels(r: Report) -> str:
    if r.estimated_step_ms is None:
        return ": this compiler estimates no time"
    return " by the compiler's cycles" + " without the kernels" * (r.kernel_floor_ms != 0)


def _by_estimate(r: Report) -> str:
    if r.mfu_by_estimate is None:
        return ""
    return (
        f"; with the estimate {_ms(r.estimate_with_kernels_ms)}: MFU {r.mfu_by_estimate:.0%} of the bfloat16 peak, "
        f"{r.tokens_per_second_by_estimate:,.0f} tokens/s, if nothing else took time"
    )


def _gib(n: float) -> str:
    return f"{n / GIB:.2f}"


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} ms"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
