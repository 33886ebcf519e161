"""The objects that the parts of a running node share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p2psync.net.diagnostics import Diagnostics
from p2psync.net.hub_client import HubClient
from p2psync.net.node_tasks import NodeTasks
from p2psync.store.packs import Store
from p2psync.swarm.node import NodeCore


@dataclass(frozen=True, slots=True)
class NodeContext:
    """clock: of the loop (seconds). wake: has the core polled and its actions carried out in this turn of the loop."""

    core: NodeCore
    hub: HubClient
    store: Store
    tasks: NodeTasks
    diagnostics: Diagnostics
    clock: Callable[[], float]
    wake: Callable[[], None]
