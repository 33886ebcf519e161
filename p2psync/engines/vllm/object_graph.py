"""Finds every tensor that is reachable from a model: in modules, attention implementations, closures, containers.

A forward pass computes with everything that is reachable from its model. Parameters and buffers are only a part of it:
kernels keep packed copies in closures, attention keeps converted copies in attributes. `ObjectGraph` follows
attributes, slots, containers, bound methods, closures, defaults and partial functions. It does not follow
configurations, process groups, classes, and Python modules. It recognises the key-value cache by its attribute's name.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from operator import is_
from typing import Any, NamedTuple

import torch

#: The attribute of vLLM's layers that holds keys, values and states of requests: no weights.
KV_CACHE_ATTRIBUTE = "kv_cache"
#: Tables of hooks of each module, which are nearly always empty.
_HOOKS = frozenset(
    name for name, value in vars(torch.nn.Module()).items() if name not in ("_parameters", "_buffers", "_modules")
)
_OPAQUE_TYPES = (
    *(str, bytes, bool, int, complex, type, types.ModuleType, Enum),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, torch.layout, torch.memory_format),
)
#: Packages and classes whose objects are not part of the model.
_EXCLUDED_MODULES = (
    "vllm.config",
    "vllm.distributed",
    "torch.distributed",
    "torch._dynamo",
    "torch.fx",
    "logging",
    "_thread",
)
_EXCLUDED_CLASSES = ("PretrainedConfig", "PreTrainedConfig", "VllmConfig")


class Leaf(NamedTuple):
    """A tensor, number or native object, and its full path from the model."""

    path: str
    value: object


class Holder:
    """An object that holds others, and those that it held at the last `refresh`."""

    __slots__ = ("_table", "_values", "object", "path")

    def __init__(self, path: str, holder: object) -> None:
        self.path, self.object = path, holder
        #: The dictionary that holds them, if there is one.
        self._table: dict[Any, object] | None = holder if isinstance(holder, dict) else None
        if self._table is None and not isinstance(holder, _WITHOUT_TABLE) and not any(_slots(holder)):
            self._table = getattr(holder, "__dict__", None)
        self._values = self._contents()

    def changed(self) -> bool:
        """Returns whether it holds other objects now. Cheap: compares identities."""
        now = self._table.values() if self._table is not None else self._contents()
        return len(now) != len(self._values) or not all(map(is_, now, self._values))

    def refresh(self) -> list[tuple[str, object]]:
        """Returns the objects that it holds now, with paths; `changed` compares with this from here on."""
        self._values = self._contents()
        return [(f"{self.path}{name}", value) for name, value in _children(self.object)]

    def _contents(self) -> list[object]:
        if self._table is not None:
            return list(self._table.values())
        return [value for _, value in _children(self.object)]


class ObjectGraph:
    """The objects that are reachable from a model, as of the last refresh of each holder."""

    def __init__(self, root: object) -> None:
        self._seen: dict[int, object] = {}
        self.holders: list[Holder] = []
        self.leaves: list[Leaf] = list(self._follow([("", root)]))

    def new_leaves(self) -> list[Leaf]:
        """Refreshes holders that changed and returns their leaves; adds their objects to the graph."""
        changed = [holder for holder in self.holders if holder.changed()]
        return list(self._follow([child for holder in changed for child in holder.refresh()]))

    def _follow(self, start: Iterable[tuple[str, object]]) -> Iterator[Leaf]:
        queue = deque(start)
        while queue:
            path, value = queue.popleft()
            if is_leaf(value):
                yield Leaf(path, value)
            if id(value) in self._seen or not _is_holder(value):
                continue
            self._seen[id(value)] = value
            holder = Holder(path, value)
            queue.extend(holder.refresh())
            if not isinstance(value, _FIXED):
                self.holders.append(holder)


def is_leaf(value: object) -> bool:
    """Returns whether a value may be computed from weights: tensors, floats, and opaque native objects."""
    return isinstance(value, torch.Tensor | float | torch.ScriptObject)


def _is_holder(value: object) -> bool:
    if value is None or isinstance(value, (float, *_OPAQUE_TYPES)):
        return False
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter) and not vars(value):
        return False
    kind = type(value)
    if isinstance(value, torch.nn.Module):
        return True
    return not (
        kind.__module__.startswith(_EXCLUDED_MODULES)
        or any(base.__name__ in _EXCLUDED_CLASSES for base in kind.__mro__)
    )


#: Types whose objects never come to hold other objects.
_FIXED = (types.MethodType, types.BuiltinFunctionType, tuple, frozenset)
_WITHOUT_TABLE = (*_FIXED, types.FunctionType, functools.partial, list, set, deque)


def _children(holder: object) -> Iterator[tuple[str, object]]:
    """Yields the objects that an object holds, by name. A snapshot, since another thread may be computing."""
    if isinstance(holder, dict):
        for key, value in list(holder.items()):
            if key != KV_CACHE_ATTRIBUTE:
                yield f"[{key!r}]" if not isinstance(key, str) else f".{key}", value
    elif isinstance(holder, list | tuple | set | frozenset | deque):
        yield from ((f"[{index}]", value) for index, value in enumerate(list(holder)))
    elif isinstance(holder, functools.partial):
        yield from ((".func", holder.func), (".args", holder.args), (".keywords", holder.keywords))
    elif isinstance(holder, types.FunctionType):
        for name, cell in zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True):
            yield f".{name}", _cell(cell)
        yield from ((".defaults", holder.__defaults__), (".kwdefaults", holder.__kwdefaults__))
    elif isinstance(holder, types.MethodType | types.BuiltinFunctionType):
        yield ".self", getattr(holder, "__self__", None)
    else:
        yield from _attributes(holder)


def _attributes(holder: object) -> Iterator[tuple[str, object]]:
    inner = ("_parameters", "_buffers", "_modules") if isinstance(holder, torch.nn.Module) else ()
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        if name == KV_CACHE_ATTRIBUTE or (name in _HOOKS and not value):
            continue
        if name in inner:
            yield "", value  # so that a path reads as the parameter's name does
        else:
            yield f".{name}", value
    yield from ((f".{name}", getattr(holder, name, None)) for name in _slots(holder))


def _slots(holder: object) -> Iterator[str]:
    for kind in type(holder).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__", KV_CACHE_ATTRIBUTE):
                yield name


def _cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
