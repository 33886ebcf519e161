"""What vLLM calls in each of its processes (`vllm.general_plugins`): makes the backend `p2psync` known to it.

vllm serve MODEL --weight-transfer-config '{"backend": "p2psync"}'
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

NAME = "p2psync"


def register() -> None:
    """Register both sides of the backend. Again, or in a process that has it already: no effect."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, "actor.vllm_backend", "P2PSyncWeightTransferEngine")
    if NAME not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(NAME, "trainer.vllm_engine", "P2PSyncTrainerEngine")
    _keep_plain_weights()
    _let_scan_pass()


def chosen(vllm_config: Any) -> bool:
    """Whether this engine was told to use the backend."""
    transfer = getattr(vllm_config, "weight_transfer_config", None)
    return transfer is not None and transfer.backend == NAME


def _keep_plain_weights() -> None:
    """On CPUs vLLM packs matrices for oneDNN and empties the parameters: not in an engine whose parameters are written
    while it lives. Other engines are left as they are."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and not isinstance(_custom_ops._supports_onednn, _UnlessChosen):
        _custom_ops._supports_onednn = _UnlessChosen(bool(_custom_ops._supports_onednn))


def _let_scan_pass() -> None:
    """vLLM 0.32 looks through the objects of all modules on CPUs, and fails over one of llvmlite's that has any
    attribute it is asked for, where a program imported p2psync before its workers were started."""
    with suppress(ImportError):
        from vllm.triton_utils import dispatcher

        dispatcher.vars = _attributes


def _attributes(value: object) -> Mapping[str, Any]:
    found: object = vars(value)
    return found if isinstance(found, dict | MappingProxyType) else {}


class _UnlessChosen:
    """True where it was, but not while a model is loaded for an engine that uses the backend."""

    def __init__(self, otherwise: bool) -> None:
        self._otherwise = otherwise

    def __bool__(self) -> bool:
        from vllm.config import get_current_vllm_config_or_none

        return self._otherwise and not chosen(get_current_vllm_config_or_none())
