"""Probes whose padding this node sends: peers request them, or it measures its own uplink. Sans-I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbeRequest
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.estimators import LOW_RTT
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_actions import ProbeAction, SendMessage, StartPadding, StopPadding
from p2psync.swarm.control.probe_budget import ConvergenceDetector, ProbeBudget
from p2psync.swarm.control.probe_schedule import ProbeSchedule, ProbeTask
from p2psync.swarm.control.probe_targets import ProbeTargets


@dataclass(slots=True)
class _Probe:
    """The current probe. task: the uplink's, None if a peer requested it. until: when it ends at the latest.

    invited: peers that have not answered. granted: bytes for each peer. seconds, rate: as requested.

    Of the own uplink: pool: bytes for all peers together, so that none falls silent before the others; sent: bytes so
    far; delivered_before: bytes that this node had delivered when it started, at `started_at`.
    """

    task: ProbeTask | None
    token: int
    until: float
    convergence: ConvergenceDetector
    invited: set[str] = field(default_factory=set)
    granted: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    rate: float = 0.0
    is_started: bool = False
    started_at: float = 0.0
    sent: int = 0
    pool: int = 0
    delivered_before: int = 0


class ProbeServer:
    """One probe at a time: padding for one peer that requested it, or for all that accepted an invitation."""

    def __init__(
        self,
        config: ProbeConfig,
        estimates: NodeEstimates,
        targets: ProbeTargets,
        schedule: ProbeSchedule,
        rng: random.Random,
        actions: list[ProbeAction],
    ) -> None:
        """actions: takes the actions for the driver."""
        self._config = config
        self._estimates = estimates
        self._targets = targets
        self._schedule = schedule
        self._rng = rng
        self._actions = actions
        self._budget = ProbeBudget(config)
        self._probe: _Probe | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a probe runs."""
        return self._probe is not None

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def requested(self, name: str, request: ProbeRequest, now: float, *, may_start: bool) -> None:
        """Handles a peer's request for padding, or for its end. may_start: whether links are free for probes."""
        if request.size == 0:
            self._stop_requested(name, request.token, now)
            return
        probe = self._probe
        is_own = probe is not None and probe.token == request.token and name in probe.invited
        size = self._grant(request.size, name, now, is_own=is_own) if may_start else 0
        if not size:
            self._actions.append(SendMessage(name, ProbeEnd(request.token, 0)))
            return
        seconds = min(request.seconds, self._config.max_seconds)
        if probe is None:
            probe = self._probe = _Probe(None, request.token, now + seconds, self._targets.convergence([name]))
        probe.invited.discard(name)
        probe.granted[name] = size
        probe.seconds, probe.rate = max(probe.seconds, seconds), request.rate
        self._targets.peers[name].served_at = now
        if not is_own:
            self._budget.spend(size)
        if not probe.invited:
            self._start(probe, now)

    def declined(self, name: str, token: int, now: float) -> None:
        """Ends a probe whose invitation a peer declines: it needs all of them at one time."""
        probe = self._probe
        if probe is not None and probe.token == token and name in probe.invited:
            if probe.task is not None:
                probe.task.busy_at[name] = now
            probe.invited.discard(name)
            self._cancel(probe, now)

    def padding_ended(self, name: str, sent: int, now: float) -> None:
        """Tells a peer that its padding has ended, after so many bytes."""
        if self._probe is not None and name in self._probe.granted:
            self._actions.append(SendMessage(name, ProbeEnd(self._probe.token, sent)))
            self._peer_done(self._probe, name, sent, now)

    def peer_down(self, name: str, now: float) -> None:
        """Removes a disconnected peer."""
        if self._probe is not None:
            self.declined(name, self._probe.token, now)
        if self._probe is not None:
            self._peer_done(self._probe, name, 0, now)

    def stop(self, now: float) -> None:
        """Ends the current probe without a result: chunks need the links."""
        probe = self._probe
        if probe is None:
            return
        if probe.task is not None:
            self._schedule.postpone(probe.task, now, self._config.retry_seconds)
            probe.task = None
        if probe.is_started:
            self._stop_padding(probe)
        else:
            self._cancel(probe, now)

    def poll(self, now: float) -> None:
        """Ends the current probe, and invites to the next one, if due."""
        if self._probe is not None:
            self._watch(self._probe, now)
        if self._probe is None:
            self._invite_due(now)

    # ---- serving ---------------------------------------------------------------------------------------------------

    def _grant(self, requested: int, name: str, now: float, *, is_own: bool) -> int:
        """Returns the bytes of padding for a peer; 0: none now. is_own: it accepts this node's invitation."""
        peer = self._targets.peers[name]
        if is_own and self._probe is not None:
            available = self._probe.pool
        elif self._probe is None and now - peer.served_at >= self._config.serve_again_seconds:
            available = self._available(now)
            if peer.region == self._targets.region:
                available = int(available * self._config.own_link_share)
        else:
            return 0
        size = min(requested, available, self._config.max_bytes)
        return size if size >= min(requested, self._config.min_bytes) else 0

    def _start(self, probe: _Probe, now: float) -> None:
        """Starts the padding, once all peers have answered."""
        probe.is_started = True
        probe.started_at = now
        probe.until = now + probe.seconds
        probe.delivered_before = self._estimates.delivered
        probe.convergence = self._targets.convergence(probe.granted)
        for name, size in sorted(probe.granted.items()):
            rate = probe.rate or self._path_limit(name, probe)
            self._actions.append(StartPadding(name, size, probe.until, rate))

    def _path_limit(self, name: str, probe: _Probe) -> float:
        """Returns the bytes a second for one of several paths over which the own uplink is measured; 0: no limit.

        Padding beyond a path's own rate is lost behind the uplink, and takes the other paths' part of it.
        """
        path = self._estimates.paths.get(name)
        if not probe.pool or len(probe.granted) == 1 or path is None or path.rtt <= LOW_RTT:
            return 0.0
        return self._config.uplink_path_gain * path.sent.value

    def _watch(self, probe: _Probe, now: float) -> None:
        if not probe.is_started:
            if now >= probe.until:
                self._cancel(probe, now)
            return
        delivered = self._estimates.delivered
        converged = probe.task is not None and probe.convergence.has_converged(delivered, now)
        is_spent = probe.pool and delivered - probe.delivered_before >= probe.pool
        if converged or is_spent or now >= probe.until + self._config.answer_seconds:
            self._stop_padding(probe)

    def _stop_requested(self, name: str, token: int, now: float) -> None:
        probe = self._probe
        if probe is None or probe.token != token or name not in probe.granted:
            return
        if probe.is_started:
            self._actions.append(StopPadding(name))
        else:
            self._peer_done(probe, name, 0, now)

    def _stop_padding(self, probe: _Probe) -> None:
        self._actions += [StopPadding(name) for name in sorted(probe.granted)]

    def _cancel(self, probe: _Probe, now: float) -> None:
        """Ends a probe that has not started."""
        for name in sorted({*probe.granted, *probe.invited}):
            self._actions.append(SendMessage(name, ProbeEnd(probe.token, 0)))
        probe.granted.clear()
        probe.invited.clear()
        self._finish(probe, now)

    def _peer_done(self, probe: _Probe, name: str, sent: int, now: float) -> None:
        granted = probe.granted.pop(name, None)
        if granted is not None:
            # The budget paid for a request when it was granted, and gets the rest back.
            self._budget.spend(sent if probe.pool else sent - granted)
            probe.sent += sent
        if not probe.granted and not probe.invited:
            self._finish(probe, now)

    def _finish(self, probe: _Probe, now: float) -> None:
        """Ends a probe. One of the uplink succeeds if the estimate includes it."""
        self._probe = None
        if probe.task is None:
            return
        if probe.is_started and self._is_seen(probe, now):
            self._schedule.finished(probe.task, now, self._estimates.up.value)
        else:
            self._schedule.postpone(probe.task, now, self._config.retry_seconds)

    def _is_seen(self, probe: _Probe, now: float) -> bool:
        """Returns whether the estimate of the uplink includes the probe, which over a fast link may be too short."""
        seconds = max(self._config.uplink_min_seconds, now - probe.started_at)
        known = self._estimates.up.value
        return not known or known >= self._config.uplink_seen_share * probe.sent / seconds

    # ---- the own uplink --------------------------------------------------------------------------------------------

    def _invite_due(self, now: float) -> None:
        """Invites peers to a probe of the uplink if it is due and the paths are measured."""
        task = self._schedule.uplink
        if task is None or task.due > now or not self._schedule.are_paths_measured(now):
            return
        names = self._targets.for_own_link(task, self._config.uplink_peers)
        pool = int(self._config.own_link_share * self._available(now))
        if not names or pool < self._config.min_bytes:
            self._schedule.postpone(task, now, self._config.budget_seconds)
            return
        token = self._rng.getrandbits(32)
        until = now + self._config.answer_seconds + self._config.invitation_seconds
        self._probe = _Probe(task, token, until, self._targets.convergence(names), set(names), pool=pool)
        task.attempts += 1
        for name in names:
            self._actions.append(SendMessage(name, ProbeInvite(token)))

    def _available(self, now: float) -> int:
        uplink = self._schedule.uplink
        return self._budget.available(
            self._estimates.up.value, now, is_measured=uplink is not None and uplink.is_measured
        )
