"""Faults in the middle of a run: chosen by the bytes that went over each link so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2psync.topology.emulator import EmulatedNetwork
from p2psync.topology.model import Topology

KILL, CUT = "relay killed", "link cut to a tenth"
#: The time of each, as a share of the seconds of a run without it.
WHEN = {KILL: 0.5, CUT: 0.4}
_TENTH = 0.1


@dataclass(frozen=True)
class InjectedFault:
    """A fault, and the seconds after the start at which it happens."""

    name: str
    at: float


def busiest_relay(topology: Topology, sent: Mapping[str, int]) -> str:
    """The receiver that has sent most; where there are several regions, of those outside the trainer's.

    sent: bytes by link, `eu-0 up`.
    """
    hosts = dict(topology.hosts)
    home = hosts[topology.trainer]
    others = [host for host, region in hosts.items() if region != home]
    return max(
        others or [host for host in hosts if host != topology.trainer],
        key=lambda host: (sent.get(f"{host} up", 0), host),
    )


def busiest_link(topology: Topology, sent: Mapping[str, int]) -> tuple[str, str] | None:
    """The link between regions over which most went, both ways together; None where there is one region."""
    links = [link.between for link in topology.link]
    return max(links, key=lambda ends: _both_ways(ends, sent), default=None)


def _both_ways(ends: tuple[str, str], sent: Mapping[str, int]) -> int:
    a, b = ends
    return sent.get(f"{a}>{b}", 0) + sent.get(f"{b}>{a}", 0)


def cut_link(topology: Topology, network: EmulatedNetwork, sent: Mapping[str, int]) -> str:
    """Leaves a tenth of the busiest link's rates, or of the busiest relay's uplink; returns which."""
    ends = busiest_link(topology, sent)
    if ends is not None:
        link = next(link for link in topology.link if link.between == ends)
        network.set_link(*ends, rate=link.rate * _TENTH, one_way=True)
        network.set_link(*ends[::-1], rate=link.back * _TENTH, one_way=True)
        return "–".join(ends)
    host = busiest_relay(topology, sent)
    network.set_host(host, up=topology.up(host, dict(topology.hosts)[host]) * _TENTH)
    return f"the uplink of {host}"


def copies(
    topology: Topology, receivers: Sequence[str], sent: Mapping[str, int], payload_bytes: int
) -> tuple[float, dict[str, float]]:
    """Payloads that left the trainer, and that came into each other region over links. sent: bytes by link."""
    home = dict(topology.hosts)[topology.trainer]
    regions = sorted({region for host, region in topology.hosts if host in receivers} - {home})
    into = {
        region: sum(sent.get(f"{other}>{region}", 0) for other in topology.region if other != region)
        for region in regions
    }
    trainer = sent.get(f"{topology.trainer} up", 0)
    return trainer / payload_bytes, {region: count / payload_bytes for region, count in into.items()}
