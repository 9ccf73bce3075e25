"""A report as one HTML file that needs nothing else: numbers as words, words as HTML, and the page around them.

What is missing, null or not a finite number becomes a dash. Cells and captions given to the elements are HTML already:
whatever comes from outside goes through `text` first.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Collection, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from gpt1_jax.files import make_directory, write_atomically

NBSP = "\N{NO-BREAK SPACE}"
DASH = "–"


class Section(NamedTuple):
    """A part of a page: the name that links go to, its title, which is text, and its content, which is HTML."""

    name: str
    title: str
    content: str


def write_page(path: Path, title: str, sections: Sequence[Section], *, about: str, lead: str) -> None:
    """Writes a page, which loads nothing from anywhere and runs no script.

    Args:
      path: the file; it is replaced as a whole or not at all.
      title: text, in the largest letters.
      sections: in their order.
      about: text, what kind of report it is.
      lead: HTML below the title.

    Raises:
      InputError: the folder of `path` cannot be made.
    """
    path = Path(path)
    make_directory(path.parent, "path")
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{name}">{text(title)}</a>' for name, title, _ in sections)
    body = "\n".join(
        f'<section id="{name}">\n<h2>{text(title)}</h2>\n{content}\n</section>' for name, title, content in sections
    )
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>gpt1-jax {text(about)}: {text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="kicker">gpt1-jax · {text(about)}</p>
<h1>{text(title)}</h1>
{lead}
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""
    write_atomically(path, page.encode("utf-8"))


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def text(value: Any) -> str:
    """Text for HTML. Control characters and lone surrogates, which a page cannot hold, become U+FFFD."""
    shown = (
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\N{REPLACEMENT CHARACTER}"
        for c in str(value)
    )
    return html.escape("".join(shown))


def count(value: Any) -> str:
    """`6,908`."""
    known = number(value)
    return DASH if known is None else f"{known:,.0f}"


def large(value: Any) -> str:
    """`1.33 million`."""
    known = number(value)
    if known is None or known < 1e6:
        return count(known)
    return f"{known / 1e6:.3g}{NBSP}million"


def decimal(value: Any, digits: int, *, scale: float = 1.0) -> str:
    """`43.10`."""
    known = number(value)
    return DASH if known is None else f"{scale * known:,.{digits}f}"


def percent(fraction: float) -> str:
    """`73.9 %`, of 0.739."""
    return f"{100 * fraction:.1f}{NBSP}%"


def points(value: float, *, sign: bool = False) -> str:
    """`+3.8 points`."""
    return f"{value:{'+' if sign else ''}.1f}{NBSP}points".replace("-", "\N{MINUS SIGN}")


def duration(seconds: Any) -> str:
    """`8 s`, `5 min 2 s`, `2 h 5 min`."""
    known = number(seconds)
    if known is None:
        return DASH
    if known < 10:
        return f"{known:.1f}{NBSP}s"
    minutes, rest = divmod(round(known), 60)
    if minutes >= 60:
        return f"{minutes // 60}{NBSP}h {minutes % 60}{NBSP}min"
    return f"{minutes}{NBSP}min {rest}{NBSP}s" if minutes else f"{rest}{NBSP}s"


def note(content: str) -> str:
    """A remark in small type."""
    return f'<p class="note">{content}</p>' if content else ""


def figure(svg: str, caption: str) -> str:
    """A drawing with its caption; nothing where there is no drawing."""
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>" if svg else ""


def key(start: str, name: str) -> str:
    """A side's name beside the mark that it has in the figures."""
    return f'<span class="key-{text(start)}">{text(name)}</span>'


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str, caption: str = "", words: Collection[int] = ()
) -> str:
    """A table that scrolls sideways where it is too wide.

    Args:
      head: the columns' names; empty for none.
      rows: cells; the first of a row names it.
      kind: its CSS class.
      caption: what the numbers are.
      words: columns of words, set to the left; the others are of numbers.
    """

    def cells(tag: str, row: Sequence[str], first: str) -> str:
        written = []
        for column, content in enumerate(row):
            name, scope = (first, ' scope="row"') if column == 0 and first == "th" else (tag, "")
            scope = ' scope="col"' if tag == "th" else scope
            style = "" if column in words else ' class="n"'
            written.append(f"<{name}{scope}{style}>{content}</{name}>")
        return f"<tr>{''.join(written)}</tr>"

    caption = f"<caption>{caption}</caption>" if caption else ""
    header = f"<thead>{cells('th', head, 'th')}</thead>" if head else ""
    body = "\n".join(cells("td", row, "th") for row in rows)
    return f'<div class="scroll"><table class="{kind}">{caption}{header}\n<tbody>\n{body}\n</tbody></table></div>'


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and values."""
    return table((), rows, kind="facts", words=(0, 1))
