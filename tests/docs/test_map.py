"""The map of the swarm: every function that it names exists in the file that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (?P<question>.+\?) \| `(?P<file>[^`]+)` \| `(?P<function>[^`]+)` \|$", re.MULTILINE)
ROWS = [match.group("file", "function") for match in ROW.finditer((ROOT / "docs/contributing/map.md").read_text())]


def functions(path: Path) -> set[str]:
    """The functions of a module, and those of its classes as Class.function."""
    tree = ast.parse(path.read_text())
    methods = {
        f"{node.name}.{part.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef)
    }
    return methods | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "function"), ROWS, ids=[function for _, function in ROWS])
def test_a_function_of_the_map_exists(file: str, function: str) -> None:
    assert function in functions(ROOT / file)


def test_the_map_has_all_its_rows() -> None:
    assert len(ROWS) >= 20
