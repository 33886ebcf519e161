"""What vLLM calls in each of its processes (`vllm.general_plugins`): makes the backend `p2psync` known to it.

vllm serve MODEL --weight-transfer-config '{"backend": "p2psync"}'
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from p2psync.actor.vllm.plain_weights import NAME, is_loading_for_backend, keep_plain_weights, uses_backend

#: Marks what stands in place of vLLM's own, so that it does so once.
_MARK = "_p2psync"

__all__ = ["NAME", "register", "uses_backend"]


def register() -> None:
    """Register both sides of the backend. Again, or in a process that has it already: no effect."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, "p2psync.actor.vllm.backend", "P2PSyncWeightTransferEngine")
    if NAME not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(NAME, "p2psync.trainer.vllm_engine", "P2PSyncTrainerEngine")
    keep_plain_weights()
    _look_before_loading()
    _let_scan_pass()


def _look_before_loading() -> None:
    """Note what each model holds between its construction and its first weights: what is still so later was not made
    from weights (`p2psync.engines.vllm.derived_tensors`)."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    load_weights = DefaultModelLoader.load_weights
    if hasattr(load_weights, _MARK):
        return

    @functools.wraps(load_weights)
    def load(self: Any, model: Any, model_config: Any) -> None:
        if is_loading_for_backend():
            from p2psync.engines.vllm.derived_tensors import record_construction

            record_construction(model)
        load_weights(self, model, model_config)

    setattr(load, _MARK, True)
    DefaultModelLoader.load_weights = load


def _let_scan_pass() -> None:
    """vLLM 0.32 looks through the objects of all modules on CPUs, and fails over one of llvmlite's that has any
    attribute it is asked for, where a program imported p2psync before its workers were started."""
    with suppress(ImportError):
        from vllm.triton_utils import dispatcher

        dispatcher.vars = _attributes


def _attributes(value: object) -> Mapping[str, Any]:
    found: object = vars(value)
    return found if isinstance(found, dict | MappingProxyType) else {}
