"""A hook of mkdocs: a page whose head says `include: FILE` is that file of the repository, its links made to fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "launch/README.md": "running.md", "launch/cluster/README.md": "clusters.md"}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of the page."""
    if not (name := page.meta.get("include")):
        return markdown
    folder = (ROOT / name).parent

    def link(match: re.Match[str]) -> str:
        target, hash_, anchor = match[1].partition("#")
        path = (folder / target).resolve()
        if "://" in match[1] or not target or not path.is_relative_to(ROOT):
            return match[0]
        inside = path.relative_to(ROOT).as_posix()
        return f"]({PAGES.get(inside, inside.removeprefix('docs/'))}{hash_}{anchor})"

    return re.sub(r"\]\(([^()\s]+)\)", link, (ROOT / name).read_text(encoding="utf-8"))
