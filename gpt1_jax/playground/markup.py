"""Results as HTML. All that somebody typed, or a model said, is escaped here.

Drawn by the browser rather than by matplotlib: it has the letters of all scripts, and a phone shows text as text.
"""

from __future__ import annotations

import base64
import html
import io
import math
import unicodedata
from collections.abc import Callable, Iterable

import numpy as np
from PIL import Image

from gpt1_jax.errors import counted
from gpt1_jax.playground.reading import Attention, Continuation, Token

BLUE = (0, 114, 178)  # as in `CSS`
_DEEPEST = 0.75  # opacity of a colour under text
_FAINTEST = 1e-3  # probability that has no colour left
_MAX_HOVERED = 40  # tokens of a map whose cells tell their numbers: each is an element of the page
_MAX_FITTED = 24  # tokens of a map that is made to fit into a narrow window; a larger one is scrolled
_CELL, _LABEL_WIDTH, _LABEL_LETTERS = 16, 92, 12  # of a map: pixels, and letters of a label
_SHOWN_AS = {"\n": "↵", "\t": "⇥"}
_JOINERS = "\u200c\u200d"  # belong to words and to emoji

CSS = """
.gpt { line-height: 1.5; overflow-wrap: anywhere;
  --gpt-blue: 0, 114, 178; /* Okabe and Ito's */
  --gpt-faint: color-mix(in srgb, var(--body-text-color) 68%, var(--body-background-fill)); }
.dark .gpt { --gpt-blue: 86, 180, 233; }
.dark .gpt-map image { filter: brightness(1.6); }
.gpt-text { position: relative; white-space: pre-wrap; font-size: 1.05rem; line-height: 2; }
.gpt-token { unicode-bidi: isolate; border-radius: 3px; padding: 2px 0; cursor: help; outline: none; }
.gpt-old { color: var(--gpt-faint); background: none !important; }
.gpt-token:hover, .gpt-token:focus { box-shadow: 0 0 0 2px rgb(213, 94, 0); }
.gpt-more { display: none; position: absolute; left: 0; right: 0; top: 100%; white-space: normal; z-index: 1;
  background: var(--body-background-fill); color: var(--body-text-color); font-size: .9rem; line-height: 1.5;
  padding-top: .5rem; }
.gpt-token:focus .gpt-more { display: block; }
.gpt-token:hover .gpt-more { display: block; z-index: 2; }
.gpt-room { min-height: 17.5rem; padding-top: .5rem; margin-top: .5rem;
  border-top: 1px solid var(--border-color-primary); }
.gpt-note { color: var(--gpt-faint); font-size: .9rem; }
.gpt-bar { max-width: 40rem; display: grid;
  grid-template-columns: minmax(5rem, 12rem) 1fr 4rem; gap: .5rem; align-items: center; }
.gpt-bar > bdi { white-space: pre; overflow: hidden; text-overflow: ellipsis; }
.gpt-bar > i { display: block; height: .8rem; border-radius: 2px; background: rgb(var(--gpt-blue)); min-width: 1px; }
.gpt-bar > span { text-align: right; font-variant-numeric: tabular-nums; }
.gpt-own { font-weight: 600; }
.gpt-legend { display: flex; gap: .35rem; flex-wrap: wrap; align-items: center; }
.gpt-legend b { font-weight: 400; padding: 0 .4rem; border-radius: 3px; }
.gpt-map { overflow-x: auto; }
.gpt-map svg { display: block; height: auto; color: var(--body-text-color); }
.gpt-map text { fill: currentColor; font-size: 12px; font-family: inherit; }
.gpt-map image { image-rendering: pixelated; }
.gpt-map rect:hover { stroke: rgb(213, 94, 0); stroke-width: 2; }
"""


def visible(text: str) -> str:
    """A text whose line ends, tabs and control characters can be seen, and change nothing around them."""
    shown = (_SHOWN_AS.get(c) or (_escape(c) if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c) for c in text)
    return "".join(shown)


def _escape(character: str) -> str:
    return character if character in _JOINERS else f"\\u{ord(character):04x}"


def _name(text: str) -> str:
    """A token in a list, where a space alone would not be seen."""
    return visible(text) if text.strip(" ") else "␣" * len(text)


def continuation(result: Continuation) -> str:
    """The text, each token in the colour of its probability; pointed at, it shows what else might have come."""
    tokens = "".join(map(_token, result.tokens))
    hint = "Point at a token, or tap it, for its probability and what else might have come."
    return (
        f'<div class="gpt"><div class="gpt-text" dir="auto" data-text="{html.escape(result.text)}">{tokens}</div>'
        f'<div class="gpt-room"><div class="gpt-note">{hint}</div>'
        f"{_legend('probability of a new token', (0.001, 0.01, 0.1, 0.5, 1), _strength)}</div>"
        f'<div class="gpt-note">{html.escape(_about(result))}</div></div>'
    )


def _about(result: Continuation) -> str:
    notes = [counted(result.n_new, "new token") + (", then the model ended the text" if result.ended else "")]
    notes.append(f"seed {result.seed}")
    if result.n_dropped:
        lost = counted(result.n_dropped, "token")
        notes.append(f"the prompt is longer than the model reads: its first {lost} were left out")
    return "; ".join(notes)


def _token(token: Token) -> str:
    text = visible(token.text) + "\n" * token.text.count("\n")
    kind = "gpt-token" + ("" if token.is_new else " gpt-old")
    if token.probability is None:
        return f'<span class="{kind}">{html.escape(text)}</span>'
    own = f"“{_name(token.text)}”: {token.probability:.2%}, number {token.rank:,} of all"
    listed = list(token.alternatives)
    if (token.text, token.probability) not in listed:
        listed.append((token.text, token.probability))
    rows = bars(listed, highlighted=token.text)
    more = f'<span class="gpt-more"><span class="gpt-note">{html.escape(own)}</span>{rows}</span>'
    label = html.escape(own, quote=True)
    return (
        f'<span class="{kind}" tabindex="0" aria-label="{label}" style="{_background(_strength(token.probability))}">'
        f"{html.escape(text)}{more}</span>"
    )


def bars(rows: Iterable[tuple[str, float]], highlighted: str | None = None) -> str:
    """A bar for each probability, with its name before and its number behind it."""
    made = []
    for name, p in rows:
        kind = "gpt-bar gpt-own" if name == highlighted else "gpt-bar"
        shown = html.escape(_name(name))
        made.append(
            f'<span class="{kind}"><bdi title="{shown}">{shown}</bdi><i style="width: {p:.2%}"></i>'
            f"<span>{p:.1%}</span></span>"
        )
    return "".join(made)


def _strength(p: float) -> float:
    """0 to 1; the scale is logarithmic, as one token in a thousand is the usual thing in a text."""
    return max(0.0, 1 - math.log10(max(p, _FAINTEST)) / math.log10(_FAINTEST))


def _background(strength: float) -> str:
    """A colour on which text can be read, on white and on black."""
    return f"background: rgba(var(--gpt-blue), {_DEEPEST * strength:.3f})"


def _legend(name: str, shown: Iterable[float], strength: Callable[[float], float]) -> str:
    marks = "".join(f'<b style="{_background(strength(p))}">{100 * p:g} %</b>' for p in shown)
    return f'<div class="gpt-legend gpt-note">{name}: {marks}</div>'


def attention_map(result: Attention) -> str:
    """A heat map: a row for each token that looks, a column for each that is looked at."""
    n = len(result.tokens)
    side = n * _CELL
    width, height = _LABEL_WIDTH + side + 4, side + _LABEL_WIDTH
    parts = [
        f'<image x="{_LABEL_WIDTH}" y="0" width="{side}" height="{side}" preserveAspectRatio="none" '
        f'href="{_picture(_DEEPEST * np.sqrt(result.weights))}"/>'
    ]
    for i, token in enumerate(result.tokens):
        label, middle = _label(token), (i + 0.5) * _CELL
        x = _LABEL_WIDTH + middle
        parts.append(f'<text x="{_LABEL_WIDTH - 6}" y="{middle + 4}" text-anchor="end">{label}</text>')
        parts.append(
            f'<text x="{x}" y="{side + 8}" text-anchor="end" transform="rotate(-60 {x} {side + 8})">{label}</text>'
        )
    if n <= _MAX_HOVERED:
        parts += [_cell(result, i, j) for i in range(n) for j in range(i + 1)]
    note = "A row is how one token shares its attention out among those up to itself."
    if result.n_cut:
        note += f" The model reads {n} tokens: the last {result.n_cut} of the text were left out."
    least, most = width if n > _MAX_FITTED else 0, width * min(2.0, max(1.0, 640 / width))
    return (
        f'<div class="gpt"><div class="gpt-map"><svg role="img" aria-label="attention of {n} tokens" '
        f'viewBox="0 0 {width} {height}" style="width: 100%; min-width: {least}px; max-width: {most:.0f}px">'
        f"{''.join(parts)}</svg></div>{_legend('share', (0.01, 0.05, 0.1, 0.25, 0.5, 1), math.sqrt)}"
        f'<div class="gpt-note">{html.escape(note)}</div></div>'
    )


def _cell(result: Attention, i: int, j: int) -> str:
    """Transparent; it tells its number where the pointer rests."""
    told = f"{_name(result.tokens[i])} → {_name(result.tokens[j])}: {result.weights[i, j]:.1%}"
    x, y = _LABEL_WIDTH + j * _CELL, i * _CELL
    return (
        f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="transparent">'
        f"<title>{html.escape(told)}</title></rect>"
    )


def _label(token: str) -> str:
    text = _name(token).strip()
    return html.escape(text if len(text) <= _LABEL_LETTERS else text[: _LABEL_LETTERS - 1] + "…")


def _picture(strength: np.ndarray) -> str:
    """Numbers from 0 to 1 as a PNG of one pixel each, transparent to blue, as the address of an image."""
    pixels = np.empty((*strength.shape, 4), np.uint8)
    pixels[..., :3] = BLUE
    pixels[..., 3] = np.round(255 * strength)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
