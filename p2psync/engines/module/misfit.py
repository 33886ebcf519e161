"""Describes how the tensors of a version differ from those of a module. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from p2psync.delta.tensors import TensorSpec

#: Names listed on each side: enough to see the pattern, few enough for one line.
NAMES_SHOWN = 3
#: Parts of the tensor names of PEFT's adapters.
_ADAPTER_NAME_PARTS = (".lora_", ".ia3_")


def describe_misfit(version: Collection[TensorSpec], module: Collection[TensorSpec]) -> str:
    """Returns one line that says how two different sets of tensors differ, and what to do about it."""
    there = {spec.name: spec for spec in version}
    here = {spec.name: spec for spec in module}
    parts = []
    if missing := sorted(there.keys() - here.keys()):
        parts.append(f"it has {_some(missing, there)}, which the module has not")
    if surplus := sorted(here.keys() - there.keys()):
        parts.append(f"the module has {_some(surplus, here)}, which it has not")
    if other := sorted(name for name in there.keys() & here.keys() if there[name] != here[name]):
        first = other[0]
        more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
        parts.append(f"{first!r} is {_form(there[first])} in it, and {_form(here[first])} in the module{more}")
    remedies = ["load the same architecture and dtypes"]
    if any(part in name for name in missing + surplus for part in _ADAPTER_NAME_PARTS):
        remedies.append("merge adapters into their base before publishing")
    if missing or surplus:
        remedies.append("map state_dict keys to the published names with names=")
    return f"{'; '.join(parts)}: {', or '.join(remedies)}"


def _some(names: Sequence[str], specs: dict[str, TensorSpec]) -> str:
    shown = ", ".join(f"{name!r} {_form(specs[name])}" for name in names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def _form(spec: TensorSpec) -> str:
    return f"({spec.dtype}, {list(spec.shape)})"
