"""The map of the swarm names functions that exist and say what they decide; docstrings and pages beside it likewise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "p2psync"
ROW = re.compile(r"^\| (?P<question>.+\?) \| (?P<answer>`.+`) \|$", re.MULTILINE)
#: One file of an answer, and its functions.
PART = re.compile(r"`(?P<file>[\w/]+\.py)`: (?P<functions>`[\w.]+`(?:, `[\w.]+`)*)")
ANSWERS = {row["question"]: row["answer"] for row in ROW.finditer((ROOT / "docs/contributing/map.md").read_text())}
LAWS = [ROOT / f"docs/concepts/{name}.md" for name in ("dissemination", "measurement")]
#: In a docstring: `Class.name`, or `Class`.
REFERENCE = re.compile(r"`(?P<owner>[A-Z][a-z]\w+)(?:\.(?P<name>\w+))?`")


@cache
def functions(file: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module, and those of its classes as Class.function."""
    tree = ast.parse((PACKAGE / file).read_text())
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef):
            found |= {f"{owner.name}.{part.name}": part for part in owner.body if isinstance(part, ast.FunctionDef)}
    return found


def parts(answer: str) -> Iterator[tuple[str, list[str]]]:
    """Each file of an answer, and its functions."""
    for part in PART.finditer(answer):
        yield part["file"], re.findall(r"`([\w.]+)`", part["functions"])


@cache
def classes() -> dict[str, set[str]]:
    """The names that each class of the package defines: methods, fields and attributes."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for owner in ast.walk(ast.parse(path.read_text())):
            if isinstance(owner, ast.ClassDef):
                names = found.setdefault(owner.name, set())
                for node in ast.walk(owner):
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                        names.add(node.name)
                    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        names.add(node.id)
                    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                        names.add(node.attr)
    return found


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a module, its classes and functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_stands_in_documented_functions_of_two_files_at_most(question: str) -> None:
    answer = list(parts(ANSWERS[question]))
    assert PART.sub("", ANSWERS[question]) in ("", "; "), "one file, or two"
    for file, names in answer:
        assert [name for name in names if name not in functions(file)] == []
        assert [name for name in names if not ast.get_docstring(functions(file)[name])] == []


def test_the_map_has_all_its_rows() -> None:
    rows = re.findall(r"^\| [^*|]+ \| `.+$", (ROOT / "docs/contributing/map.md").read_text(), re.MULTILINE)
    assert len(rows) == len(ANSWERS) >= 35, "a row that the pattern does not match is not checked"


@pytest.mark.parametrize("folder", ["control", "exchange", "synchronizer"])
def test_the_names_to_which_docstrings_refer_exist(folder: str) -> None:
    known = classes()
    missing = [
        f"{path.name}: {found[0]}"
        for path in sorted((PACKAGE / "swarm" / folder).glob("*.py"))
        for text in docstrings(path)
        for found in REFERENCE.finditer(text)
        if found["owner"] not in known or (found["name"] or "__init__") not in known[found["owner"]] | {"__init__"}
    ]
    assert missing == []


@pytest.mark.parametrize("page", LAWS, ids=lambda page: page.stem)
def test_the_files_and_settings_that_a_law_names_exist(page: Path) -> None:
    text, files = page.read_text(), {path.name for path in (PACKAGE / "swarm").rglob("*.py")}
    assert [name for name in re.findall(r"`(\w+\.py)`", text) if name not in files] == []
    assert [name for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", text) if name not in classes()[owner]] == []
