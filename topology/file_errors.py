"""What is wrong with a topology file, by the name of its table, with the choices that there are."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping

import msgspec


def explain(raw: object, tables: Mapping[str, type[msgspec.Struct]], error: Exception) -> str:
    """One line on the first table that is wrong; the error's own words where none of these tables is.

    raw: the file, decoded without types. tables: the type of each kind of table, which stand by name or in a list.
    """
    for where, kind, table in _tables(raw, tables):
        try:
            msgspec.convert(table, kind)
        except msgspec.ValidationError as wrong:
            return f"{where}: {_plain(str(wrong), kind)}"
    return _plain(str(error), None)


def _tables(
    raw: object, tables: Mapping[str, type[msgspec.Struct]]
) -> Iterator[tuple[str, type[msgspec.Struct], object]]:
    """(how people call it, its type, what stands there) of each table of the file."""
    for name, kind in tables.items():
        found = raw.get(name) if isinstance(raw, dict) else None
        if isinstance(found, dict):
            yield from ((f"[{name}.{key}]", kind, table) for key, table in found.items())
        elif isinstance(found, list):
            yield from ((f"[[{name}]] number {i + 1}", kind, table) for i, table in enumerate(found))


def _plain(text: str, kind: type[msgspec.Struct] | None) -> str:
    """msgspec's words, with a field's name for its path, and what there is to choose from."""
    message, _, place = text.partition(" - at ")
    field = place.strip("`").rpartition(".")[2] if "." in place else ""
    hints = typing.get_type_hints(kind) if kind is not None else {}
    said = f"{field}: {message}" if field else message
    if "unknown field" in message and hints:
        return f"{said}; choose of {', '.join(hints)}"
    if "Invalid enum value" in message and field in hints:
        return f"{said}; choose of {', '.join(map(str, typing.get_args(hints[field])))}"
    return said
