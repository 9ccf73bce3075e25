"""Pictures look the same everywhere, and show whatever text they are given."""

import threading
import warnings

import matplotlib
import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.plots import style
from gpt1_jax.plots.style import look, new_figure, png, printable, save, styled, token_label, wrapped


@styled
def picture(text="text"):
    figure = new_figure(3, 2)
    figure.add_subplot().set(title=text, xlabel="$a$ and $b$")
    return figure


def test_the_users_settings_neither_count_nor_change():
    plain = png(picture())
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.parse_math": True}):
        inside = dict(matplotlib.rcParams)
        assert png(picture()) == plain
        assert dict(matplotlib.rcParams) == inside
    assert dict(matplotlib.rcParams) == before


def test_changes_hold_in_contexts_within():
    with look(font__size=20):
        assert picture().axes[0].title.get_fontsize() == 11.0  # a size of its own
        with look():
            assert matplotlib.rcParams["font.size"] == 20
    with look():
        assert matplotlib.rcParams["font.size"] == 10


def test_threads_take_turns():
    before = dict(matplotlib.rcParams)
    expected = png(picture())
    found = []
    threads = [threading.Thread(target=lambda: found.append(png(picture()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    assert dict(matplotlib.rcParams) == before


def test_save_writes_png_only(tmp_path):
    save(tmp_path / "new" / "a.png", picture())
    assert (tmp_path / "new" / "a.png").read_bytes() == png(picture())
    with pytest.raises(InputError, match=r"a\.svg: pictures are written as \.png"):
        save(tmp_path / "a.svg", picture())
    with pytest.raises(InputError, match="cannot create"):
        save(tmp_path / "new" / "a.png" / "b.png", picture())


ODD = ["日本", "\U0001f600", "a\x00b", "שלום", "\u202eabc", "\ud800", "ﷺ", "é", "\u0301", "$x$ $y$", "𓂀", "\x1b[31m"]


@pytest.mark.parametrize("text", ODD, ids=map(ascii, ODD))
def test_every_text_can_be_drawn(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a glyph that is missing
        png(picture(printable(text)))
        png(picture(token_label(text)))


def test_what_the_fonts_lack_shows_as_its_number():
    assert printable("a\x00\u202eb") == "aU+0000U+202Eb"
    assert printable("𓂀") == "U+13080"
    assert printable("naïve\n\tשלום") == "naïve  שלום"


def test_labels_of_tokens_show_their_spaces():
    assert token_label(" the") == "␣the"
    assert token_label("\n") == "⏎"
    assert token_label("\u0301") == "◌\u0301"
    assert token_label("x" * 17) == "x" * 15 + "…"


def test_wrapped():
    assert wrapped("short") == "short"
    label = wrapped("a label of a customer who writes a whole sentence into the column")
    assert label == "a label of a customer\nwho writes a whole …"
    assert wrapped("x" * 200)


def test_the_colours_are_okabe_and_itos():
    assert {*style.PALETTE, style.YELLOW} == {
        *("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
    }
    assert len(style.MARKERS) == len(style.PALETTE)
