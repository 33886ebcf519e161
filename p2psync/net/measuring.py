"""Measures and controls the connections of one node over real sockets: `NetworkMonitor` on an event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.net.peers import PeerTable
from p2psync.swarm.control.monitor import FIRST_STREAMS, MeasureConfig, NetworkMonitor

__all__ = ["FIRST_STREAMS", "MeasureConfig", "Measuring"]


class Measuring(NetworkMonitor):
    """The monitor of a node whose connections are a `PeerTable`; made while its loop runs."""

    def __init__(
        self,
        info: NodeInfo,
        peers: PeerTable,
        rng: random.Random,
        config: MeasureConfig,
        *,
        streams: int,
        congestion: str,
        on_measures: Callable[[NodeStatistics], None] = lambda statistics: None,
        on_connections: Callable[[str, int], None] = lambda peer, count: None,
        on_pace: Callable[[float], bool] = lambda rate: False,
        others_fetch: Callable[[], bool] = lambda: False,
    ) -> None:
        """See `NetworkMonitor`."""
        super().__init__(
            info,
            peers,
            rng,
            config,
            asyncio.get_running_loop(),
            streams=streams,
            congestion=congestion,
            on_measures=on_measures,
            on_connections=on_connections,
            on_pace=on_pace,
            others_fetch=others_fetch,
        )
