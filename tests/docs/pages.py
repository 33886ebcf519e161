"""The pages that people read, cut into their parts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Written by `python -m docs.generate`.
GENERATED = {
    DOCS / "changelog.md",
    *(DOCS / "reference" / f"{name}.md" for name in ("cli", "configuration", "hub-api", "peer-protocol", "python-api")),
}
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code. line: of its first line in the page."""

    path: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """The page and line of the block."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def all_pages() -> list[Path]:
    """Every page of Markdown that people read."""
    further = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "examples").rglob("*.md")]
    return sorted([*further, *DOCS.rglob("*.md")])


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        yield Block(path, text.count("\n", 0, found.start()) + 2, found[2], found[3])


def prose(path: Path) -> str:
    """A page without its fenced blocks and comments; lines keep their numbers."""
    text = path.read_text(encoding="utf-8")
    for pattern in (_FENCE, re.compile(r"<!--.*?-->", re.DOTALL)):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
        number, name = 0, slug
        while name in found:
            number += 1
            name = f"{slug}_{number}"
        found.add(name)
    return found
