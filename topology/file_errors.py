"""Explains the errors of a topology file: the table, the field, and the valid choices."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping

import msgspec


def explain(raw: object, tables: Mapping[str, type[msgspec.Struct]], error: Exception) -> str:
    """Returns one line on the first malformed table; the error's own text if none of these tables is.

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
    """Yields (its name for people, its type, its content) for each table of the file."""
    for name, kind in tables.items():
        found = raw.get(name) if isinstance(raw, dict) else None
        if isinstance(found, dict):
            yield from ((f"[{name}.{key}]", kind, table) for key, table in found.items())
        elif isinstance(found, list):
            yield from ((f"[[{name}]] number {i + 1}", kind, table) for i, table in enumerate(found))


def _plain(text: str, kind: type[msgspec.Struct] | None) -> str:
    """Returns msgspec's message with a field's name instead of its path, and the valid choices."""
    message, _, place = text.partition(" - at ")
    field = place.strip("`").rpartition(".")[2] if "." in place else ""
    hints = typing.get_type_hints(kind) if kind is not None else {}
    said = f"{field}: {message}" if field else message
    if "unknown field" in message and hints:
        return f"{said}; choose of {', '.join(hints)}"
    if "Invalid enum value" in message and field in hints:
        return f"{said}; choose of {', '.join(map(str, typing.get_args(hints[field])))}"
    return said
