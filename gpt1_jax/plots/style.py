"""How pictures look: one set of colours and sizes, and how a figure becomes a file.

    with look():                                 # or @styled on the function that draws
        figure = new_figure(6.4, 3.6)
        figure.add_subplot().plot(...)
    save(path, figure)

Colours are those of Okabe and Ito, which all kinds of colour vision tell apart; what they distinguish is told by shape,
dashes or words as well.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import textwrap
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gpt1_jax.errors import InputError
from gpt1_jax.files import make_directory, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, YELLOW, BLACK = "#E69F00", "#56B4E9", "#F0E442", "#000000"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""For lines and marks, in this order; yellow is left out, as it does not show on white."""
MARKERS = ("o", "D", "s", "^", "v", "P", "X")
"""One for each of `PALETTE`."""
INK, MUTED, RULE = "#1b2430", "#596474", "#dbe0e7"
"""Text and axes; what is less important; grid lines."""

WIDTH = 6.4
"""Inches of a figure that fills the width of a page."""
DPI = 150

_STYLE = {
    "font.size": 10.0,
    "text.color": INK,
    "text.parse_math": False,  # a label with two dollar signs is no formula
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "lines.linewidth": 1.5,
    "image.cmap": "Blues",  # one hue from light to dark reads the same with any colour vision and in grey
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}
_FALLBACKS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Microsoft YaHei", "Hiragino Sans", "Arial Unicode MS")
_lock = threading.RLock()  # matplotlib's settings are the process's
_depth = 0

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def look(**changes: Any) -> Iterator[None]:
    """A context in which figures look like ours, whatever the user's matplotlibrc says; one thread at a time.

    Args:
      **changes: other settings of matplotlib, with `__` for the dot: `font__size=11`. They hold in contexts within.
    """
    import matplotlib

    global _depth
    with _lock:
        settings: dict[Any, Any] = {} if _depth else {**_defaults(), **_STYLE, "font.family": list(_families())}
        settings |= {name.replace("__", "."): value for name, value in changes.items()}
        _depth += 1
        try:
            with matplotlib.rc_context(settings):
                yield
        finally:
            _depth -= 1


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """A function that makes a figure, in the context of `look`."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> R:
        with look():
            return draw(*args, **kwargs)

    return in_style


def new_figure(width: float = WIDTH, height: float = 3.6) -> Figure:
    """A figure of this many inches, whose axes make room for their labels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """A figure as a PNG; the same for the same figure."""
    file = io.BytesIO()
    with look():
        figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    return file.getvalue()


def save(path: str | os.PathLike[str], figure: Figure) -> None:
    """Writes a figure as a PNG, whole or not at all.

    Raises:
      InputError: the path does not end in `.png`, or its folder cannot be made.
    """
    path = Path(path)
    if path.suffix != ".png":
        raise InputError(f"{path}: pictures are written as .png; change the suffix")
    make_directory(path.parent, "path")
    write_atomically(path, png(figure))


def printable(text: str) -> str:
    """A text on one line that the fonts at hand can show; what they lack shows as its number, such as U+13080."""
    shown = []
    for character in text:
        if character.isspace():
            shown.append(" ")
        elif unicodedata.category(character)[0] == "C" or not _covers(ord(character)):
            shown.append(f"U+{ord(character):04X}")
        else:
            shown.append(character)
    return "".join(shown)


def token_label(text: str) -> str:
    """A token for an axis: `printable`, with its spaces and line ends visible, at most 16 characters long."""
    marks = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "⏎"}
    label = "".join(marks.get(character) or printable(character) for character in text)
    if label and unicodedata.combining(label[0]):
        label = f"◌{label}"
    return label if len(label) <= 16 else f"{label[:15]}…"


def wrapped(name: str, width: int = 22) -> str:
    """A label in at most two lines; what is left out of a longer one shows as dots."""
    name = printable(name)
    return "\n".join(textwrap.wrap(name, width, max_lines=2, placeholder=" …")) or name


@functools.cache
def _defaults() -> dict[str, Any]:
    import matplotlib

    return {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}


@functools.cache
def _families() -> tuple[str, ...]:
    """The font that comes with matplotlib, and for what it lacks those of the machine."""
    from matplotlib import font_manager

    there = set(font_manager.get_font_names())
    return ("DejaVu Sans", *(name for name in _FALLBACKS if name in there))


@functools.cache
def _covers(code: int) -> bool:
    return any(code in characters for characters in _character_sets())


@functools.cache
def _character_sets() -> tuple[frozenset[int], ...]:
    from matplotlib import font_manager

    fonts = (font_manager.get_font(font_manager.findfont(name)) for name in _families())
    return tuple(frozenset(font.get_charmap()) for font in fonts)
