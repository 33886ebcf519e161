"""How much an object holds: entries of all tables that it leads to, so that one that only grows is seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

_LEAVES = (
    str,
    bytes,
    int,
    float,
    bool,
    type(None),
    type,
    Enum,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
)


def entries(root: object) -> int:
    """Entries of dictionaries, lists, sets, tuples and deques that can be reached from `root`, each once."""
    seen: set[int] = set()
    waiting = [root]
    found = 0
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, _LEAVES) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Mapping):
            found += len(thing)
            waiting += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            found += len(thing)
            waiting += thing
        else:
            waiting += _attributes(thing)
    return found


def _attributes(thing: object) -> list[object]:
    names = set(getattr(thing, "__dict__", ()))
    for kind in type(thing).__mro__:
        slots = getattr(kind, "__slots__", ())
        names.update([slots] if isinstance(slots, str) else slots)
    return [getattr(thing, name) for name in names if hasattr(thing, name)]
