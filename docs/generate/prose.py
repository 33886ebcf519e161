"""Docstrings and values as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

#: Stands at the head of every generated page.
NOTE = "<!-- Written by `python -m docs.generate`; change the code, not this page. -->"


def cell(text: str) -> str:
    """Text for one cell of a table, on one line."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def doc(thing: object) -> str:
    """The docstring of a class or function, its lines joined to paragraphs."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))


def fields(kind: type) -> dict[str, str]:
    """Returns what a class's docstring says of each field, by name.

    It says so a line for each, `name: meaning [default]`, or in sentences, `one, two: meaning.`
    """
    lines = inspect.cleandoc(kind.__doc__ or "").splitlines()
    names = set(inspect.get_annotations(kind))
    alone = {line.split(":", 1)[0]: line.split(":", 1)[1] for line in lines if line.split(":", 1)[0] in names}
    if len(alone) > len(names) / 2:
        return {name: re.sub(r"\s*\[[^\[\]]*\]$", "", meaning.strip()) for name, meaning in alone.items()}
    text = doc(kind)
    said: dict[str, str] = {}
    found = list(re.finditer(r"(?:^|(?<=[.;] )|(?<=\n))([a-z_][\w]*(?:, [a-z_]\w*)*): ", text))
    for match, following in zip(found, [*found[1:], None], strict=True):
        meaning = text[match.end() : following.start() if following else len(text)]
        for name in match.group(1).split(", "):
            said[name] = " ".join(meaning.split()).rstrip(";").strip()
    return said
