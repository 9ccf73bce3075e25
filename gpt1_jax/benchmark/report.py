"""The figures for people: a table, and what is needed to read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt1_jax.benchmark.figures import Figure
from gpt1_jax.benchmark.timing import Spread
from gpt1_jax.errors import InputError
from gpt1_jax.plots.style import BLUE, DPI, INK, look, new_figure, printable
from gpt1_jax.text_table import aligned

_HEAD = ("part", "work", "who", "rate", "a call", "of peak", "of product", "memory", "compile", "ours is")


def table(figures: Sequence[Figure]) -> str:
    """A line for each contestant."""
    rows = [_HEAD, *(_row(figure) for figure in figures)]
    used = [i for i in range(len(_HEAD)) if i < 5 or any(row[i] for row in rows[1:])]
    return "\n".join(aligned([[row[i] for i in used] for row in rows], n_left=len(used)))


def notes(figures: Sequence[Figure], record: dict[str, Any]) -> str:
    """How everybody was run, and on what."""
    about = {(f.name, f.part, f.about): None for f in figures if f.about}
    device, versions = record["device"], record["versions"]
    machine = f"{device['count']} x {device['kind']}" if device["platform"] != "cpu" else "CPU"
    lines = [
        *(f"{name} ({part}): {text}" for name, part, text in about),
        *(
            f"load ({work}): {times:.0f} times as fast as an update takes the batches"
            for work, times in record["loading_over_training"].items()
        ),
        *(f"failed: {f['name']} ({f['part']}, {f['work']}): {f['reason']}" for f in record["failed"]),
        "A call: median (quartiles) over the rounds. Ratios are taken within each round, in which all take turns: "
        "their median (quartiles).",
        "Every update has AdamW in it, and the config's dropout and clipping. Tokens are random: no time depends on "
        "them.",
        f"{machine}, {device['processor']}, {device['cores']} cores; "
        + ", ".join(f"{name} {version}" for name, version in versions.items()),
        *(f"{name}={value}" for name, value in record["environment"].items()),
        f"{record['date']}  {record['command']}",
    ]
    return "\n".join(lines)


def check_format(path: Path) -> None:
    """Refuses the name of a drawing that `plot` could not write.

    Raises:
      InputError: names the endings that there are.
    """
    known = sorted(new_figure(1.0, 1.0).canvas.get_supported_filetypes())
    if path.suffix and path.suffix[1:].lower() not in known:
        raise InputError(f"--plot={path}: no drawing ends with {path.suffix!r}; use .png, or one of {', '.join(known)}")


def plot(figures: Sequence[Figure], path: Path) -> None:
    """Draws how many times everybody else's rate ours is, and which share of a lone product's rate everybody has."""
    drawn = [
        ("times the other's rate that ours is", [(f, f.ahead) for f in figures if f.ahead and f.unit != "FLOP"]),
        ("% of a lone matrix product's rate", [(f, _percent(f.of_product)) for f in figures if f.of_product]),
    ]
    drawn = [(title, bars) for title, bars in drawn if bars]
    if not drawn:
        return
    n_bars = sum(len(bars) for _, bars in drawn)
    with look():
        figure = new_figure(8.0, 1.5 * len(drawn) + 0.35 * n_bars)
        panels = figure.subplots(len(drawn), 1, squeeze=False)
        for axis, (title, bars) in zip(panels[:, 0], drawn, strict=True):
            medians = [spread.median for _, spread in bars]
            around = [[s.median - s.q1 for _, s in bars], [s.q3 - s.median for _, s in bars]]
            names = [printable(f"{f.part} {f.work}: {f.name}") for f, _ in bars]
            axis.barh(names, medians, xerr=around, color=BLUE, ecolor=INK, capsize=3)
            axis.set_xlabel(title)
            axis.grid(visible=False, axis="y")
            axis.invert_yaxis()
            if "times" in title:
                axis.axvline(1.0, color=INK, linewidth=0.8)
        figure.savefig(path, dpi=DPI)


def _row(f: Figure) -> tuple[str, ...]:
    return (
        f.part,
        f.work,
        f.name,
        f"{_short(f.rate)} {f.unit}/s",
        f"{_seconds(f.seconds.median)} ({_seconds(f.seconds.q1)}-{_seconds(f.seconds.q3)}) n={f.rounds}",
        "" if f.of_peak is None else f"{f.of_peak:.1%}",
        "" if f.of_product is None else _spread(_percent(f.of_product), ".0f") + " %",
        "" if not f.peak_bytes else f"{f.peak_bytes / 2**30:.2f} GiB",
        "" if f.compile_seconds is None else f"{f.compile_seconds:.0f} s" * (f.compile_seconds >= 0.5),
        "" if f.ahead is None else _spread(f.ahead, ".2f") + " x",
    )


def _percent(spread: Spread) -> Spread:
    return Spread(100 * spread.median, 100 * spread.q1, 100 * spread.q3)


def _spread(spread: Spread, form: str) -> str:
    return f"{spread.median:{form}} ({spread.q1:{form}}-{spread.q3:{form}})"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g} {letter}"
    return f"{value:.4g}"
