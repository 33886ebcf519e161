"""What a forward pass computes with beside the weights that a commit writes: constants, and copies made of weights.

Theory of operation. A model's objects are looked through three times (`object_graph`). Between its construction and
its first weights (`record_construction`): what is there then was made of no weight. After the map was learned: whatever
a forward pass can reach must lie in mapped memory, be what it was at construction (also converted to another dtype), or
be a conversion of a mapped parameter in the place where that parameter was before. Such a conversion is a copy, and is
made again within each commit. Anything else might be made of weights in a way that nobody here knows, and the engine is
refused by its name. Before each commit: what appeared since, as caches that the first forward pass fills, is judged by
the same law.
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

#: Larger parameters are not read at construction (bytes): one of these that no tensor fills is refused.
_LARGE_PARAMETER = 4 << 20
#: Constants that are read again before each commit (bytes): larger ones by the scrub alone, as reading takes time.
_SMALL_CONSTANT = 1 << 16
_FRACTIONS = (torch.float32, torch.bfloat16, torch.float16)

_Place = tuple[torch.device, int]


class _Fact(NamedTuple):
    """What a path held. digests: by dtype, of its value converted to that; empty where it was not read."""

    place: _Place | None
    shape: tuple[int, ...]
    digests: Mapping[object, bytes]
    number: float | None = None


class _Copy(NamedTuple):
    """A tensor that holds the converted values of a mapped parameter."""

    path: str
    tensor: torch.Tensor
    source: torch.Tensor


_noted: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, _Fact]] = weakref.WeakKeyDictionary()


def record_construction(model: torch.nn.Module) -> None:
    """Note what a model holds before any weight is loaded."""
    _noted[model] = {leaf.path: _fact(leaf.value) for leaf in ObjectGraph(model).leaves}


def check_not_emptied(model: torch.nn.Module) -> None:
    """Raises `EngineError` by the name of a parameter that was emptied after it was loaded: vLLM packed it."""
    facts = _noted.get(model, {})
    for leaf in ObjectGraph(model).leaves:
        fact = facts.get(leaf.path)
        if (
            isinstance(leaf.value, torch.nn.Parameter)
            and not leaf.value.numel()
            and fact is not None
            and all(fact.shape)
        ):
            raise EngineError(
                f"{leaf.path.lstrip('.')} was packed for this processor's kernels after it was loaded, so commits "
                "cannot write it: use a kernel that reads plain weights (for attention of DeepSeek's kind on CPUs: "
                "--attention-backend CPU_MLA; for experts: --moe-backend triton)"
            )


class DerivedTensors:
    """The constants and copies of one rank's model. One thread at a time calls `check`; `refresh` is for the pause."""

    def __init__(self, model: torch.nn.Module, mapped: Iterable[torch.Tensor]) -> None:
        """mapped: the parameters that commits write; they hold weights now. Raises `EngineError` by the name of what is
        neither constant nor known to be a copy."""
        facts = _noted.pop(model, None)
        if facts is None:
            raise EngineError(
                "vLLM loaded this model in a way that was not watched: what it computed from weights is unknown; "
                "use --load-format auto and one of the supported versions of vLLM"
            )
        self._model = model
        self._facts = facts
        self._mapped = {_storage(tensor) for tensor in mapped}
        self._sources = {(_place(tensor), tuple(tensor.shape)): tensor for tensor in mapped}
        self._constants: dict[str, tuple[torch.Tensor, bytes]] = {}
        self._copies: list[_Copy] = []
        #: What is unknown, by path, and when it came; no version is made live while there is any.
        self._unknown: dict[str, str] = {}
        self._graph = ObjectGraph(model)
        self._known = {fact.place: fact for fact in facts.values() if fact.place is not None}
        #: Numbers that were there before any weight was.
        self._numbers = {0.0, 1.0, *(fact.number for fact in facts.values() if fact.number is not None)}
        self._judge(self._graph.leaves, "after loading")

    @property
    def copies(self) -> list[str]:
        """The paths of copies that each commit makes again."""
        return [copy.path for copy in self._copies]

    def check(self, *, reread: bool = False) -> None:
        """Judge what the model's objects came to hold since the last look. reread: also compare small constants with
        what they were. Raises `EngineError` for what is unknown: no version can be made live then."""
        self._judge(self._graph.news(), "since it was loaded")
        if reread:
            self._reread(_SMALL_CONSTANT)

    def sound(self) -> bool:
        """Whether copies hold what their parameters do: reads all of them."""
        return all(_same(copy.tensor, copy.source.to(copy.tensor.dtype)) for copy in self._copies)

    def refresh(self) -> None:
        """Make the copies anew; nothing may read them meanwhile."""
        with torch.inference_mode():
            for copy in self._copies:
                copy.tensor.copy_(copy.source)

    def _judge(self, leaves: Sequence[Leaf], when: str) -> None:
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

    def _is_known(self, leaf: Leaf, cached: set[_Place]) -> bool:
        """Whether it may be computed with after a commit; copies are noted."""
        value, fact = leaf.value, self._facts.get(leaf.path)
        if isinstance(value, torch.Tensor):
            if not value.numel() or value.is_meta:
                return True
            if _storage(value) in self._mapped | cached:
                self._facts.setdefault(leaf.path, _fact(value, read=False))
                return True
        if self._is_constant(leaf, fact):
            self._facts.setdefault(leaf.path, _fact(value))
            return True
        copy = self._copy_of(leaf, fact)
        if copy is not None:
            self._copies = [*(other for other in self._copies if other.path != copy.path), copy]
        return copy is not None

    def _is_constant(self, leaf: Leaf, fact: _Fact | None) -> bool:
        """Whether it is what was there before any weight was: at this path, or in this memory."""
        if isinstance(leaf.value, float) and fact is None and leaf.value in self._numbers:
            return True  # an object made later that repeats a setting
        place = _place(leaf.value)
        known = self._known.get(place) if place is not None else None
        for candidate in (fact, known):
            if candidate is not None and candidate.digests:
                kind = leaf.value.dtype if isinstance(leaf.value, torch.Tensor) else type(leaf.value)
                digest = _digest(leaf.value)
                if candidate.digests.get(kind) == digest:
                    if isinstance(leaf.value, torch.Tensor) and leaf.value.is_floating_point():
                        self._constants[leaf.path] = leaf.value, digest
                    return True
        return False

    def _copy_of(self, leaf: Leaf, fact: _Fact | None) -> _Copy | None:
        """The copy that this tensor is, if its path held a mapped parameter before and it has the values of that."""
        if fact is None or not isinstance(leaf.value, torch.Tensor):
            return None
        source = self._sources.get((fact.place, fact.shape))
        if source is None or not _same(leaf.value, source.to(leaf.value.dtype)):
            return None
        return _Copy(leaf.path, leaf.value, source)

    def _reread(self, most: int) -> None:
        for path, (tensor, digest) in self._constants.items():
            if _bytes(tensor) <= most and _digest(tensor) != digest:
                raise EngineError(
                    f"{path.lstrip('.')} was filled by the engine since it was loaded, perhaps from weights: this "
                    "model cannot be kept exact in this engine"
                )


def _fact(value: object, *, read: bool = True) -> _Fact:
    if not isinstance(value, torch.Tensor):
        number = value if isinstance(value, float) else None
        return _Fact(None, (), {type(value): _digest(value)}, number)
    large = isinstance(value, torch.nn.Parameter) and _bytes(value) > _LARGE_PARAMETER
    digests: dict[object, bytes] = {}
    if read and not large and not value.is_meta:
        kinds = {value.dtype, *_FRACTIONS} if value.is_floating_point() else {value.dtype}
        digests = {kind: _digest(value.detach().to(kind)) for kind in kinds}
    return _Fact(_place(value), tuple(value.shape), digests)


def _digest(value: object) -> bytes:
    """Of a tensor's bits; of a number's value; of a native object's identity."""
    if not isinstance(value, torch.Tensor):
        return repr(value if isinstance(value, float) else id(value)).encode()
    return hashlib.blake2b(host_units(value.detach()).tobytes(), digest_size=16).digest()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype have the same shape and bits."""
    return a.shape == b.shape and _digest(a) == _digest(b)


def _place(value: object) -> _Place | None:
    return (value.device, value.data_ptr()) if isinstance(value, torch.Tensor) and not value.is_meta else None


def _storage(tensor: torch.Tensor) -> _Place:
    return (tensor.device, tensor.untyped_storage().data_ptr())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _cached(model: torch.nn.Module) -> set[_Place]:
    """The memory of keys, values and states, which requests fill."""
    found: set[_Place] = set()
    for module in model.modules():
        cache = getattr(module, KV_CACHE_ATTRIBUTE, None)
        tensors = cache if isinstance(cache, list | tuple) else [cache]
        found |= {_storage(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.numel()}
    return found
