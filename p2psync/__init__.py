"""Every new policy of a reinforcement-learned model, bit for bit, on every rollout actor.

    from p2psync import Publisher, TrainerConfig

    with Publisher(policy, TrainerConfig(store="run", key="trainer.key")) as publisher:
        for batch in batches:
            optimizer.step()
            publisher.publish()

Each name is loaded when it is first used: `import p2psync` is cheap and needs neither torch nor numpy. What stands in
`__all__` needs torch at most; `PublishCallback` needs transformers.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from p2psync.errors import (
    BaseMismatchError,
    DamagedError,
    DigestMismatchError,
    EngineError,
    FencedError,
    FormatError,
    HubError,
    LeaseError,
    LineageFullError,
    MisfitError,
    ModuleError,
    P2PSyncError,
    RanksError,
    ReplayError,
    StoreError,
    TrustError,
    UnvouchedError,
    UsageError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from p2psync.actor.node import ActorConfig, ActorNode
    from p2psync.actor.subscriber import Subscriber
    from p2psync.membership.hub import HubConfig
    from p2psync.net.hub import HubService
    from p2psync.observe.events import Committed, Event, Published
    from p2psync.observe.log_events import EventLog
    from p2psync.protocol.versions import Position
    from p2psync.trainer.config import TrainerConfig
    from p2psync.trainer.fsdp.publisher import FsdpPublisher
    from p2psync.trainer.huggingface import PublishCallback as PublishCallback
    from p2psync.trainer.ledger.config import LedgerConfig
    from p2psync.trainer.node import TrainerNode
    from p2psync.trainer.publisher import Publisher
    from p2psync.trainer.rollouts import RemoteRollouts, Rollouts

    __version__: str

__all__ = [
    "ActorConfig",
    "ActorNode",
    "BaseMismatchError",
    "Committed",
    "DamagedError",
    "DigestMismatchError",
    "EngineError",
    "Event",
    "EventLog",
    "FencedError",
    "FormatError",
    "FsdpPublisher",
    "HubConfig",
    "HubError",
    "HubService",
    "LeaseError",
    "LedgerConfig",
    "LineageFullError",
    "MisfitError",
    "ModuleError",
    "P2PSyncError",
    "Position",
    "Published",
    "Publisher",
    "RanksError",
    "RemoteRollouts",
    "ReplayError",
    "Rollouts",
    "StoreError",
    "Subscriber",
    "TrainerConfig",
    "TrainerNode",
    "TrustError",
    "UnvouchedError",
    "UsageError",
    "WaitTimeoutError",
    "__version__",
]

#: Where each name that is loaded at its first use stands.
_MODULES = {
    "ActorConfig": "p2psync.actor.node",
    "ActorNode": "p2psync.actor.node",
    "Committed": "p2psync.observe.events",
    "Event": "p2psync.observe.events",
    "EventLog": "p2psync.observe.log_events",
    "FsdpPublisher": "p2psync.trainer.fsdp.publisher",
    "HubConfig": "p2psync.membership.hub",
    "HubService": "p2psync.net.hub",
    "LedgerConfig": "p2psync.trainer.ledger.config",
    "Position": "p2psync.protocol.versions",
    "PublishCallback": "p2psync.trainer.huggingface",
    "Published": "p2psync.observe.events",
    "Publisher": "p2psync.trainer.publisher",
    "RemoteRollouts": "p2psync.trainer.rollouts",
    "Rollouts": "p2psync.trainer.rollouts",
    "Subscriber": "p2psync.actor.subscriber",
    "TrainerConfig": "p2psync.trainer.config",
    "TrainerNode": "p2psync.trainer.node",
}

#: The extra that brings a module which p2psync does without elsewhere.
_EXTRAS = {"torch": "torch", "safetensors": "torch", "transformers": "smollm"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = _installed_version()
    elif name in _MODULES:
        value = getattr(_import(_MODULES[name], name), name)
    else:
        raise AttributeError(f"module 'p2psync' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise ImportError(f"p2psync.{name} needs {error.name}: pip install 'p2psync[{_EXTRAS[error.name]}]'") from error


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("p2psync")
    except PackageNotFoundError:  # run from its source, and not installed
        return "0+source"
