"""Figures as parts of an HTML page: SVG whose text is text, and whose colours are the page's CSS variables."""

from __future__ import annotations

import contextlib
import html
import io
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpt1_jax.plots.style import INK, MUTED, RULE, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = {"ink": INK, "muted": MUTED, "rule": RULE, "page": "#ffffff"}
"""CSS variable -> the colour that a drawing has in its place; one drawing serves light, dark and paper."""


def page_look() -> contextlib.AbstractContextManager[None]:
    """`style.look` for figures that become SVG: the page shows through them, and text is as large as the page's."""
    through = {"axes__facecolor": "none", "figure__facecolor": "none", "svg__fonttype": "none"}
    return look(font__size=11.0, legend__fontsize=11.0, **through)


def svg(figure: Figure, name: str, description: str, variables: Mapping[str, str] = PAGE) -> str:
    """A figure as an `<svg>` element; the same for the same figure. Call it in the context the figure was made in.

    Args:
      figure: made in the context `page_look`.
      name: what its ids begin with, since a page's ids must differ.
      description: for those who do not see it.
      variables: CSS variable -> the colour that it takes the place of; no colour twice.
    """
    file = io.StringIO()
    with look(svg__hashsalt=name):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    text = text[text.index("<svg") :]
    width = math.ceil(figure.get_size_inches()[0] * 96)
    label = html.escape(description)
    text = re.sub(r"^<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{label}">', text)
    text = text.replace("<svg ", f'<svg style="max-width: {width}px" ', 1).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    for variable, colour in variables.items():
        text = text.replace(f": {colour.lower()}", f": var(--{variable})")
    return text.strip()
