"""Measures and controls the connections of one node, on a timer that ticks faster while padding flows.

Samples the connections and gives each sample to the estimates, the path controllers and the uplink pacer; gives the
plan to all of them; carries out what the prober and the stream policy decide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.protocol.messages import (
    MAX_STREAMS,
    Message,
    ProbeEnd,
    ProbeInvite,
    ProbePadding,
    ProbeRequest,
    RequestStreams,
    SuppressProbes,
    UplinkRate,
)
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.control.config import (
    ADJUST_EVERY,
    INITIAL_STREAMS,
    LARGE,
    MBIT,
    NEAR_RTT_SECONDS,
    QUIET,
    TICK,
    TICK_PROBING,
    MeasureConfig,
)
from p2psync.swarm.control.connection_sampler import ConnectionSampler
from p2psync.swarm.control.connections import Connections, Scheduler, TimerHandle
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.path_controllers import PathControllers
from p2psync.swarm.control.probe_actions import Disconnect, SendMessage, StartPadding, StopPadding
from p2psync.swarm.control.probe_sender import ProbeSender
from p2psync.swarm.control.prober import Prober
from p2psync.swarm.control.report import Reporter
from p2psync.swarm.control.stream_manager import StreamManager
from p2psync.swarm.control.stream_policy import TOLERANT, StreamPolicy
from p2psync.swarm.control.uplink_pacer import UplinkPacer


class NetworkMonitor:
    """Measures and controls the connections of one node."""

    def __init__(
        self,
        info: NodeInfo,
        peers: Connections,
        rng: random.Random,
        config: MeasureConfig,
        loop: Scheduler,
        *,
        streams: int,
        congestion: str,
        on_measures: Callable[[NodeStatistics], None] = lambda statistics: None,
        on_connections: Callable[[str, int], None] = lambda peer, count: None,
        on_pace: Callable[[float], bool] = lambda rate: False,
        others_fetch: Callable[[], bool] = lambda: False,
    ) -> None:
        """streams: connections to each peer; 0: as measurements say. congestion: their algorithm; "": the kernel's.

        on_measures: takes new statistics. on_connections: takes the number of connections of a peer, now and then.
        on_pace: takes the limit of the uplink (bytes/s; 0: none), and returns whether chunks waited for it.
        others_fetch: whether peers still fetch from this node, over links that probes would use.
        """
        self._region = info.region
        self._peers = peers
        self._config = config
        self._on_measures = on_measures
        self._on_pace = on_pace
        self._others_fetch = others_fetch
        self.estimates = NodeEstimates(config.estimates)
        self._reporter = Reporter(self.estimates)
        self._prober = Prober(info.node, info.region, config.probing, self.estimates, rng)
        policy = StreamPolicy(congestion, streams or INITIAL_STREAMS)
        # One flow of BBR fills a path, and two overflow a short queue: probes show the same over any number.
        self._one_fills = policy.is_tolerant
        self._streams = StreamManager(peers, policy, adapts=streams == 0, on_count=on_connections)
        self._probe_sender = ProbeSender(peers, 1 if self._one_fills else MAX_STREAMS, self._padding_ended, loop)
        self._path_controllers = PathControllers(peers, probes_rtt=congestion in ("", *TOLERANT), config=config.paths)
        self._uplink_pacer = UplinkPacer(config.uplink)
        self._sampler = ConnectionSampler(peers)
        self._up: set[str] = set()
        #: Connected peers that the prober does not know yet, with their regions.
        self._fresh: dict[str, str] = {}
        #: Bytes of padding so far.
        self.padding_received = 0
        self._statistics = NodeStatistics()
        self._reported_degradations = 0
        #: Planned bytes/s to each child.
        self._planned: dict[str, float] = {}
        self._ticked_at = self._adjusted_at = 0.0
        #: Whether chunks flowed at the last tick, and when a transfer started last.
        self._flowed = False
        self._transfer_at = float("-inf")
        self._timer: TimerHandle | None = None
        self._loop = loop

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the timer."""
        self._ticked_at = self._adjusted_at = self._loop.time()
        self._timer = self._loop.call_later(TICK, self._tick)

    def stop(self) -> None:
        """Stops the timer and all padding."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._probe_sender.close()

    @property
    def padding_sent(self) -> int:
        """Bytes of padding so far."""
        return self._probe_sender.sent

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def members(self, infos: Iterable[NodeInfo]) -> None:
        """Takes all members of the swarm."""
        known = {info.node: info for info in infos}
        self.estimates.keep(known.keys())
        self._reporter.set_members(known.keys())
        self._prober.members(name for name, info in known.items() if info.region == self._region)

    def planned(self, plan: NodePlan) -> None:
        """Takes this node's part of a new plan."""
        self._reporter.set_planned(plan.peers)
        self._planned = {name: rate / MBIT for name, rate in plan.rates_to().items()}
        for name in sorted(self._up.intersection(self._planned)):
            self._adjust_streams(name)
        self._expect()
        self._path_controllers.set_plan(plan)
        from_parents = {name: rate / MBIT for name, rate in plan.rates_from().items()}
        self._prober.planned(from_parents, plan.rates_to(), self._loop.time())

    def version_comes(self) -> None:
        """Suppresses probes: a version is being made here, and its first chunks should meet no padding."""
        if self._config.probe:
            self._prober.suppress(self._loop.time())
            self._act()

    def transfer_begins(self, nbytes: int) -> None:
        """Paces and restarts far paths for a transfer of so many bytes, unless chunks flowed within `QUIET` seconds.

        Without BBR only for a large one (`LARGE`). Call it before the transfer sends anything, its manifest too: BBR
        stops a connection that was idle for ten seconds at the first acknowledgement.
        """
        now = self._loop.time()
        # The first chunks may outrun the check of the manifest, so the chunks of the last tick count.
        if self._flowed or now - self._transfer_at < QUIET:
            return
        if nbytes <= LARGE and not self._path_controllers.probes_rtt:
            return
        self._transfer_at = now
        paths = self.estimates.paths
        far = {name for name in self._up if name in paths and paths[name].rtt > NEAR_RTT_SECONDS}
        self._path_controllers.start_transfer(far.difference(self._probe_sender.peers), now, nbytes)

    def peer_up(self, name: str, region: str) -> None:
        """Adds a connected peer; ignores its further connections."""
        if name not in self._up:
            self._up.add(name)
            self._fresh[name] = region
            if region and self._region and region != self._region:
                self.estimates.set_region(name, region)
                self._reporter.set_remote(name, True)

    def peer_down(self, name: str) -> None:
        """Removes a disconnected peer."""
        self._up.discard(name)
        self._fresh.pop(name, None)
        self._probe_sender.stop(name)
        self._prober.peer_down(name, self._loop.time())
        self._streams.forget(name)
        self.estimates.set_region(name, "")
        self._reporter.set_remote(name, False)
        self._act()

    def dial_failed(self, name: str) -> None:
        """Reports a failed dial of a member."""
        self._reporter.failed(name)

    def message(self, name: str, message: Message) -> bool:
        """Takes a message; returns whether it is one of the control's."""
        if isinstance(message, RequestStreams):
            self._streams.request(name, message.count)
            if name in self._up:
                self._adjust_streams(name)
            return True
        if not isinstance(message, ProbeRequest | ProbePadding | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes):
            return False
        self._introduce(name)
        if isinstance(message, ProbePadding):
            self.padding_received += len(message.data)
        self._prober.receive(name, message, self._loop.time())
        if self._prober.pending:
            self._act()
            self._tick_soon()
        return True

    def statistics(self) -> NodeStatistics:
        """Returns the statistics for the hub; the downlink counts once the prober is sure of it, or nobody probes."""
        return self._reporter.report(is_down_sure=not self._config.probe or self._prober.down_sure)

    # ---- ticks -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        try:
            self._look(self._loop.time())
        finally:
            self._timer = self._loop.call_later(TICK_PROBING if self._prober.busy else TICK, self._tick)

    def _tick_soon(self) -> None:
        if self._timer is not None and self._timer.when() > self._loop.time() + TICK_PROBING:
            self._timer.cancel()
            self._timer = self._loop.call_later(TICK_PROBING, self._tick)

    def _look(self, now: float) -> None:
        self._sample(now)
        seconds, self._ticked_at = now - self._ticked_at, now
        silent = now - self._peers.chunk_at
        self._flowed = silent < QUIET
        for name in list(self._fresh):
            self._introduce(name)
        if self._config.probe:
            flowing = silent < self._config.probing.quiet_seconds
            flowing = flowing or (silent < self._config.probing.yield_seconds and self._others_fetch())
            self._prober.poll(flowing, now)
            self._act()
        self._watch_streams(seconds, now)
        if now - self._adjusted_at >= ADJUST_EVERY:
            self._adjusted_at = now
            self._adjust()
            self._path_controllers.restart_idle(now)
        elif self.estimates.degradations > self._reported_degradations:
            self._report()

    def _sample(self, now: float) -> None:
        samples, gone = self._sampler.sample(now)
        for stream in gone:
            self.estimates.closed(stream)
        self._path_controllers.observe(samples, now, self._probe_sender.peers)
        self.estimates.read(samples, now, transferring=now - self._peers.chunk_at < QUIET)
        pacer = self._uplink_pacer
        has_waited = self._on_pace(pacer.rate)
        planned = sum(self._planned.values())
        self._on_pace(
            pacer.observe(samples, now, known=self.estimates.up.value, planned=planned, has_waited=has_waited)
        )

    def _introduce(self, name: str) -> None:
        """Tells the prober of a peer, once its first connection shows whether it is on this machine."""
        streams = self._peers.streams(name)
        region = self._fresh.pop(name, None) if streams else None
        if region is not None and (self._config.loopback or not streams[0].local):
            self._prober.peer_up(name, region, self._loop.time())

    def _watch_streams(self, seconds: float, now: float) -> None:
        # A flow with a pacing limit does not show how many connections its path needs.
        for name in self._up.difference(self._probe_sender.paced, self._path_controllers.paced):
            path = self.estimates.paths.get(name)
            if path is not None and (path.network_limited_since is not None or path.sending):
                self._streams.observe(name, path, seconds, now)

    def _adjust(self) -> None:
        for name in sorted(self._up):
            self._adjust_streams(name)
            if self._peers.dialled(name):
                self._reporter.opened(name)
        self._expect()
        self._report()

    def _adjust_streams(self, name: str) -> None:
        changed = self._streams.adjust(name, self.estimates.paths.get(name), self._planned.get(name, 0.0))
        if changed and not self._one_fills:
            self._prober.again(name, self._loop.time())

    def _expect(self) -> None:
        self.estimates.expect({name: rate * self._streams.open_share(name) for name, rate in self._planned.items()})

    def _report(self) -> None:
        self._reported_degradations = self.estimates.degradations
        statistics = self.statistics()
        if statistics is not self._statistics:
            self._statistics = statistics
            self._on_measures(statistics)

    # ---- probing ---------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        while actions := self._prober.actions():
            for action in actions:
                match action:
                    case SendMessage():
                        self._peers.send(action.peer, action.message)
                    case StartPadding():
                        self._probe_sender.start(action.peer, action.size, action.until, action.rate)
                    case StopPadding():
                        self._probe_sender.stop(action.peer)
                    case Disconnect():
                        self._peers.hang_up(action.peer, action.reason)

    def _padding_ended(self, name: str, sent: int) -> None:
        self._prober.padding_ended(name, sent, self._loop.time())
        # Within an action, the loop in `_act` carries out the actions that this adds; after a timer, this call does.
        self._loop.call_later(0, self._act)
