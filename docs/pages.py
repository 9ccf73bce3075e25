"""A hook of mkdocs: pages that are files of the repository, and modules that no page of the API names.

A page whose head says `include: FILE` is that file, its links made to fit; one that says `rest: true` ends with the
modules of the package that are on no other page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "launch/README.md": "running.md", "launch/cluster/README.md": "clusters.md"}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of the page."""
    if name := page.meta.get("include"):
        return included(name)
    return markdown + rest() if page.meta.get("rest") else markdown


def included(name: str) -> str:
    """A Markdown file of the repository, as a page in docs/."""
    folder = (ROOT / name).parent

    def link(match: re.Match[str]) -> str:
        target, hash_, anchor = match[1].partition("#")
        path = (folder / target).resolve()
        if "://" in match[1] or not target or not path.is_relative_to(ROOT):
            return match[0]
        inside = path.relative_to(ROOT).as_posix()
        return f"]({PAGES.get(inside, inside.removeprefix('docs/'))}{hash_}{anchor})"

    return re.sub(r"\]\(([^()\s]+)\)", link, (ROOT / name).read_text(encoding="utf-8"))


def rest() -> str:
    """The directives of the modules and packages that no page in api/ names."""
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    named = set(re.findall(r"^::: gpt1_jax\.(\w+)", pages, re.M))
    here = {
        path.stem for path in (ROOT / "gpt1_jax").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    left = sorted(name for name in here - named if not name.startswith("_"))
    options = "\n    options:\n      show_submodules: true"
    return "".join(f"\n::: gpt1_jax.{name}{options * (ROOT / 'gpt1_jax' / name).is_dir()}\n" for name in left)
