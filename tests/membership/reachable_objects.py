"""Finds everything that an object references, so that tests notice tables that only grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

_CODE = (type, Enum, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_FIGURES = (int, float, bool, type(None))


def entries(root: object) -> int:
    """Counts the entries of all dictionaries, lists, sets, tuples and deques reachable from `root`, each once."""
    tables = (thing for thing in reachable(root) if isinstance(thing, Mapping | list | tuple | set | frozenset | deque))
    return sum(len(table) for table in tables)


def names(root: object) -> set[str | bytes]:
    """Returns the strings and byte strings reachable from `root`."""
    return {thing for thing in reachable(root) if isinstance(thing, str | bytes)}


def reachable(root: object) -> Iterator[object]:
    """Yields each object reachable from `root` by attributes and entries once, except code and numbers."""
    seen: set[int] = set()
    kept: list[object] = []  # so that no other object gets the place of one that was seen
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, (*_CODE, *_FIGURES)) or id(thing) in seen:
            continue
        seen.add(id(thing))
        kept.append(thing)
        yield thing
        if isinstance(thing, str | bytes | bytearray):
            continue
        if isinstance(thing, Mapping):
            waiting += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            waiting += thing
        else:
            waiting += _attributes(thing)


def _attributes(thing: object) -> list[object]:
    found = set(getattr(thing, "__dict__", ()))
    for kind in type(thing).__mro__:
        slots = getattr(kind, "__slots__", ())
        found.update([slots] if isinstance(slots, str) else slots)
    return [getattr(thing, name) for name in found if hasattr(thing, name)]
