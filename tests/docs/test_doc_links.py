"""Links between pages lead somewhere, and a page of the site links only to the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT, all_pages, anchors, prose

#: The only places outside that pages may name: the project has no other.
OUTSIDE = ("http://127.0.0.1", "http://localhost")


def links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)


def broken(path: Path, link: str) -> str | None:
    """Returns the fault of a link, None if it is right."""
    if re.match(r"[a-z]+:", link):
        return None if link.startswith(OUTSIDE) else "leads out of the repository"
    file, _, anchor = link.partition("#")
    target = (path.parent / file).resolve() if file else path
    if not target.exists():
        return "leads nowhere"
    if path.is_relative_to(DOCS) and not target.is_relative_to(DOCS):
        return "leads out of the site"
    if anchor and anchor not in anchors(target):
        return f"there is no heading #{anchor}"
    return None


@pytest.mark.parametrize("path", all_pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_resolve(path: Path) -> None:
    found = {link: why for link in links(path) if (why := broken(path, link))}
    assert found == {}


def test_a_broken_link_and_anchor_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n\n[a](#one-thing) [b](#two) [c](missing.md) [d](page.md#one-thing)\n")
    assert [broken(page, link) for link in links(page)] == [None, "there is no heading #two", "leads nowhere", None]


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    named = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert named == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
