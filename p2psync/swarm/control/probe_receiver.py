"""Probes whose padding this node receives: it requests them, or a peer invites it to. Sans-I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass

from p2psync.protocol.messages import ProbeEnd, ProbeRequest
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_actions import Disconnect, ProbeAction, SendMessage
from p2psync.swarm.control.probe_budget import ConvergenceDetector, ProbeBudget
from p2psync.swarm.control.probe_schedule import ProbeSchedule, ProbeTask
from p2psync.swarm.control.probe_targets import ProbeTargets


@dataclass(slots=True)
class _Probe:
    """The current probe. task: what it measures; None: a peer measures its uplink. targets: peers asked for padding.

    open: targets that have not ended it. until: when it ends at the latest. received: bytes of padding.
    """

    task: ProbeTask | None
    token: int
    targets: frozenset[str]
    open: set[str]
    until: float
    convergence: ConvergenceDetector
    is_declined: bool = False
    received: int = 0


class ProbeReceiver:
    """One probe at a time: the next invitation that waits, else the task that is due."""

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
        #: Invitations that wait until this node is free, by peer: token, and until when.
        self._invitations: dict[str, tuple[int, float]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a probe runs."""
        return self._probe is not None

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def invited(self, name: str, token: int, now: float) -> None:
        """Takes the invitation of a peer that measures its uplink: accepts it, keeps it while another probe runs, or
        declines it while this node's paths are not measured. An inviting peer cannot serve this node's probe at the
        same time.
        """
        if self._invitation_bytes(now) < self._config.min_bytes or not self._schedule.are_paths_measured(now):
            self.decline(name, token)
        elif self._probe is None:
            self._accept(name, token, now)
        else:
            self._invitations[name] = token, now + self._config.invitation_seconds

    def decline(self, name: str, token: int) -> None:
        """Declines an invitation."""
        self._actions.append(SendMessage(name, ProbeEnd(token, 0)))

    def padding(self, name: str, size: int) -> None:
        """Counts received padding; disconnects a peer that sends more than this node requested."""
        peer = self._targets.peers[name]
        peer.owed -= size
        self._budget.spend(size)
        if peer.owed < 0:
            self._actions.append(Disconnect(name, "it sends probe padding that nobody asked it for"))
        if self._probe is not None and name in self._probe.open:
            self._probe.received += size

    def ended(self, name: str, end: ProbeEnd, now: float) -> bool:
        """Handles the end or refusal of a probe or invitation. Returns whether this node receives that probe."""
        if self._probe is not None and end.token == self._probe.token:
            self._target_ended(self._probe, name, now, is_declined=end.sent == 0)
            return True
        if self._invitations.get(name, (None, 0.0))[0] == end.token:
            del self._invitations[name]
            return True
        return False

    def peer_down(self, name: str, now: float) -> None:
        """Removes a disconnected peer."""
        self._invitations.pop(name, None)
        if self._probe is not None:
            self._target_ended(self._probe, name, now, is_declined=False)

    def stop(self, now: float) -> None:
        """Ends the current probe without a result, and declines waiting invitations: chunks need the links."""
        for name, (token, _) in self._invitations.items():
            self.decline(name, token)
        self._invitations.clear()
        if self._probe is not None:
            task, self._probe.task = self._probe.task, None
            self._finish(self._probe, now)
            if task is not None:
                self._schedule.postpone(task, now, self._config.retry_seconds)

    def poll(self, now: float) -> None:
        """Ends the current probe, and starts the next one, if due."""
        probe = self._probe
        if probe is not None:
            # An invited node does not know whether the inviter's rate has converged: the inviter ends that probe.
            converged = probe.task is not None and probe.convergence.has_converged(probe.received, now)
            if converged or now >= probe.until:
                self._finish(probe, now)
        while self._invitations and self._probe is None:
            name = next(iter(self._invitations))
            token, until = self._invitations.pop(name)
            if now < until:
                self.invited(name, token, now)
        if self._probe is None:
            self._request_due(now)

    # ---- requesting ------------------------------------------------------------------------------------------------

    def _request_due(self, now: float) -> None:
        """Requests the probe that is due: the path from a region, or the downlink once the paths are measured; the one
        with the fewest attempts first. Else the path from a parent.
        """
        schedule, downlink = self._schedule, self._schedule.downlink
        due = [(task, region) for region, task in schedule.regions.items() if task.due <= now]
        # Plans need paths first: the downlink's first probe waits until they are measured, the next until confirmed.
        if (
            downlink is not None
            and downlink.due <= now
            and schedule.are_paths_measured(now, confirmed=downlink.is_measured)
        ):
            if schedule.is_downlink_ample:
                schedule.skip(downlink, now)
            else:
                due.append((downlink, ""))
        if not due:
            self._request_of_parent(now)
            return
        task, region = min(due, key=lambda one: (one[0].attempts, one[0].due))
        if task is downlink:
            self._request(task, self._targets.for_own_link(task, self._config.downlink_peers, downlink=True), now)
        else:
            self._request(task, [self._targets.next_in_region(region, task)], now)

    def _request_of_parent(self, now: float) -> None:
        """Probes a path of the plan at a little more than its planned rate, once the plan rests on measurements."""
        schedule = self._schedule
        if not schedule.is_all_measured(now):
            return
        due = [name for name in schedule.due_parents(now) if name in self._targets.peers]
        if due:
            name = min(due, key=lambda name: (schedule.parents[name].attempts, schedule.parents[name].due))
            rate = self._config.planned_path_gain * schedule.planned_rates[name]
            self._request(schedule.parents[name], [name], now, rate)

    def _request(self, task: ProbeTask, names: list[str], now: float, rate: float = 0.0) -> None:
        """Requests a probe of these peers, or postpones it if the budget forbids it. rate: bytes a second at most; 0:
        no limit.
        """
        available = self._available(now)
        if task is self._schedule.downlink:
            available = int(available * self._config.own_link_share)
        size = min(self._config.max_bytes, available // max(1, len(names)))
        seconds = self._targets.max_seconds(names)
        if rate:
            size = min(size, max(self._config.min_bytes, int(rate * seconds)))
        if not names or size < self._config.min_bytes:
            self._schedule.postpone(task, now, self._config.budget_seconds)
            return
        task.attempts += 1
        until = now + seconds + self._config.answer_seconds
        self._begin(self._new_probe(task, self._rng.getrandbits(32), names, until), size, seconds, rate)

    def _accept(self, name: str, token: int, now: float) -> None:
        seconds = self._targets.max_seconds([name])
        # The inviter starts when all that it invited are free.
        until = now + seconds + self._config.answer_seconds + self._config.invitation_seconds
        self._begin(self._new_probe(None, token, [name], until), self._invitation_bytes(now), seconds, 0.0)

    def _new_probe(self, task: ProbeTask | None, token: int, names: list[str], until: float) -> _Probe:
        return _Probe(task, token, frozenset(names), set(names), until, self._targets.convergence(names))

    def _begin(self, probe: _Probe, size: int, seconds: float, rate: float) -> None:
        self._probe = probe
        for name in sorted(probe.targets):
            self._targets.peers[name].owed += size
            self._targets.peers[name].was_asked = True
            self._actions.append(SendMessage(name, ProbeRequest(probe.token, size, seconds, rate)))

    def _available(self, now: float) -> int:
        downlink = self._schedule.downlink
        return self._budget.available(
            self._estimates.down.value, now, is_measured=downlink is not None and downlink.is_measured
        )

    def _invitation_bytes(self, now: float) -> int:
        return min(self._config.max_bytes, int(self._available(now) * self._config.own_link_share))

    # ---- ending ----------------------------------------------------------------------------------------------------

    def _target_ended(self, probe: _Probe, name: str, now: float, *, is_declined: bool) -> None:
        if name in probe.open:
            probe.open.discard(name)
            probe.is_declined |= is_declined
            if not probe.open or probe.is_declined:
                self._finish(probe, now)

    def _finish(self, probe: _Probe, now: float) -> None:
        """Ends a probe. It succeeds if no peer declined it and enough padding came."""
        for name in sorted(probe.open):
            self._actions.append(SendMessage(name, ProbeRequest(probe.token, 0, 0.0)))
        self._probe = None
        if probe.task is None:
            return
        if probe.received < self._config.min_bytes or probe.is_declined:
            self._schedule.postpone(probe.task, now, self._config.retry_seconds)
        elif probe.task is self._schedule.downlink:
            self._downlink_probed(probe.task, probe.targets, now)
        else:
            self._path_probed(probe.task, now)

    def _downlink_probed(self, task: ProbeTask, probed: frozenset[str], now: float) -> None:
        best = self._estimates.down.value
        task.is_limit = self._targets.total_uplink(probed) > self._config.limit_factor * best
        self._schedule.finished(task, now, best, hidden=self._targets.is_downlink_hidden(probed, best))

    def _path_probed(self, task: ProbeTask, now: float) -> None:
        names: list[str] = []
        if task.last_target in self._targets.peers:
            task.shown.add(task.last_target)
            names = self._targets.in_order(self._targets.region_of(task.last_target))
        best = self._targets.best_received_from(names)
        self._schedule.finished(task, now, best, hidden=self._targets.is_path_hidden(names, task.shown, best))
