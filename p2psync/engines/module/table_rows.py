"""The rows of a module's table: every byte of the module lies in one row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from p2psync.delta.tensors import TensorSpec
from p2psync.engines.module.live_tensors import shippable_spec
from p2psync.engines.module.storage_views import Relation, StorageView, relation
from p2psync.errors import EngineError, ModuleError

#: A device, and the address of a storage there.
StorageKey = tuple[torch.device, int]


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One row. name: the published name. key: the state_dict key.

    tensor: the whole tensor. local: the part of it that this process holds. view: where that part lies, None if it is
    empty. registered: id of the parameter or buffer that this row is, 0 if it is a view of one, or extra state. owner:
    the module whose extra state this row is.
    """

    name: str
    key: str
    tensor: torch.Tensor
    local: torch.Tensor
    view: StorageView | None
    registered: int = 0
    owner: nn.Module | None = None


def drop_aliases(entries: list[TableEntry]) -> tuple[list[TableEntry], dict[int, TableEntry]]:
    """Drops entries whose bytes all lie in another entry.

    Returns the entries that remain, in order, and for each entry, by its id, the one that holds its bytes. Raises
    `ModuleError` for entries that overlap only in part, or that have the same name.
    """
    row_of = {id(entry): entry for entry in entries}
    groups: dict[StorageKey, list[TableEntry]] = {}
    first: dict[int, TableEntry] = {}
    for entry in entries:
        if entry.registered and entry.tensor.numel() and first.setdefault(entry.registered, entry) is not entry:
            row_of[id(entry)] = first[entry.registered]  # tied: a rank may hold no byte of a shard, so ids tell
        elif entry.view is not None and entry.owner is None:
            groups.setdefault(storage_key(entry.local), []).append(entry)
    for group in groups.values():
        if len(group) > 1:
            _merge(group, row_of)
    for entry in entries:
        row_of[id(entry)] = row_of[id(row_of[id(entry)])]
    listed = [entry for entry in entries if row_of[id(entry)] is entry]
    used: dict[str, str] = {}
    for entry in listed:
        if entry.name in used:
            raise ModuleError(
                f"two tensors of the module are named {entry.name!r} ({used[entry.name]} and {entry.key}): correct the "
                "names given"
            )
        used[entry.name] = entry.key
    return listed, row_of


def _merge(group: list[TableEntry], row_of: dict[int, TableEntry]) -> None:
    """Finds the aliases among the entries of one storage, in order of their addresses."""

    def order(entry: TableEntry) -> tuple[int, int]:
        assert entry.view is not None
        return entry.view.start, -entry.view.nbytes

    alias_of: dict[int, TableEntry] = {}
    open_: list[TableEntry] = []
    for entry in sorted(group, key=order):
        here = entry.view
        assert here is not None
        open_ = [other for other in open_ if other.view is not None and other.view.stop > here.start]
        for other in list(open_):
            there = other.view
            assert there is not None
            if relation(there, here) is Relation.INSIDE:
                alias_of[id(entry)] = other
                break
            if relation(here, there) is Relation.INSIDE:
                alias_of[id(other)] = entry
                open_.remove(other)
            elif relation(there, here) is Relation.OVERLAP:
                raise ModuleError(
                    f"{entry.key} and {other.key} share a part of their memory: give each its own, with .clone()"
                )
        else:
            open_.append(entry)
    for entry in group:
        holder = entry
        while id(holder) in alias_of:
            holder = alias_of[id(holder)]
        row_of[id(entry)] = holder


def index_by_spec(entries: list[TableEntry]) -> dict[TensorSpec, TableEntry]:
    """Returns the entries by spec, sorted. Raises `ModuleError` for dtypes that safetensors does not have."""
    found: dict[TensorSpec, TableEntry] = {}
    for entry in entries:
        try:
            found[shippable_spec(entry.name, entry.tensor, entry.key)] = entry
        except EngineError as error:
            raise ModuleError(str(error)) from None
    return {spec: found[spec] for spec in sorted(found)}


def storage_key(tensor: torch.Tensor) -> StorageKey:
    """Returns the device and storage address of a plain tensor."""
    return tensor.device, tensor.untyped_storage().data_ptr()
