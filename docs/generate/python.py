"""The page of the Python API: which names it has; mkdocstrings writes the rest from their docstrings."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import p2psync
from docs.generate.prose import NOTE

#: The names in each section of the page, by the module that defines them.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Publishing": (
        "p2psync.trainer.publisher.Publisher",
        "p2psync.trainer.config.TrainerConfig",
        "p2psync.trainer.fsdp.publisher.FsdpPublisher",
    ),
    "Subscribing": (
        "p2psync.actor.subscriber.Subscriber",
        "p2psync.actor.node.ActorConfig",
        "p2psync.actor.node.ActorNode",
        "p2psync.protocol.versions.Position",
    ),
    "Rollouts": (
        "p2psync.trainer.rollouts.Rollouts",
        "p2psync.trainer.rollouts.RemoteRollouts",
        "p2psync.trainer.ledger.config.LedgerConfig",
        "p2psync.actor.work_queue.WorkQueue",
    ),
    "Errors": ("p2psync.errors",),
    "Events": ("p2psync.observe.events",),
}
INTRO = """# Python API

{note}

`import p2psync` gives the names below; each is loaded when it is first used, so the import itself is cheap and needs no
torch. `Publisher`, `FsdpPublisher` and `Subscriber` need the extra `torch`.

Each page entry is the docstring of the code. Settings of the two configurations stand also in
[configuration](configuration.md#settings-in-python).
"""


def _public() -> list[str]:
    """The full names of what `p2psync` imports but for errors, read from its source: some need other packages."""
    tree = ast.parse(Path(p2psync.__file__ or "").read_text(encoding="utf-8"))
    modules = {
        alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    ours = {name: module for name, module in modules.items() if module.startswith("p2psync.")}
    return [f"{module}.{name}" for name, module in sorted(ours.items()) if module != "p2psync.errors"]


def python_page() -> str:
    """docs/reference/python-api.md."""
    known = {name for names in SECTIONS.values() for name in names}
    sections = {title: [*names] for title, names in SECTIONS.items()}
    if more := [name for name in _public() if name not in known]:
        sections["Also in `p2psync`"] = more
    parts = [INTRO.format(note=NOTE).rstrip()]
    for title, names in sections.items():
        parts.append(f"## {title}")
        parts += [f"::: {name}" for name in names if _exists(name)]
    return "\n\n".join(parts) + "\n"


def _exists(name: str) -> bool:
    """True for a full name that is there. Raises `LookupError` if it is not: a page without it would look whole.

    Sources are read and not imported: some need other packages.
    """
    module, _, last = name.rpartition(".")
    place = importlib.util.find_spec(name if last.islower() else module)
    source = Path(place.origin).read_text(encoding="utf-8") if place is not None and place.origin else ""
    if not last.islower() and not re.search(rf"^(class|def) {last}\b", source, re.MULTILINE):
        raise LookupError(f"{name} is not there: name it in docs/generate/python.py as the code does")
    return True
