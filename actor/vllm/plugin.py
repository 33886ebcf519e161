"""The plugin that vLLM loads in each of its processes (`vllm.general_plugins`): registers the backend `p2psync`.

vllm serve MODEL --weight-transfer-config '{"backend": "p2psync"}'
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from p2psync.actor.vllm.plain_weights import NAME, is_loading_for_backend, keep_plain_weights, uses_backend

#: Attribute that marks a function which replaces one of vLLM's, so that it is replaced once.
_REPLACED = "_p2psync"

__all__ = ["NAME", "register", "uses_backend"]


def register() -> None:
    """Registers both sides of the backend. Again, or in a process that has it already: no effect."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, "p2psync.actor.vllm.backend", "P2PSyncWeightTransferEngine")
    if NAME not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(NAME, "p2psync.trainer.vllm_engine", "P2PSyncTrainerEngine")
    keep_plain_weights()
    _record_before_loading()
    _make_scan_tolerant()


def _record_before_loading() -> None:
    """Makes vLLM's loader record the tensors of each model before its first weights are loaded.

    A tensor that is unchanged after loading was not computed from weights: `p2psync.engines.vllm.derived_tensors`."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    load_weights = DefaultModelLoader.load_weights
    if hasattr(load_weights, _REPLACED):
        return

    @functools.wraps(load_weights)
    def load(self: Any, model: Any, model_config: Any) -> None:
        if is_loading_for_backend():
            from p2psync.engines.vllm.derived_tensors import record_construction

            record_construction(model)
        load_weights(self, model, model_config)

    setattr(load, _REPLACED, True)
    DefaultModelLoader.load_weights = load


def _make_scan_tolerant() -> None:
    """Makes vLLM's scan of module attributes skip objects without a dictionary.

    vLLM 0.32 scans the objects of all modules on CPUs, and fails at one of llvmlite's that has every attribute, if a
    program imported p2psync before it started its workers.
    """
    with suppress(ImportError):
        from vllm.triton_utils import dispatcher

        dispatcher.vars = _attributes


def _attributes(value: object) -> Mapping[str, Any]:
    found: object = vars(value)
    return found if isinstance(found, dict | MappingProxyType) else {}
