"""What of a torch module is published: names, and for each the storage that the module computes with.

The law: every entry of `state_dict()` is a view of a registered parameter or buffer (or extra state, which is written
through the module's own interface), no two rows share a byte, and together the rows hold all that is registered and
persistent. What breaks it is refused by name. So the bits that are read, written and digested are those that `forward`
computes with. Publisher, subscriber, resident and sharded publishing all take their tensors from here.
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
#: Gives the part of a parameter or buffer that is held here, from its name and the tensor. Raises `ModuleError`.
LocalShardOf = Callable[[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """A registered tensor and where it lay. view: None if it has no bits."""

    slot: RegisteredTensor
    tensor: torch.Tensor
    address: int
    dtype: torch.dtype
    view: StorageView | None

    def is_same(self) -> bool:
        """Whether the module has that tensor, of that dtype and shape, at that address."""
        tensor = self.slot.tensor()
        return tensor is self.tensor and tensor.dtype == self.dtype and storage_view(tensor) == self.view


@dataclass(frozen=True)
class ModuleTable:
    """The rows of a module, as it is now.

    entries: sorted by spec. names: the row of each state_dict key, as it is and with wrappers looked through; a tied
    key has the row of the tensor that it is tied to.
    """

    entries: Mapping[TensorSpec, TableEntry]
    names: Mapping[str, str]
    caches_parametrizations: bool = False
    _places: list[TensorAddress] = field(default_factory=list)

    @property
    def rows(self) -> dict[TensorSpec, torch.Tensor]:
        """The tensors, by sorted specs. Extra state is a copy."""
        return {spec: entry.tensor for spec, entry in self.entries.items()}

    @cached_property
    def _place_of(self) -> dict[int, TensorAddress]:
        return {id(place.tensor): place for place in self._places}

    def check_writable(self) -> None:
        """Raises `ModuleError` for a tensor in memory that cannot be written, such as a file mapped to be read."""
        entries = [entry for entry in self.entries.values() if entry.owner is None and entry.local.device.type == "cpu"]
        views = [(entry.key, entry.view.start, entry.view.stop) for entry in entries if entry.view is not None]
        if (key := first_unwritable(views)) is not None:
            raise ModuleError(f"{key}: its memory is mapped for reading only: replace it with .clone()")

    def check_in_place(self) -> None:
        """Raises `ModuleError` if the module reads from other memory now: O(tensors), reads no bits."""
        for place in self._places:
            if place.slot.tensor() is not place.tensor or place.tensor.data_ptr() != place.address:
                raise ModuleError(f"{place.slot.name} was replaced or moved while a version was staged: stage it again")

    def only(self, names: Collection[str]) -> ModuleTable:
        """The rows of these names."""
        entries = {spec: entry for spec, entry in self.entries.items() if entry.name in names}
        return replace(self, entries=entries)

    def with_rows(self, other: ModuleTable) -> ModuleTable:
        """The rows of both tables, which have no name in common."""
        entries = {**self.entries, **other.entries}
        return replace(self, entries={spec: entries[spec] for spec in sorted(entries)})

    def is_current(self, spec: TensorSpec) -> bool:
        """Whether a row is a registered tensor that the module reads where it did."""
        place = self._place_of.get(self.entries[spec].registered)
        return place is not None and place.is_same()

    def is_same(self) -> bool:
        """Whether every registered tensor is where it was, as it was."""
        return all(place.is_same() for place in self._places)

    def forget_caches(self) -> None:
        """Drop what `torch.nn.utils.parametrize.cached` keeps of values computed from these tensors."""
        if self.caches_parametrizations:
            parametrize._cache.clear()


def module_table(module: nn.Module, names: Names | None = None, *, local: LocalShardOf | None = None) -> ModuleTable:
    """The table of a module. Calls its `state_dict`; reads no bits.

    names: see `Names`. local: gives the part of a sharded tensor that is held here; without it shards are refused.
    Raises `ModuleError`, which names the entry and says what to do.
    """
    if not isinstance(module, nn.Module):
        raise ModuleError(f"{type(module).__name__}: give a torch.nn.Module")
    return _Resolver(module, names, local).table()


def tensor_table(tensors: Mapping[str, torch.Tensor]) -> ModuleTable:
    """The table of tensors that belong to no module, under their own names. Raises `ModuleError`."""
    found = [
        TableEntry(name, name, tensor.detach(), tensor.detach(), _view(name, tensor))
        for name, tensor in tensors.items()
    ]
    listed, _ = drop_aliases(found)
    return ModuleTable(index_by_spec(listed), {entry.key: entry.name for entry in listed})


def module_rows(
    module: nn.Module | Mapping[str, torch.Tensor], names: Names | None = None
) -> dict[TensorSpec, torch.Tensor]:
    """The tensors of a module, or of a mapping, by sorted specs: see `module_table`."""
    if isinstance(module, nn.Module):
        return module_table(module, names).rows
    return tensor_table(module).rows


def module_specs(module: nn.Module, names: Names | None = None) -> list[TensorSpec]:
    """The specs of `module_rows`, sorted."""
    return list(module_rows(module, names))


def table_source(
    module: nn.Module | Mapping[str, torch.Tensor] | Callable[[], ModuleTable], names: Names | None = None
) -> Callable[[], ModuleTable]:
    """What gives the table of a module, or of named tensors, as it is now. Raises `ModuleError`."""
    if isinstance(module, nn.Module):
        return LiveTable(module, names)
    if not isinstance(module, Mapping):
        return module
    table = tensor_table(module)
    return lambda: table


class LiveTable:
    """The table of a module over time: follows tensors that are moved, refuses others than at first."""

    def __init__(self, module: nn.Module, names: Names | None = None) -> None:
        """Raises `ModuleError`."""
        self._module, self._names = module, names
        self._table = module_table(module, names)
        # Not the first table itself: it would keep memory that the module has left.
        self._specs, self._rows = list(self._table.entries), self._table.names
        self._marks = self._registered()
        self._looks_anew = any(entry.owner is not None for entry in self._table.entries.values()) or any(
            depends_on_state(part) for part in module.modules()
        )

    def __call__(self) -> ModuleTable:
        """The table as it is now: O(tensors). Raises `ModuleError` if names, dtypes, shapes or ties have changed."""
        marks = self._registered()
        if self._looks_anew or marks != self._marks or not self._table.is_same():
            table = module_table(self._module, self._names)
            self._require_same(list(table.entries), table.names)
            self._table, self._marks = table, marks
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
        """Which modules there are, and what each has registered, by their ids."""
        return [
            (id(part), *map(id, part._parameters.values()), *map(id, part._buffers.values()))
            for part in self._module.modules()
        ]


class _Resolver:
    """One look at one module."""

    def __init__(self, module: nn.Module, names: Names | None, local: LocalShardOf | None) -> None:
        self._module = module
        self._sharded = local is not None
        self._local = local or (lambda name, tensor: tensor)
        self._tree = module_tree(module)
        self._nodes = list(self._tree)
        self._slots = list(registered_tensors(self._nodes))
        self._name = NameMap(names)

    def table(self) -> ModuleTable:
        self._refuse_sharding()
        self._refuse_slots()
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
        self._name.check()
        if not listed:
            raise ModuleError("the module has no parameters or buffers: there is nothing to publish or keep live")
        return ModuleTable(
            index_by_spec(listed),
            {key: row_of[id(entry)].name for key, entry in keys.items()},
            any(isinstance(node.module, parametrize.ParametrizationList) for node in self._nodes),
            [] if self._sharded else list(self._places()),
        )

    def _state(self) -> dict[str, object]:
        try:
            return self._module.state_dict(keep_vars=True) if self._sharded else self._module.state_dict()
        except Exception as error:  # of the module's own code
            raise ModuleError(
                f"state_dict() fails ({type(error).__name__}: {_one_line(error)}): mend it first"
            ) from error

    def _refuse_sharding(self) -> None:
        for node in self._nodes:
            reason = module_refusal(node.module, dtensors=self._sharded)
            _require(node.prefix.rstrip(".") or type(node.module).__name__, reason)

    def _refuse_slots(self) -> None:
        for slot in self._slots:
            tensor = slot.tensor()
            if slot.used and tensor is not None:
                held = self._local(slot.name, tensor)
                _require(slot.key, tensor_refusal(held, slot.owner))

    def _index(self) -> None:
        """After `state_dict`, which may have brought the module into another state."""
        self._by_name: dict[str, RegisteredTensor] = {}
        self._by_storage: dict[StorageKey, list[RegisteredTensor]] = {}
        self._owners: dict[str, nn.Module] = {}
        for node in self._nodes:
            self._owners[node.inner + _EXTRA] = node.module  # the innermost: it comes last
        for slot in self._slots:
            if slot.used or slot.name not in self._by_name:
                self._by_name[slot.name] = slot
            held = self._held(slot)
            if held is not None and held.numel():
                self._by_storage.setdefault(storage_key(held), []).append(slot)

    def _held(self, slot: RegisteredTensor) -> torch.Tensor | None:
        tensor = slot.tensor()
        if tensor is None or (not slot.used and tensor_refusal(tensor, slot.owner)):
            return None
        return self._local(slot.name, tensor).detach()

    def _entry(self, key: str, inner: str, value: object) -> TableEntry | None:
        """The row of an entry of the state_dict; None for one that is not to be published."""
        name = self._name(key, inner)
        if name is None or _says_nothing(value):
            return None
        if not isinstance(value, torch.Tensor):
            raise ModuleError(
                f"{key}: its state_dict holds a {type(value).__name__}, which cannot be published: make it a buffer, "
                f"or leave it out with names={{{inner!r}: None}}"
            )
        slot = self._by_name.get(inner)
        tensor = slot.tensor() if slot is not None else None
        if slot is not None and tensor is not None and (not value.numel() or self._same_storage(slot, tensor, value)):
            held = self._local(slot.name, value).detach()
            return TableEntry(name, key, value.detach(), held, storage_view(held), id(tensor)) if slot.used else None
        _require(key, tensor_refusal(value))
        if not value.numel():
            return None
        value, view = value.detach(), storage_view(value)
        holders = [s for s in self._by_storage.get(storage_key(value), []) if self._contains(s, view)]
        if holders:
            return TableEntry(name, key, value, value, view) if any(s.used for s in holders) else None
        return TableEntry(name, key, value, value, view, owner=self._owner(key, inner))

    def _same_storage(self, slot: RegisteredTensor, tensor: torch.Tensor, value: torch.Tensor) -> bool:
        if not slot.used:
            return tensor.data_ptr() == value.data_ptr()
        here, there = self._local(slot.name, tensor), self._local(slot.name, value)
        return tensor.shape == value.shape and storage_view(here) == storage_view(there) and here.dtype == there.dtype

    def _contains(self, slot: RegisteredTensor, view: StorageView | None) -> bool:
        held = self._held(slot)
        whole = storage_view(held) if held is not None else None
        return whole is not None and view is not None and relation(whole, view) is Relation.INSIDE

    def _owner(self, key: str, inner: str) -> nn.Module:
        """Whose extra state an entry is that no registered tensor holds."""
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
        """Whatever is registered and used is in a row, or was left out on purpose."""
        whole = {(entry.local.device, entry.view) for entry in entries}
        named = {entry.registered for entry in entries}
        for slot in self._slots:
            held = self._held(slot) if slot.used else None
            view = storage_view(held) if held is not None else None
            if held is None or view is None or id(slot.tensor()) in named or (held.device, view) in whole:
                continue
            parts = [e.view for e in listed if e.view is not None and e.local.device == held.device]
            covered = sum(part.nbytes for part in parts if relation(view, part) is Relation.INSIDE)
            inside = any(relation(part, view) is Relation.INSIDE for part in parts)
            if covered < view.nbytes and not inside and self._name(slot.key, slot.name) is not None:
                raise ModuleError(
                    f"{slot.key}: the module computes with it, but its state_dict() leaves it out, so that every actor "
                    f"would keep its own: let state_dict() list it, or leave it out with names={{{slot.name!r}: None}}"
                )

    def _places(self) -> Iterator[TensorAddress]:
        for slot in self._slots:
            tensor = slot.tensor()
            if slot.used and tensor is not None:
                yield TensorAddress(slot, tensor, tensor.data_ptr(), tensor.dtype, storage_view(tensor))


def _view(name: str, tensor: torch.Tensor) -> StorageView | None:
    _require(name, tensor_refusal(tensor))
    return storage_view(tensor)


def _require(key: str, reason: str) -> None:
    if reason:
        raise ModuleError(f"{key}: {reason}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _says_nothing(value: object) -> bool:
    """Whether an entry holds no state: None, or something empty that is no tensor."""
    if isinstance(value, io.BytesIO):
        return not value.getbuffer().nbytes
    return value is None or (isinstance(value, Sized) and not isinstance(value, torch.Tensor) and not len(value))
