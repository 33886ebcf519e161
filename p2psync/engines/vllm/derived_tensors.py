"""Finds tensors besides the committed parameters that a forward pass reads: constants, and copies made from weights.

Theory of operation. The objects of a model are searched (`object_graph`) at three times.

1. Between construction and the first weights (`record_construction`). What exists then was not computed from weights.
2. After the live map was learned. Everything that a forward pass can reach must lie in mapped memory, equal what it was
   at construction (possibly converted to another dtype), or be a conversion of a mapped parameter at the path where
   that parameter was. Such a converted copy is made again within each commit. Anything else may have been computed from
   weights in an unknown way; the engine then refuses the model and names the tensor.
3. Before each commit. The same rule applies to what appeared since, such as caches that the first forward pass fills.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from p2psync.engines.module.live_tensors import host_units
from p2psync.engines.vllm.object_graph import KV_CACHE_ATTRIBUTE, Leaf, ObjectGraph
from p2psync.errors import EngineError

#: Larger parameters (bytes) are not read at construction. One that no tensor of the checkpoint fills is refused.
_MAX_READ_PARAMETER_BYTES = 4 << 20
#: Constants up to this size (bytes) are read again before each commit; reading larger ones would take too long.
_MAX_REREAD_BYTES = 1 << 16
_FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_MemoryAddress = tuple[torch.device, int]


class _ValueSnapshot(NamedTuple):
    """The value at one path. digests: of its value, by the dtype to which it was converted; empty if it was not read.

    address: None if it is no tensor. number: the value of a float.
    """

    address: _MemoryAddress | None
    shape: tuple[int, ...]
    digests: Mapping[object, bytes]
    number: float | None = None


class _ConvertedCopy(NamedTuple):
    """A tensor that holds the converted values of a mapped parameter."""

    path: str
    tensor: torch.Tensor
    source: torch.Tensor


_constructed: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, _ValueSnapshot]] = weakref.WeakKeyDictionary()


def record_construction(model: torch.nn.Module) -> None:
    """Records what a model holds before any weight is loaded."""
    _constructed[model] = {leaf.path: _snapshot(leaf.value) for leaf in ObjectGraph(model).leaves}


def check_not_emptied(model: torch.nn.Module) -> None:
    """Raises `EngineError`, with the name, for a parameter that vLLM packed and emptied after it was loaded."""
    snapshots = _constructed.get(model, {})
    for leaf in ObjectGraph(model).leaves:
        snapshot = snapshots.get(leaf.path)
        if (
            isinstance(leaf.value, torch.nn.Parameter)
            and not leaf.value.numel()
            and snapshot is not None
            and all(snapshot.shape)
        ):
            raise EngineError(
                f"{leaf.path.lstrip('.')} was packed for this processor's kernels after it was loaded, so commits "
                "cannot write it: use a kernel that reads plain weights (for attention of DeepSeek's kind on CPUs: "
                "--attention-backend CPU_MLA; for experts: --moe-backend triton)"
            )


class DerivedTensors:
    """The constants and copies of one rank's model. One thread at a time calls `check`; `refresh` runs in the pause."""

    def __init__(self, model: torch.nn.Module, mapped: Iterable[torch.Tensor]) -> None:
        """mapped: the parameters that commits write; they hold weights now. Raises `EngineError`, with the name, for a
        tensor that is neither a constant nor a copy of a mapped parameter."""
        snapshots = _constructed.pop(model, None)
        if snapshots is None:
            raise EngineError(
                "vLLM loaded this model in a way that was not watched: what it computed from weights is unknown; "
                "use --load-format auto and one of the supported versions of vLLM"
            )
        self._model = model
        self._snapshots = snapshots
        self._mapped = {_storage(tensor) for tensor in mapped}
        self._sources = {(_address(tensor), tuple(tensor.shape)): tensor for tensor in mapped}
        self._constants: dict[str, tuple[torch.Tensor, bytes]] = {}
        self._copies: list[_ConvertedCopy] = []
        #: Tensors of unknown origin, by path, and when they appeared. No version goes live while there is one.
        self._unknown: dict[str, str] = {}
        self._graph = ObjectGraph(model)
        self._snapshot_at = {
            snapshot.address: snapshot for snapshot in snapshots.values() if snapshot.address is not None
        }
        #: Numbers that existed before any weight was loaded.
        self._numbers = {0.0, 1.0, *(snapshot.number for snapshot in snapshots.values() if snapshot.number is not None)}
        self._classify(self._graph.leaves, "after loading")

    @property
    def copies(self) -> list[str]:
        """The paths of the copies that each commit makes again."""
        return [copy.path for copy in self._copies]

    def check(self, *, reread: bool = False) -> None:
        """Classifies what the model's objects hold since the last check.

        reread: also compare small constants with their recorded digests. Raises `EngineError` for a tensor of unknown
        origin; no version can then go live.
        """
        self._classify(self._graph.new_leaves(), "since it was loaded")
        if reread:
            self._reread(_MAX_REREAD_BYTES)

    def is_intact(self) -> bool:
        """Returns whether the copies hold what their parameters do. Reads all of them."""
        return all(_same(copy.tensor, copy.source.to(copy.tensor.dtype)) for copy in self._copies)

    def refresh(self) -> None:
        """Makes the copies again. Nothing may read them meanwhile."""
        with torch.inference_mode():
            for copy in self._copies:
                copy.tensor.copy_(copy.source)

    def _classify(self, leaves: Sequence[Leaf], when: str) -> None:
        cached = _cached(self._model) if leaves else set()
        for leaf in leaves:
            if self._is_known(leaf, cached):
                self._unknown.pop(leaf.path, None)
            else:
                self._unknown[leaf.path] = when
        for path, then in self._unknown.items():
            raise EngineError(
                f"{path.lstrip('.')} was made by the engine {then}, perhaps from weights, and no tensor of the "
                "checkpoint says what it must be: this model cannot be kept exact in this engine"
            )

    def _is_known(self, leaf: Leaf, cached: set[_MemoryAddress]) -> bool:
        """Returns whether a forward pass may read it after a commit. Records copies."""
        value, snapshot = leaf.value, self._snapshots.get(leaf.path)
        if isinstance(value, torch.Tensor):
            if not value.numel() or value.is_meta:
                return True
            if _storage(value) in self._mapped | cached:
                self._snapshots.setdefault(leaf.path, _snapshot(value, read=False))
                return True
        if self._is_constant(leaf, snapshot):
            self._snapshots.setdefault(leaf.path, _snapshot(value))
            return True
        copy = self._copy_of(leaf, snapshot)
        if copy is not None:
            self._copies = [*(other for other in self._copies if other.path != copy.path), copy]
        return copy is not None

    def _is_constant(self, leaf: Leaf, snapshot: _ValueSnapshot | None) -> bool:
        """Returns whether it equals the tensor at this path, or at this address, before any weight was loaded."""
        if isinstance(leaf.value, float) and snapshot is None and leaf.value in self._numbers:
            return True  # an object made later that repeats a setting
        address = _address(leaf.value)
        known = self._snapshot_at.get(address) if address is not None else None
        for candidate in (snapshot, known):
            if candidate is not None and candidate.digests:
                kind = leaf.value.dtype if isinstance(leaf.value, torch.Tensor) else type(leaf.value)
                digest = _digest(leaf.value)
                if candidate.digests.get(kind) == digest:
                    if isinstance(leaf.value, torch.Tensor) and leaf.value.is_floating_point():
                        self._constants[leaf.path] = leaf.value, digest
                    return True
        return False

    def _copy_of(self, leaf: Leaf, snapshot: _ValueSnapshot | None) -> _ConvertedCopy | None:
        """Returns the copy that this tensor is, if its path held a mapped parameter and it has that one's values."""
        if snapshot is None or not isinstance(leaf.value, torch.Tensor):
            return None
        source = self._sources.get((snapshot.address, snapshot.shape))
        if source is None or not _same(leaf.value, source.to(leaf.value.dtype)):
            return None
        return _ConvertedCopy(leaf.path, leaf.value, source)

    def _reread(self, most: int) -> None:
        for path, (tensor, digest) in self._constants.items():
            if _bytes(tensor) <= most and _digest(tensor) != digest:
                raise EngineError(
                    f"{path.lstrip('.')} was filled by the engine since it was loaded, perhaps from weights: this "
                    "model cannot be kept exact in this engine"
                )


def _snapshot(value: object, *, read: bool = True) -> _ValueSnapshot:
    if not isinstance(value, torch.Tensor):
        number = value if isinstance(value, float) else None
        return _ValueSnapshot(None, (), {type(value): _digest(value)}, number)
    large = isinstance(value, torch.nn.Parameter) and _bytes(value) > _MAX_READ_PARAMETER_BYTES
    digests: dict[object, bytes] = {}
    if read and not large and not value.is_meta:
        kinds = {value.dtype, *_FLOAT_DTYPES} if value.is_floating_point() else {value.dtype}
        digests = {kind: _digest(value.detach().to(kind)) for kind in kinds}
    return _ValueSnapshot(_address(value), tuple(value.shape), digests)


def _digest(value: object) -> bytes:
    """Returns a digest of a tensor's bits, a number's value, or a native object's identity."""
    if not isinstance(value, torch.Tensor):
        return repr(value if isinstance(value, float) else id(value)).encode()
    return hashlib.blake2b(host_units(value.detach()).tobytes(), digest_size=16).digest()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors of one dtype have the same shape and bits."""
    return a.shape == b.shape and _digest(a) == _digest(b)


def _address(value: object) -> _MemoryAddress | None:
    return (value.device, value.data_ptr()) if isinstance(value, torch.Tensor) and not value.is_meta else None


def _storage(tensor: torch.Tensor) -> _MemoryAddress:
    return (tensor.device, tensor.untyped_storage().data_ptr())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _cached(model: torch.nn.Module) -> set[_MemoryAddress]:
    """Returns the storages of keys, values and states, which requests fill."""
    found: set[_MemoryAddress] = set()
    for module in model.modules():
        cache = getattr(module, KV_CACHE_ATTRIBUTE, None)
        tensors = cache if isinstance(cache, list | tuple) else [cache]
        found |= {_storage(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.numel()}
    return found
