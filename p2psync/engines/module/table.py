"""The table of a torch module: the published names, and for each the storage that the module computes with.

Invariant: every entry of `state_dict()` is a view of a registered parameter or buffer, or extra state, which is written
through the module's own interface; no two rows share a byte; together the rows hold everything that is registered and
persistent. A module that breaks it is refused, with the name of the tensor. So the bits that are read, written and
digested are those that `forward` computes with. Publisher, subscriber, resident and sharded publishing all take their
tensors from here.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn
from torch.nn.utils import parametrize

from p2psync.delta.tensors import TensorSpec
from p2psync.engines.module.memory_maps import first_unwritable
from p2psync.engines.module.names import (
    NameMap,
    Names,
    RegisteredTensor,
    depends_on_state,
    inner_key,
    module_tree,
    registered_tensors,
)
from p2psync.engines.module.storage_views import Relation, StorageView, relation
from p2psync.engines.module.table_rows import StorageKey, TableEntry, drop_aliases, index_by_spec, storage_key
from p2psync.engines.module.tensor_refusals import module_refusal, storage_view, tensor_refusal
from p2psync.errors import ModuleError

__all__ = ["LiveTable", "ModuleTable", "Names", "module_rows", "module_specs", "module_table", "tensor_table"]

_EXTRA = "_extra_state"
#: Returns the part of a parameter or buffer that this process holds, from its name and tensor. Raises `ModuleError`.
LocalShardOf = Callable[[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """A registered tensor and where it lay. registered: the parameter or buffer. view: None if it has no bits."""

    registered: RegisteredTensor
    tensor: torch.Tensor
    address: int
    dtype: torch.dtype
    view: StorageView | None

    def is_same(self) -> bool:
        """Returns whether the module still has that tensor, of that dtype and shape, at that address."""
        tensor = self.registered.tensor()
        return tensor is self.tensor and tensor.dtype == self.dtype and storage_view(tensor) == self.view


@dataclass(frozen=True)
class ModuleTable:
    """The rows of a module at one time.

    entries: sorted by spec. names: the row's name for each state_dict key, with and without wrappers; a tied key has
    the row of the tensor that it is tied to. caches_parametrizations: whether the module has parametrizations.
    """

    entries: Mapping[TensorSpec, TableEntry]
    names: Mapping[str, str]
    caches_parametrizations: bool = False
    _addresses: list[TensorAddress] = field(default_factory=list)

    @property
    def rows(self) -> dict[TensorSpec, torch.Tensor]:
        """The tensors by spec, sorted. Extra state is a copy."""
        return {spec: entry.tensor for spec, entry in self.entries.items()}

    @cached_property
    def _address_of(self) -> dict[int, TensorAddress]:
        return {id(known.tensor): known for known in self._addresses}

    def check_writable(self) -> None:
        """Raises `ModuleError` for a tensor in memory that cannot be written, such as a file mapped for reading."""
        entries = [entry for entry in self.entries.values() if entry.owner is None and entry.local.device.type == "cpu"]
        views = [(entry.key, entry.view.start, entry.view.stop) for entry in entries if entry.view is not None]
        if (key := first_unwritable(views)) is not None:
            raise ModuleError(f"{key}: its memory is mapped for reading only: replace it with .clone()")

    def check_in_place(self) -> None:
        """Raises `ModuleError` if the module reads other memory now. O(tensors), reads no bits."""
        for known in self._addresses:
            if known.registered.tensor() is not known.tensor or known.tensor.data_ptr() != known.address:
                raise ModuleError(
                    f"{known.registered.name} was replaced or moved while a version was staged: stage it again"
                )

    def with_names(self, names: Collection[str]) -> ModuleTable:
        """Returns a table of the rows with these names."""
        entries = {spec: entry for spec, entry in self.entries.items() if entry.name in names}
        return replace(self, entries=entries)

    def with_rows(self, other: ModuleTable) -> ModuleTable:
        """Returns a table of the rows of both tables, which share no name."""
        entries = {**self.entries, **other.entries}
        return replace(self, entries={spec: entries[spec] for spec in sorted(entries)})

    def is_current(self, spec: TensorSpec) -> bool:
        """Returns whether a row is a registered tensor that has not moved."""
        known = self._address_of.get(self.entries[spec].registered)
        return known is not None and known.is_same()

    def is_same(self) -> bool:
        """Returns whether every registered tensor is the same, at the same address."""
        return all(known.is_same() for known in self._addresses)

    def clear_caches(self) -> None:
        """Drops the values that `torch.nn.utils.parametrize.cached` keeps, which were computed from these tensors."""
        if self.caches_parametrizations:
            parametrize._cache.clear()


def module_table(module: nn.Module, names: Names | None = None, *, local: LocalShardOf | None = None) -> ModuleTable:
    """Returns the table of a module. Calls its `state_dict`; reads no bits.

    names: see `Names`. local: returns the part of a sharded tensor that this process holds; without it sharded tensors
    are refused. Raises `ModuleError`, which names the entry and says what to do.
    """
    if not isinstance(module, nn.Module):
        raise ModuleError(f"{type(module).__name__}: give a torch.nn.Module")
    return _TableBuilder(module, names, local).table()


def tensor_table(tensors: Mapping[str, torch.Tensor]) -> ModuleTable:
    """Returns the table of tensors that belong to no module, under their own names. Raises `ModuleError`."""
    found = [
        TableEntry(name, name, tensor.detach(), tensor.detach(), _view(name, tensor))
        for name, tensor in tensors.items()
    ]
    listed, _ = drop_aliases(found)
    return ModuleTable(index_by_spec(listed), {entry.key: entry.name for entry in listed})


def module_rows(
    module: nn.Module | Mapping[str, torch.Tensor], names: Names | None = None
) -> dict[TensorSpec, torch.Tensor]:
    """Returns the tensors of a module, or of a mapping, by spec, sorted: see `module_table`."""
    if isinstance(module, nn.Module):
        return module_table(module, names).rows
    return tensor_table(module).rows


def module_specs(module: nn.Module, names: Names | None = None) -> list[TensorSpec]:
    """Returns the specs of `module_rows`, sorted."""
    return list(module_rows(module, names))


def table_source(
    module: nn.Module | Mapping[str, torch.Tensor] | Callable[[], ModuleTable], names: Names | None = None
) -> Callable[[], ModuleTable]:
    """Returns a function that returns the current table of a module, or of named tensors. Raises `ModuleError`."""
    if isinstance(module, nn.Module):
        return LiveTable(module, names)
    if not isinstance(module, Mapping):
        return module
    table = tensor_table(module)
    return lambda: table


class LiveTable:
    """The table of a module over time: follows tensors that move, refuses a module whose tensors become others."""

    def __init__(self, module: nn.Module, names: Names | None = None) -> None:
        """Raises `ModuleError`."""
        self._module, self._names = module, names
        self._table = module_table(module, names)
        # Not the first table itself: it would keep memory alive that the module no longer uses.
        self._specs, self._rows = list(self._table.entries), self._table.names
        self._registered_ids = self._registered()
        self._always_rebuild = any(entry.owner is not None for entry in self._table.entries.values()) or any(
            depends_on_state(part) for part in module.modules()
        )

    def __call__(self) -> ModuleTable:
        """Returns the current table, in O(tensors). Raises `ModuleError` if names, dtypes, shapes or ties changed."""
        registered_ids = self._registered()
        if self._always_rebuild or registered_ids != self._registered_ids or not self._table.is_same():
            table = module_table(self._module, self._names)
            self._require_same(list(table.entries), table.names)
            self._table, self._registered_ids = table, registered_ids
        return self._table

    def _require_same(self, specs: list[TensorSpec], names: Mapping[str, str]) -> None:
        if specs == self._specs and names == self._rows:
            return
        other = next(iter(sorted(set(specs) ^ set(self._specs))), None)
        if other is not None:
            what = f"{other.name} ({other.dtype}, {other.shape})"
        else:
            what = f"the tie of {next((key for key in names if names[key] != self._rows.get(key)), 'a parameter')}"
        raise ModuleError(f"the module's tensors are no longer those it had at first ({what}): make a new one for it")

    def _registered(self) -> list[tuple[int, ...]]:
        """Returns the ids of all submodules and of what each has registered."""
        return [
            (id(part), *map(id, part._parameters.values()), *map(id, part._buffers.values()))
            for part in self._module.modules()
        ]


class _TableBuilder:
    """Builds the table of one module."""

    def __init__(self, module: nn.Module, names: Names | None, local: LocalShardOf | None) -> None:
        self._module = module
        self._sharded = local is not None
        self._local = local or (lambda name, tensor: tensor)
        self._tree = module_tree(module)
        self._nodes = list(self._tree)
        self._registered_tensors = list(registered_tensors(self._nodes))
        self._name_map = NameMap(names)

    def table(self) -> ModuleTable:
        self._refuse_sharding()
        self._refuse_tensors()
        state = self._state()
        self._index()
        entries: list[TableEntry] = []
        keys: dict[str, TableEntry] = {}
        for key, value in state.items():
            inner = inner_key(key, self._tree)
            entry = self._entry(key, inner, value)
            if entry is not None:
                entries.append(entry)
                keys[key] = keys[inner] = entry
        listed, row_of = drop_aliases(entries)
        self._refuse_gaps(entries, listed)
        self._name_map.check()
        if not listed:
            raise ModuleError("the module has no parameters or buffers: there is nothing to publish or keep live")
        return ModuleTable(
            index_by_spec(listed),
            {key: row_of[id(entry)].name for key, entry in keys.items()},
            any(isinstance(node.module, parametrize.ParametrizationList) for node in self._nodes),
            [] if self._sharded else list(self._addresses()),
        )

    def _state(self) -> dict[str, object]:
        try:
            return self._module.state_dict(keep_vars=True) if self._sharded else self._module.state_dict()
        except Exception as error:  # of the module's own code
            raise ModuleError(
                f"state_dict() fails ({type(error).__name__}: {_one_line(error)}): fix it first"
            ) from error

    def _refuse_sharding(self) -> None:
        for node in self._nodes:
            reason = module_refusal(node.module, dtensors=self._sharded)
            _require(node.prefix.rstrip(".") or type(node.module).__name__, reason)

    def _refuse_tensors(self) -> None:
        for registered in self._registered_tensors:
            tensor = registered.tensor()
            if registered.used and tensor is not None:
                held = self._local(registered.name, tensor)
                _require(registered.key, tensor_refusal(held, registered.owner))

    def _index(self) -> None:
        """Indexes the registered tensors, after `state_dict`, which may have changed the module's state."""
        self._by_name: dict[str, RegisteredTensor] = {}
        self._by_storage: dict[StorageKey, list[RegisteredTensor]] = {}
        self._owners: dict[str, nn.Module] = {}
        for node in self._nodes:
            self._owners[node.inner + _EXTRA] = node.module  # the innermost: it comes last
        for registered in self._registered_tensors:
            if registered.used or registered.name not in self._by_name:
                self._by_name[registered.name] = registered
            held = self._held(registered)
            if held is not None and held.numel():
                self._by_storage.setdefault(storage_key(held), []).append(registered)

    def _held(self, registered: RegisteredTensor) -> torch.Tensor | None:
        tensor = registered.tensor()
        if tensor is None or (not registered.used and tensor_refusal(tensor, registered.owner)):
            return None
        return self._local(registered.name, tensor).detach()

    def _entry(self, key: str, inner: str, value: object) -> TableEntry | None:
        """Returns the row of an entry of the state_dict; None for one that is not published."""
        name = self._name_map(key, inner)
        if name is None or _is_stateless(value):
            return None
        if not isinstance(value, torch.Tensor):
            raise ModuleError(
                f"{key}: its state_dict holds a {type(value).__name__}, which cannot be published: make it a buffer, "
                f"or leave it out with names={{{inner!r}: None}}"
            )
        registered = self._by_name.get(inner)
        tensor = registered.tensor() if registered is not None else None
        if (
            registered is not None
            and tensor is not None
            and (not value.numel() or self._same_storage(registered, tensor, value))
        ):
            held = self._local(registered.name, value).detach()
            return (
                TableEntry(name, key, value.detach(), held, storage_view(held), id(tensor)) if registered.used else None
            )
        _require(key, tensor_refusal(value))
        if not value.numel():
            return None
        value, view = value.detach(), storage_view(value)
        holders = [s for s in self._by_storage.get(storage_key(value), []) if self._contains(s, view)]
        if holders:
            return TableEntry(name, key, value, value, view) if any(s.used for s in holders) else None
        return TableEntry(name, key, value, value, view, owner=self._owner(key, inner))

    def _same_storage(self, registered: RegisteredTensor, tensor: torch.Tensor, value: torch.Tensor) -> bool:
        if not registered.used:
            return tensor.data_ptr() == value.data_ptr()
        here, there = self._local(registered.name, tensor), self._local(registered.name, value)
        return tensor.shape == value.shape and storage_view(here) == storage_view(there) and here.dtype == there.dtype

    def _contains(self, registered: RegisteredTensor, view: StorageView | None) -> bool:
        held = self._held(registered)
        whole = storage_view(held) if held is not None else None
        return whole is not None and view is not None and relation(whole, view) is Relation.INSIDE

    def _owner(self, key: str, inner: str) -> nn.Module:
        """Returns the module whose extra state an entry is, if no registered tensor holds it."""
        owner = self._owners.get(inner)
        if owner is None:
            raise ModuleError(
                f"{key}: state_dict() hands out a copy, whose storage no parameter or buffer of the module holds, so "
                "that writing it changes nothing: remove the hook or override that makes it, give the module inside, "
                f"or leave it out with names={{{inner!r}: None}}"
            )
        if self._sharded or type(owner).set_extra_state is nn.Module.set_extra_state:
            raise ModuleError(
                f"{key}: extra state that cannot be written: give {type(owner).__name__} a set_extra_state that takes "
                f"what get_extra_state returns, or leave it out with names={{{inner!r}: None}}"
            )
        return owner

    def _refuse_gaps(self, entries: list[TableEntry], listed: list[TableEntry]) -> None:
        """Raises `ModuleError` for a registered tensor in use that no row holds and no name leaves out."""
        whole = {(entry.local.device, entry.view) for entry in entries}
        named = {entry.registered for entry in entries}
        for registered in self._registered_tensors:
            held = self._held(registered) if registered.used else None
            view = storage_view(held) if held is not None else None
            if held is None or view is None or id(registered.tensor()) in named or (held.device, view) in whole:
                continue
            parts = [e.view for e in listed if e.view is not None and e.local.device == held.device]
            covered = sum(part.nbytes for part in parts if relation(view, part) is Relation.INSIDE)
            inside = any(relation(part, view) is Relation.INSIDE for part in parts)
            if covered < view.nbytes and not inside and self._name_map(registered.key, registered.name) is not None:
                raise ModuleError(
                    f"{registered.key}: the module computes with it, but its state_dict() leaves it out, so that every "
                    "actor would keep its own: let state_dict() list it, or leave it out with "
                    f"names={{{registered.name!r}: None}}"
                )

    def _addresses(self) -> Iterator[TensorAddress]:
        for registered in self._registered_tensors:
            tensor = registered.tensor()
            if registered.used and tensor is not None:
                yield TensorAddress(registered, tensor, tensor.data_ptr(), tensor.dtype, storage_view(tensor))


def _view(name: str, tensor: torch.Tensor) -> StorageView | None:
    _require(name, tensor_refusal(tensor))
    return storage_view(tensor)


def _require(key: str, reason: str) -> None:
    if reason:
        raise ModuleError(f"{key}: {reason}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _is_stateless(value: object) -> bool:
    """Returns whether an entry holds no state: None, or an empty value that is not a tensor."""
    if isinstance(value, io.BytesIO):
        return not value.getbuffer().nbytes
    return value is None or (isinstance(value, Sized) and not isinstance(value, torch.Tensor) and not len(value))
