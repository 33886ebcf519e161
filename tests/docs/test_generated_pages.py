"""The pages that are written from the code are those that it would write now."""

from __future__ import annotations

import json
import re

import pytest
from pages import DOCS, GENERATED, ROOT

import docs.generate
from docs.generate import hub


def test_generated_pages_are_up_to_date() -> None:
    assert docs.generate.out_of_date() == []


def test_a_page_that_was_edited_is_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "reference" / "cli.md"
    monkeypatch.setattr(docs.generate, "pages", lambda: {page: "another text"})
    assert docs.generate.out_of_date() == [str(page.relative_to(ROOT))]


def test_the_list_of_generated_pages_is_whole() -> None:
    assert {path for path in docs.generate.pages() if path.suffix == ".md"} == GENERATED


def test_the_openapi_file_has_exactly_the_routes_that_the_hub_serves() -> None:
    told = json.loads((DOCS / "reference" / "hub-openapi.json").read_text())
    described = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert described == hub.real_routes()


def test_every_reference_in_the_openapi_file_resolves() -> None:
    text = (DOCS / "reference" / "hub-openapi.json").read_text()
    told = json.loads(text)
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', text):
        node = told
        for key in reference.split("/"):
            node = node[key]


def test_the_hub_page_names_every_struct_that_it_links_to() -> None:
    text = (DOCS / "reference" / "hub-api.md").read_text()
    headings = set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
    assert {name.lower() for name in headings} >= set(re.findall(r"\]\(#(\w+)\)", text))
