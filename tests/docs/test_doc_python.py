"""Every block of Python in the pages compiles, and its imports from p2psync exist."""

from __future__ import annotations

import ast
import importlib
from types import ModuleType

import pytest
from pages import Block, all_pages, blocks

BLOCKS = [block for path in all_pages() for block in blocks(path) if block.language in ("python", "py")]


def has(module: ModuleType, name: str) -> bool:
    """Returns whether a module offers a name, or its import of that name fails for want of a package."""
    try:
        return hasattr(module, name)
    except ImportError:
        return True


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_compiles_and_its_imports_exist(block: Block) -> None:
    tree = ast.parse(block.text, block.name)
    compile(tree, block.name, "exec")
    missing = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "p2psync":
                    importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "p2psync":
            module = importlib.import_module(node.module or "")
            missing += [alias.name for alias in node.names if not has(module, alias.name)]
    assert missing == []


def test_names_of_p2psync_are_imported_where_a_block_uses_them() -> None:
    public = ("Publisher", "Subscriber", "FsdpPublisher", "TrainerConfig", "ActorConfig", "Rollouts")
    for block in BLOCKS:
        used = {node.id for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Name)}
        for name in used.intersection(public):
            assert f" {name}" in "".join(line for line in block.text.splitlines() if "import" in line), block.name
