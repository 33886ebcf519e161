"""Every message that the troubleshooting page explains is one that the code gives."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from pages import DOCS, ROOT

from p2psync import errors

PAGE = DOCS / "guides" / "troubleshooting.md"
FOLDERS = ("p2psync", "trainer", "actor", "topology")
#: Separates the fixed parts of a message on the page. Names and numbers stand there as an ellipsis, in capitals or as
#: digits; the others are names of runs and punctuation.
_PLACEHOLDER = re.compile(r"…|\b[A-Z][A-Z0-9_]*\b(?:\.toml)?|\d+|'|[\[\]():;]|\brun\b")
#: Messages of the operating system.
_OF_THE_SYSTEM = {"No space left on device"}
#: Minimum characters of a part that is looked up; a shorter one would be found anywhere.
_MIN_CHARACTERS = 10


def messages() -> list[str]:
    """Returns the messages in backquotes in the first columns of the page's tables, without names of errors."""
    first = re.findall(r"^\| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = [code for cell in first for code in re.findall(r"`([^`]+)`", cell)]
    return [code for code in found if " " in code]


@cache
def texts() -> str:
    """Returns every text in the code, with a zero character in place of values."""
    parts = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    values = (one.value if isinstance(one, ast.Constant) else "\0" for one in node.values)
                    parts.append("".join(map(str, values)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    parts.append(node.value)
    return "\n".join(parts)


def missing(message: str) -> list[str]:
    """The parts of a message that stand nowhere in the code."""
    parts = [part.strip(" ,—") for part in _PLACEHOLDER.split(message)]
    return [
        part for part in parts if len(part) >= _MIN_CHARACTERS and part not in _OF_THE_SYSTEM and part not in texts()
    ]


@pytest.mark.parametrize("message", messages())
def test_a_message_is_given_by_the_code(message: str) -> None:
    assert missing(message) == []


def test_a_message_that_no_code_gives_is_found() -> None:
    assert missing("the hub at URL has gone for lunch") == ["has gone for lunch"]


def test_every_error_is_explained() -> None:
    known = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    explained = set(re.findall(r"^\| `(\w+Error)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert explained >= known
