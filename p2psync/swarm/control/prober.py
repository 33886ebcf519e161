"""Decides when a node probes its network: it requests probe padding from peers and serves theirs. Sans-I/O.

A probe is a request: the peer sends padding for some seconds at most, and the requester ends it as soon as the rate has
converged. The path estimates of both see the padding as they see any transfer; the prober only decides that it flows. A
node requests one probe at a time (`ProbeReceiver._request_due`), and serves one or invites to one at a time
(`ProbeServer._invite_due`). It measures, in this order:

- the *path* from each other region, through one peer (`ProbeTargets.next_in_region`). All nodes order the nodes of a
  region alike; the first probes at once, each next one `rank_seconds` later, so that they do not share the path. A
  narrow uplink hides a wider path, so each probe takes another peer, those with wider announced uplinks first.
- its *downlink*, through several peers at one time, those of its region first (`ProbeTargets.for_own_link`), once all
  paths are measured and `settle_seconds` have passed.
- its *uplink*, likewise: it invites several peers, and starts once all of them have requested padding. A busy peer lets
  an invitation wait for a while, before its own probes.
- the path from a *parent* beyond `LOW_RTT` that never carried about what the plan has it carry, at a little above that
  rate, once all the above are measured (`ProbeSchedule.due_parents`): so the plan learns of it, and the connection
  finds its rate, before the first chunk.

`ProbeSchedule.finished` says when a probe is believed, and when the next one follows. Each direction has a budget,
whoever asks (`ProbeBudget.available`); a probe of a node's own link takes `own_link_share` of what is left. While
chunks flow nobody probes, and the publisher suppresses probes shortly before it publishes (`Prober.suppress`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from p2psync.protocol.messages import (
    Message,
    ProbeEnd,
    ProbeInvite,
    ProbePadding,
    ProbeRequest,
    SuppressProbes,
    UplinkRate,
)
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_actions import ProbeAction, SendMessage
from p2psync.swarm.control.probe_receiver import ProbeReceiver
from p2psync.swarm.control.probe_schedule import ProbeSchedule
from p2psync.swarm.control.probe_server import ProbeServer
from p2psync.swarm.control.probe_targets import ProbeTarget, ProbeTargets

_NEVER = float("-inf")


class Prober:
    """The probing of one node."""

    def __init__(
        self, node: str, region: str, config: ProbeConfig, estimates: NodeEstimates, rng: random.Random
    ) -> None:
        self._node = node
        self._config = config
        self._estimates = estimates
        self._actions: list[ProbeAction] = []
        self.schedule = ProbeSchedule(config, estimates, rng)
        self._targets = ProbeTargets(node, region, config, estimates, rng)
        parts = (config, estimates, self._targets, self.schedule, rng, self._actions)
        self._receiver = ProbeReceiver(*parts)
        self._server = ProbeServer(*parts)
        #: Whether chunks flow, or will in a moment.
        self._is_suppressed = False
        self._suppressed_until = _NEVER
        self._children: frozenset[str] = frozenset()
        self._announced_uplink = 0.0

    @property
    def busy(self) -> bool:
        """Whether padding flows or a probe waits for its start."""
        return self._receiver.is_busy or self._server.is_busy

    @property
    def pending(self) -> bool:
        """Whether there are actions for the driver."""
        return bool(self._actions)

    @property
    def down_sure(self) -> bool:
        """Whether two probes of the downlink agree, and the downlink, not the senders, limited them."""
        downlink = self.schedule.downlink
        return downlink is not None and downlink.is_confirmed and downlink.is_limit

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def members(self, same_region: Iterable[str]) -> None:
        """Takes the names of the nodes of this node's region, connected or not."""
        self._targets.same_region = [name for name in same_region if name != self._node]

    def planned(self, rates: Mapping[str, float], children: Iterable[str], now: float) -> None:
        """Takes a new plan. rates: bytes a second that each parent sends to this node."""
        self.schedule.planned(rates, now)
        self._children = frozenset(children)

    def suppress(self, now: float, seconds: float | None = None) -> None:
        """Ends probes here and at all descendants in the plan, because a version is about to come.

        seconds: at most the configured time. Nobody can suppress probes again before as long a time has passed.
        """
        most = self._config.suppressed_seconds
        if now < self._suppressed_until + most:
            return
        seconds = min(most, most if seconds is None else seconds)
        self._suppressed_until = now + seconds
        for name in sorted(self._children & self._targets.peers.keys()):
            self._actions.append(SendMessage(name, SuppressProbes(seconds)))
        self._stop(now)

    def peer_up(self, name: str, region: str, now: float) -> None:
        """Adds a connected peer; call it once."""
        self._targets.peers[name] = ProbeTarget(region)
        self.schedule.start(now)
        if self._announced_uplink:
            self._actions.append(SendMessage(name, UplinkRate(self._announced_uplink)))

    def peer_down(self, name: str, now: float) -> None:
        """Removes a disconnected peer."""
        self._targets.peers.pop(name, None)
        self._receiver.peer_down(name, now)
        self._server.peer_down(name, now)

    def again(self, name: str, now: float) -> None:
        """Schedules the path to a peer again, since its number of connections changed."""
        peer = self._targets.peers.get(name)
        if peer is None or not peer.was_asked:
            return
        region = self._targets.region_of(name)
        task = self.schedule.regions.get(region)
        if task is not None:
            task.due = min(task.due, now + self._config.retry_seconds)
            task.shown = {*self._targets.in_order(region)} - {name}

    def receive(self, name: str, message: Message, now: float) -> None:
        """Takes a message of a connected peer."""
        peer = self._targets.peers.get(name)
        if peer is None:
            return
        match message:
            case ProbeRequest():
                self._server.requested(name, message, now, may_start=not self._is_suppressed)
            case ProbePadding():
                self._receiver.padding(name, len(message.data))
            case ProbeInvite() if self._is_suppressed:
                self._receiver.decline(name, message.token)
            case ProbeInvite():
                self._receiver.invited(name, message.token, now)
            case ProbeEnd():
                if not self._receiver.ended(name, message, now):
                    self._server.declined(name, message.token, now)
            case UplinkRate():
                peer.uplink = message.rate
            case SuppressProbes() if name in self.schedule.planned_rates:
                self.suppress(now, message.seconds)
            case _:
                pass

    def padding_ended(self, name: str, sent: int, now: float) -> None:
        """Takes the end of the padding for a peer, after so many bytes."""
        self._server.padding_ended(name, sent, now)

    # ---- time and output -------------------------------------------------------------------------------------------

    def poll(self, transferring: bool, now: float) -> None:
        """Starts and ends probes that are due. transferring: whether chunks flow, or did a moment ago."""
        self._is_suppressed = transferring or now < self._suppressed_until
        if self._is_suppressed:
            self._stop(now)
            return
        self._update_regions(now)
        self._receiver.poll(now)
        self._server.poll(now)
        self._announce_uplink()

    def actions(self) -> list[ProbeAction]:
        """Returns the actions for the driver, in order, and clears them."""
        done = list(self._actions)
        self._actions.clear()
        return done

    def _stop(self, now: float) -> None:
        self._receiver.stop(now)
        self._server.stop(now)

    def _update_regions(self, now: float) -> None:
        """Makes a task for each other region of a peer, due `rank_seconds` later for each node before this one."""
        regions, tasks = self._targets.other_regions(), self.schedule.regions
        for region in [region for region in tasks if region not in regions]:
            del tasks[region]
        for region in sorted(regions - tasks.keys()):
            turn = self._targets.rank(region) * self._config.rank_seconds
            tasks[region] = self.schedule.new_task(now + turn)

    def _announce_uplink(self) -> None:
        """Tells all peers the uplink's rate once it is measured, and when it has clearly changed."""
        uplink, rate, told = self.schedule.uplink, self._estimates.up.value, self._announced_uplink
        factor = self._config.announce_factor
        if uplink is None or not uplink.is_measured or (told and told / factor < rate < told * factor):
            return
        self._announced_uplink = rate
        for name in sorted(self._targets.peers) if rate else ():
            self._actions.append(SendMessage(name, UplinkRate(rate)))
