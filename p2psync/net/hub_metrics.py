"""The hub's Prometheus metrics. Gauges are read from the core when they are scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from p2psync.membership.hub import HubCore


class HubMetrics:
    """One hub's registry; other packages of the same process may add their metrics to `registry`."""

    def __init__(self, core: HubCore) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_CoreGauges(core))
        self._requests = Counter(
            "p2psync_hub_requests",
            "Requests answered, by route and status",
            ["route", "status"],
            registry=self.registry,
        )

    def count(self, route: str, status: int) -> None:
        """Count one answer. `route` is the route's pattern, so that the labels are few."""
        self._requests.labels(route, str(status)).inc()

    def text(self) -> bytes:
        """Returns the exposition that Prometheus reads."""
        return generate_latest(self.registry)


class _CoreGauges(Collector):
    def __init__(self, core: HubCore) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        core = self._core
        claimant = core.claimant
        yield GaugeMetricFamily("p2psync_hub_members", "Nodes with a live lease", value=len(core))
        yield GaugeMetricFamily("p2psync_hub_announcements", "Manifests in the lineage", value=core.announced)
        yield GaugeMetricFamily("p2psync_hub_revision", "Revision of the view", value=core.revision)
        yield GaugeMetricFamily(
            "p2psync_hub_epoch",
            "Epoch of the live claim, -1 without one",
            value=-1 if claimant is None else claimant.epoch,
        )
        yield GaugeMetricFamily(
            "p2psync_hub_head_version",
            "Newest announced version, -1 before the first",
            value=-1 if core.head is None else core.head,
        )
