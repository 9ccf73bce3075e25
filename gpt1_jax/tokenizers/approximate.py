"""Words as in GPT-1 without ftfy and spaCy: regular expressions that split most English text in the same way.

Differences from the exact words: wrongly decoded text and HTML entities stay as they are, and only the frequent ones of
spaCy's rules are here. For machines that cannot have spaCy; results are not comparable with the original's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_CHARACTERS = {
    **dict.fromkeys((*range(9), 11, *range(14, 32), 127, 0xFEFF)),
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u02bc"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f"), '"'),
    **dict.fromkeys(map(ord, "\u0085\u2028\u2029"), "\n"),
}

_ABBREVIATED = (
    "Adm|Ak|Ala|Apr|Ariz|Ark|Aug|Bros|Calif|[Cc]o|Colo|Conn|Corp|Dec|Del|Dr|Feb|Fla|Ga|Gen|Gov|Ia|Id|Ill|Inc|Ind|Jan|"
    "Jr|Jul|Jun|Kans?|Ky|La|Ltd|Mar|Mass|Md|Messrs|Mich|Minn|Miss|Mo|Mont|Mr|Mrs|Ms|Mt|Nebr?|Nev|Nov|Oct|Okla|Ore|Pa|"
    r"Ph\.D|Prof|Rep|Rev|Sen|Sept?|St|Tenn|Va|Wash|Wis|vs|[a-z]|[ap]\.m|e\.g|i\.e"
)
_CLIPPED = "[Dd]oin|[Gg]oin|[Hh]avin|[Ll]ovin|[Nn]othin|[Nn]uthin|[Ss]omethin|[Oo]l"
_NEGATED = "ai|are|ca|could|dare|did|do|does|had|has|have|is|may|might|must|need|ought|sha|should|was|were|wo|would"

# Kept together, whatever is at their ends.
_WHOLE = re.compile(
    rf"(?:{_ABBREVIATED})\.|(?:{_CLIPPED})'|'(?:s|S|d|em|ll|re|[Cc]ause|[Bb]out)|''|\.\.+|:[DPXOpxo03]|<3+"
)
_FIRST = re.compile(r"""\.\.+|''|["'`:&<>%\#=^$£€¥?!,;()\[\]{}*_+]|\.(?![^\W_])""")
_LAST = re.compile(
    r"""(?:\.\.+|''|'(?:[sS]|ll|LL|ve|VE|re|RE)|["'`:<>%^?!,;()\[\]{}*_+=]|(?<=[^\W_A-Z]|["')%])\.|(?<=[A-Z][A-Z])\.)\Z"""
)
_INSIDE = re.compile(r"(\.\.+|(?<=[a-z\"'])\.(?=[A-Z\"'])|(?<=[^\W\d_]):(?=[^\W\d_])|(?<=[^\W_])[<>=](?=[^\W\d_]))")
_PARTS = [
    re.compile(rf"({_NEGATED}|{_NEGATED.title()})(n'?t)"),
    re.compile(r"([Ii])('?m|'?d|ve)|([Yy]ou|[Ww]e|[Tt]hey|[Hh]e|[Ss]he|[Ii]t|[Tt]hat|[Tt]here|[Ww]ho|[Ww]hat)('d)"),
    re.compile(r"([Tt]hat|[Ww]hat|[Tt]here|[Hh]e|[Ss]he|[Ww]ho|[Hh]ow|[Ww]here)(s)"),
    re.compile(r"([Cc]an)(not)|([Gg]on)(na)|([Gg]ot)(ta)|([Cc]'m)(on)"),
    re.compile(r"(\d+)(mm|cm|km|m|kg|g|[ap]m|[KMG]B|K)"),
]


class ApproximateWords:
    """See the module."""

    def fix_text(self, text: str) -> str:
        """Straight quotes, plain line ends, composed characters (NFC), no control characters."""
        text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CHARACTERS)
        return unicodedata.normalize("NFC", text)

    def of_chunk(self, chunk: str) -> list[str]:
        """The words of a standardised chunk."""
        return _split(chunk)

    def of_chunks(self, chunks: Sequence[str]) -> list[str]:
        """The words of standardised chunks."""
        return [word for chunk in chunks for word in _split(chunk)]

    def separates(self, chunk: str) -> bool:
        """Every chunk is split by itself."""
        return True


def _split(word: str) -> list[str]:
    first: list[str] = []
    last: list[str] = []
    while word and not _WHOLE.fullmatch(word):
        if match := _FIRST.match(word):
            first.append(match[0])
            word = word[match.end() :]
        elif match := _LAST.search(word):
            last.append(match[0])
            word = word[: match.start()]
        else:
            break
    inside = [word] if _WHOLE.fullmatch(word) else _INSIDE.split(word)
    return [*first, *(part for piece in inside if piece for part in _parts(piece)), *reversed(last)]


def _parts(word: str) -> list[str]:
    for pattern in _PARTS:
        if match := pattern.fullmatch(word):
            return [part for part in match.groups() if part]
    return [word]
