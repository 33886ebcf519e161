"""Finds a module's registered parameters and buffers, and names them as the inner module does, whatever wraps it.

Wrappers that are looked through, at any depth: `torch.compile`, DistributedDataParallel, DataParallel, activation
checkpointing, DeepSpeed's engine (stages 0 to 2), Megatron's Float16Module, and PEFT. A PEFT layer computes with its
adapters unless they are merged, and of `modules_to_save` with the active copy; nothing else of PEFT is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from p2psync.engines.module.tensor_refusals import class_names
from p2psync.errors import ModuleError

#: Published names by state_dict key. None leaves an entry out. A key that a mapping lacks keeps its own name.
Names = Mapping[str, str | None] | Callable[[str], str | None]

#: Names of children that hold a wrapped module, whatever the class of the wrapper.
_WRAPPED_CHILDREN = ("_orig_mod", "_checkpoint_wrapped_module")
#: Wrapper classes, and the name of the child that holds the wrapped module.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "Float16Module": "module",
    "PeftModel": "base_model",
    "BaseTuner": "model",
    "BaseTunerLayer": "base_layer",
}


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """A submodule in the tree of modules.

    prefix: of its state_dict keys. inner: the prefix without wrappers. used: whether forward computes with it.
    children: submodules by their part of the prefix.
    """

    module: nn.Module
    prefix: str
    inner: str
    used: bool
    children: dict[str, ModuleNode]

    def __iter__(self) -> Iterator[ModuleNode]:
        """Yields this node and all below it, depth first. A module that is registered twice comes twice."""
        yield self
        for child in self.children.values():
            yield from child


@dataclass(frozen=True, slots=True)
class RegisteredTensor:
    """A registered parameter or buffer.

    owner, leaf: the module and the attribute. key: the state_dict key. name: the key without wrappers. used: whether
    it is published: forward computes with it, and it is no buffer that state_dict() leaves out.
    """

    owner: nn.Module
    leaf: str
    key: str
    name: str
    used: bool

    def tensor(self) -> torch.Tensor | None:
        """Returns the tensor that is registered now, or None."""
        parameters, buffers = self.owner._parameters, self.owner._buffers
        for registered in (parameters, buffers):
            if self.leaf in registered:
                return registered[self.leaf]
        return None


def depends_on_state(module: nn.Module) -> bool:
    """Returns whether a module's state decides with which tensors it computes, as in PEFT's layers."""
    return bool(class_names(module) & {"BaseTunerLayer", "ModulesToSaveWrapper"})


def module_tree(module: nn.Module, prefix: str = "", inner: str = "", used: bool = True) -> ModuleNode:
    """Returns the tree of a module and its submodules."""
    children = {
        path: module_tree(child, prefix + path, inner + name, used and child_used)
        for path, name, child, child_used in _children(module)
    }
    return ModuleNode(module, prefix, inner, used, children)


def registered_tensors(tree: Iterable[ModuleNode]) -> Iterator[RegisteredTensor]:
    """Yields every registered parameter and buffer of a tree that holds a tensor."""
    for node in tree:
        own = node.used and not _is_merged(node.module)
        unlisted: set[str] = getattr(node.module, "_non_persistent_buffers_set", set())
        for leaf, parameter in node.module._parameters.items():
            if parameter is not None:
                yield RegisteredTensor(node.module, leaf, node.prefix + leaf, node.inner + leaf, own)
        for leaf, buffer in node.module._buffers.items():
            if buffer is not None:
                used = own and leaf not in unlisted
                yield RegisteredTensor(node.module, leaf, node.prefix + leaf, node.inner + leaf, used)


def inner_key(key: str, tree: ModuleNode) -> str:
    """Returns a state_dict key without wrappers, also where a wrapper's own hook has removed its part."""
    node, rest = tree, key
    while True:
        first, _, more = rest.partition(".")
        paths = (f"{first}.", f"{first}.{more.partition('.')[0]}.")
        path = next((path for path in paths if path in node.children and rest.startswith(path)), None)
        if path is not None:
            node, rest = node.children[path], rest[len(path) :]
            continue
        wrapped = next((child for child in node.children.values() if child.inner == node.inner), None)
        if wrapped is None:
            return node.inner + rest
        node = wrapped


class NameMap:
    """Maps state_dict keys to published names."""

    def __init__(self, names: Names | None) -> None:
        self._names = names if names is not None else {}
        self._seen: set[str] = set()

    def __call__(self, key: str, inner: str) -> str | None:
        """Returns the published name of a state_dict key, None to leave it out. inner: the key without wrappers.

        Raises `ModuleError` for a value that is neither a non-empty text nor None.
        """
        self._seen |= {key, inner}
        names = self._names
        name = names(inner) if callable(names) else names.get(inner, names.get(key, inner))
        if name is not None and (not isinstance(name, str) or not name):
            raise ModuleError(f"names: {inner!r} is mapped to {name!r}: a name is a text, None leaves the tensor out")
        return name

    def check(self) -> None:
        """Raises `ModuleError` for keys of the mapping that the module does not have."""
        unknown = sorted(set(self._names) - self._seen) if isinstance(self._names, Mapping) else []
        if unknown:
            has = ", ".join(sorted(self._seen)[:5]) or "nothing"
            raise ModuleError(f"names: the module has no {unknown[0]!r}; its state_dict begins {has}")


def _children(module: nn.Module) -> Iterator[tuple[str, str, nn.Module, bool]]:
    """Yields (prefix of its keys, prefix of its names, child, whether forward computes with it)."""
    if "ModulesToSaveWrapper" in class_names(module):
        yield from _modules_to_save(module)
        return
    wrapped = _wrapped(module)
    merged = _is_merged(module)
    for name, child in module._modules.items():
        if child is not None:
            yield f"{name}.", "" if name == wrapped else f"{name}.", child, name == wrapped or not merged


def _wrapped(module: nn.Module) -> str:
    """Returns the name of the child that this module wraps; "" if it is no wrapper."""
    for name in _WRAPPED_CHILDREN:
        if name in module._modules:
            return name
    kinds = class_names(module)
    for kind, name in _WRAPPERS.items():
        if kind in kinds and name in module._modules:
            return name
    return ""


def _is_merged(module: nn.Module) -> bool:
    """Returns whether a PEFT layer computes with its base layer alone."""
    return "BaseTunerLayer" in class_names(module) and bool(getattr(module, "merged", False))


def _modules_to_save(module: nn.Module) -> Iterator[tuple[str, str, nn.Module, bool]]:
    """Yields PEFT's copies of a module that is trained whole; the active one replaces the original."""
    copies = module._modules.get("modules_to_save")
    active = [] if getattr(module, "disable_adapters", False) else list(getattr(module, "active_adapters", []))
    for name, child in copies._modules.items() if copies is not None else ():
        if child is not None:
            used = name in active
            yield f"modules_to_save.{name}.", "" if used else f"modules_to_save.{name}.", child, used
    original = module._modules.get("original_module")
    if original is not None:
        yield "original_module.", "original_module." if active else "", original, not active
