"""Pages speak the language of the field: words that were given up stand in the laboratory's notes alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, GENERATED, ROOT, all_pages, prose

HISTORY = DOCS / "experiments"
#: Words that meant something in this project alone, and mean nothing else in these pages.
GIVEN_UP = (
    *("vigour", "haste", "relief", "lets? out", "let out", "ripe", "hoped", "gauges?", "dried", "junk", "pump", "hush"),
    *(
        "expel",
        "outflow",
        "uplink_pace",
        "doubts",
        "doubted",
        "strangers",
        "mates",
        "havemore",
        "baseless",
        "leftovers",
    ),
    *("forgo", "wishes", "remarks", "first hops?", "asking.py", "pushing.py", "begin_anew", "keep_awake", "fading"),
    *("anew", "patience", "rooms", "run_beside"),
)
PATTERN = re.compile(r"\b(" + "|".join(GIVEN_UP) + r")\b")
PAGES = [path for path in all_pages() if not path.is_relative_to(HISTORY) and path not in GENERATED]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_no_word_that_was_given_up(path: Path) -> None:
    text = re.sub(r"\s+", " ", prose(path)).lower()
    assert sorted(set(PATTERN.findall(text))) == []


def test_a_word_that_was_given_up_is_found() -> None:
    assert PATTERN.findall("a chunk of relief, and junk") == ["relief", "junk"]
