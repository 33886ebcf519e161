"""Schedules the probes of a node: paths from other regions and parents, and its own links. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.estimators import LOW_RTT
from p2psync.swarm.control.node_estimates import NodeEstimates


@dataclass(slots=True)
class ProbeTask:
    """One thing to measure. Seconds, and bytes a second.

    due: when. attempts: probes since the last success. is_measured: a probe succeeded. is_confirmed: a later one gave
    no more, see `ProbeSchedule.finished`. best_rate: the figure after the last success.

    last_target: the peer probed last, where a probe has one target. shown: targets whose probes succeeded.
    busy_at: when each peer last declined. is_limit: of a downlink, whether it, and not the senders, limited a probe.
    """

    due: float
    attempts: int = 0
    is_measured: bool = False
    is_confirmed: bool = False
    is_limit: bool = False
    last_target: str = ""
    best_rate: float = 0.0
    shown: set[str] = field(default_factory=set)
    busy_at: dict[str, float] = field(default_factory=dict)


class ProbeSchedule:
    """The tasks of one node: the path from each other region, its own two links, and the paths from its parents."""

    def __init__(self, config: ProbeConfig, estimates: NodeEstimates, rng: random.Random) -> None:
        self.regions: dict[str, ProbeTask] = {}
        #: None until the node has a peer.
        self.downlink: ProbeTask | None = None
        self.uplink: ProbeTask | None = None
        self.parents: dict[str, ProbeTask] = {}
        #: Bytes a second that the plan has each parent send to this node; None: there is no plan yet.
        self._planned: Mapping[str, float] | None = None
        self._config = config
        self._estimates = estimates
        self._rng = rng

    def start(self, now: float) -> None:
        """Schedules the node's own links once it has a peer."""
        if self.downlink is None:
            self.downlink = self.new_task(now + self._config.settle_seconds)
            self.uplink = self.new_task(now + self._config.settle_seconds)

    def new_task(self, due: float) -> ProbeTask:
        """Returns a task that is due at that time or, at random, a little later."""
        return ProbeTask(due + self._config.jitter_seconds * self._rng.random())

    def planned(self, rates: Mapping[str, float], now: float) -> None:
        """Takes a new plan; schedules the paths from new parents. rates: bytes a second from each parent."""
        self._planned = rates
        due = now + self._config.settle_seconds
        self.parents = {name: self.parents.get(name) or self.new_task(due) for name in sorted(rates)}

    @property
    def planned_rates(self) -> Mapping[str, float]:
        """Bytes a second that the plan has each parent send to this node."""
        return self._planned or {}

    @property
    def is_downlink_ample(self) -> bool:
        """Whether the downlink has carried clearly more than the plan sends through it, so that it limits no plan."""
        planned = sum(self.planned_rates.values())
        return self._planned is not None and self._estimates.down.value >= self._config.ample_factor * planned

    def are_paths_measured(self, now: float, *, confirmed: bool = False) -> bool:
        """Returns whether each path from a region was measured, or is not due soon. confirmed: and measured again."""
        soon = now + self._config.settle_seconds
        return all(
            (task.is_confirmed if confirmed else task.is_measured) or task.due > soon for task in self.regions.values()
        )

    def is_all_measured(self, now: float) -> bool:
        """Returns whether the paths from other regions and the node's own links were measured."""
        links = (self.downlink, self.uplink)
        return self.are_paths_measured(now) and all(task is not None and task.is_measured for task in links)

    def due_parents(self, now: float) -> list[str]:
        """Returns the parents beyond `LOW_RTT` whose probes are due and that never sent `carried_share` of their
        planned rates.
        """
        return [name for name, task in self.parents.items() if task.due <= now and self._is_below_plan(name)]

    def _is_below_plan(self, name: str) -> bool:
        path = self._estimates.paths.get(name)
        planned = self._config.carried_share * self.planned_rates[name]
        return path is not None and path.rtt > LOW_RTT and path.received.value < planned

    def finished(self, task: ProbeTask, now: float, best_rate: float, *, hidden: bool = False) -> None:
        """Takes a probe that succeeded: it measures a figure, or confirms it.

        best_rate: bytes a second of that figure now, a rate that lasted (`WindowedMax`). hidden: the senders' uplinks
        may have limited the probe.

        When a probe is believed:

        - It ends once its rate has converged (`ConvergenceDetector.has_converged`), or its time is over.
        - It succeeds if no peer declined it and `min_bytes` came (`ProbeReceiver._finish`); a probe of an uplink if the
          estimate includes it (`ProbeServer._is_seen`). Otherwise another one follows after `retry_seconds`.
        - The first success measures the figure. Others follow after `confirm_seconds`, since it may have met other
          traffic, until one confirms it: it gives at most `confirmed_factor` times as much, with as many peers as a
          probe should have, and no uplink hides more. Then the next follows after `refresh_seconds`.
        - A node reports measured figures; its downlink only once that is confirmed, and limited the probe itself
          (`Prober.down_sure`).
        """
        config = self._config
        no_more = best_rate <= config.confirmed_factor * task.best_rate
        confirms = task.is_measured and no_more and task.attempts <= config.attempts_per_peer and not hidden
        task.is_confirmed |= confirms
        task.best_rate = best_rate
        pause = config.refresh_seconds if confirms else config.confirm_seconds
        task.due = now + pause * (0.75 + 0.5 * self._rng.random())
        task.attempts, task.is_measured = 0, True
        task.busy_at.clear()

    def skip(self, task: ProbeTask, now: float) -> None:
        """Counts a figure as measured without a probe, for now."""
        task.is_measured = True
        self.postpone(task, now, self._config.confirm_seconds)

    def postpone(self, task: ProbeTask, now: float, pause: float) -> None:
        """Makes a task due in about `pause` seconds, between half and one and a half times as many."""
        task.due = now + pause * (0.5 + self._rng.random())
