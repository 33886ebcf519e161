"""The parameters and buffers that a module has registered, and their names whatever wraps it.

Names are those of the inner module. Looked through, at any depth, are `torch.compile`, DistributedDataParallel,
DataParallel, activation checkpointing, DeepSpeed's engine (stages 0 to 2), Megatron's Float16Module, and PEFT. A PEFT
layer computes with its adapters unless they are merged, and of `modules_to_save` with the active copy; the rest is not
used, and not published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from p2psync.engines.module.tensor_refusals import class_names
from p2psync.errors import ModuleError

#: Published names by state_dict keys; None leaves an entry out, a key that is not in a mapping is its own name.
Names = Mapping[str, str | None] | Callable[[str], str | None]

#: Children that hold the wrapped module whatever the class of the wrapper.
_WRAPPED_AS = ("_orig_mod", "_checkpoint_wrapped_module")
#: Wrappers by class, and the child that holds the wrapped module.
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
    """A submodule. prefix: of its state_dict keys. inner: the same with wrappers looked through. used: whether forward
    computes with it. children: by their part of the prefix."""

    module: nn.Module
    prefix: str
    inner: str
    used: bool
    children: dict[str, ModuleNode]

    def __iter__(self) -> Iterator[ModuleNode]:
        """This one and all below, depth first; a module that is registered twice comes twice."""
        yield self
        for child in self.children.values():
            yield from child


@dataclass(frozen=True, slots=True)
class RegisteredTensor:
    """A registered parameter or buffer. key: in the state_dict. name: the same with wrappers looked through. used:
    whether it is to be published: forward computes with it, and it is no buffer that state_dict() leaves out."""

    owner: nn.Module
    leaf: str
    key: str
    name: str
    used: bool

    def tensor(self) -> torch.Tensor | None:
        """What is registered now."""
        parameters, buffers = self.owner._parameters, self.owner._buffers
        for registered in (parameters, buffers):
            if self.leaf in registered:
                return registered[self.leaf]
        return None


def depends_on_state(module: nn.Module) -> bool:
    """Whether what a module computes with depends on more than on what it has registered: PEFT's layers."""
    return bool(class_names(module) & {"BaseTunerLayer", "ModulesToSaveWrapper"})


def module_tree(module: nn.Module, prefix: str = "", inner: str = "", used: bool = True) -> ModuleNode:
    """A module and its submodules."""
    children = {
        path: module_tree(child, prefix + path, inner + name, used and child_used)
        for path, name, child, child_used in _children(module)
    }
    return ModuleNode(module, prefix, inner, used, children)


def registered_tensors(tree: Iterable[ModuleNode]) -> Iterator[RegisteredTensor]:
    """What the modules of a tree have registered, as far as it holds a tensor."""
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
    """A state_dict key with wrappers looked through, also where a wrapper's own hook has taken its part out."""
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
    """Gives published names."""

    def __init__(self, names: Names | None) -> None:
        self._names = names if names is not None else {}
        self._met: set[str] = set()

    def __call__(self, key: str, inner: str) -> str | None:
        """The published name of a state_dict key, None to leave it out. inner: the key with wrappers looked through.

        Raises `ModuleError` for what is no name.
        """
        self._met |= {key, inner}
        names = self._names
        name = names(inner) if callable(names) else names.get(inner, names.get(key, inner))
        if name is not None and (not isinstance(name, str) or not name):
            raise ModuleError(f"names: {inner!r} is mapped to {name!r}: a name is a text, None leaves the tensor out")
        return name

    def check(self) -> None:
        """Raises `ModuleError` for keys of a mapping that were never asked for."""
        unknown = sorted(set(self._names) - self._met) if isinstance(self._names, Mapping) else []
        if unknown:
            has = ", ".join(sorted(self._met)[:5]) or "nothing"
            raise ModuleError(f"names: the module has no {unknown[0]!r}; its state_dict begins {has}")


def _children(module: nn.Module) -> Iterator[tuple[str, str, nn.Module, bool]]:
    """(prefix of its keys, prefix of its names, child, whether it is computed with)."""
    if "ModulesToSaveWrapper" in class_names(module):
        yield from _modules_to_save(module)
        return
    wrapped = _wrapped(module)
    merged = _is_merged(module)
    for name, child in module._modules.items():
        if child is not None:
            yield f"{name}.", "" if name == wrapped else f"{name}.", child, name == wrapped or not merged


def _wrapped(module: nn.Module) -> str:
    """The child that this module only wraps; "" if it is no wrapper."""
    for name in _WRAPPED_AS:
        if name in module._modules:
            return name
    kinds = class_names(module)
    for kind, name in _WRAPPERS.items():
        if kind in kinds and name in module._modules:
            return name
    return ""


def _is_merged(module: nn.Module) -> bool:
    """Whether a PEFT layer computes with its base layer alone."""
    return "BaseTunerLayer" in class_names(module) and bool(getattr(module, "merged", False))


def _modules_to_save(module: nn.Module) -> Iterator[tuple[str, str, nn.Module, bool]]:
    """PEFT's copies of a module that is trained whole: one of them takes its place."""
    copies = module._modules.get("modules_to_save")
    active = [] if getattr(module, "disable_adapters", False) else list(getattr(module, "active_adapters", []))
    for name, child in copies._modules.items() if copies is not None else ():
        if child is not None:
            used = name in active
            yield f"modules_to_save.{name}.", "" if used else f"modules_to_save.{name}.", child, used
    original = module._modules.get("original_module")
    if original is not None:
        yield "original_module.", "original_module." if active else "", original, not active
