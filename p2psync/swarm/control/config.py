"""The settings of the control: every tunable of this package, once. Seconds, bytes, and bytes a second."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Round trips (seconds) within which a peer is near. Over a fraction of a millisecond BBR's timers cost more than they
#: bring, and a machine with other things to do is late for them.
NEAR_RTT_SECONDS = 0.002
#: Connections to each peer until measurements say otherwise.
INITIAL_STREAMS = 2
#: Bytes of padding in a frame.
PADDING_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """Settings of probing. Bytes and seconds.

    share: of a link that probing may take in the long run, counted over `window`. allowance: what it may take besides
    in this node's life, so that a newcomer can measure at once; no more than `allowance_seconds` of what the link is
    known to give. own: the part of what is left that one measuring of a node's own links may take at each end: on fast
    links nothing would be left for the paths between regions, which bind plans more often. assumed: bytes a second of a
    link that nobody measured. most, least: bytes asked of one peer in one probe. shortest, longest: how long a probe
    may take, and by how many round trips it is longer than the shortest. up_fan, down_fan: peers that a node's whole
    uplink or downlink is measured with; one less after each `tries` in which not all had time. settle: a newcomer
    probes the paths to other regions first, and its own links after so long. rank_wait: by how much each node of a
    region comes after the one before it. spread: how far first probes are spread at random. stale: after which a figure
    is measured again; again: after which it is the first time, or where it was found with fewer peers. pause: after a
    probe that came to nothing, about. tired: when there is nothing left to spend. cooling: for which a peer is not
    served again. quiet: for which no chunk may have flowed. courtesy: for how long after its last chunk a node waits
    for others who still fetch what it has.
    """

    share: float = 0.01
    window: float = 60.0
    allowance: int = 256 << 20
    allowance_seconds: float = 10.0
    own: float = 0.35
    assumed: float = 2.5e6
    most: int = 64 << 20
    least: int = 64 << 10
    shortest: float = 1.6
    longest: float = 20.0
    trips: float = 14.0
    up_fan: int = 2
    down_fan: int = 3
    tries: int = 3
    settle: float = 4.0
    rank_wait: float = 30.0
    spread: float = 1.0
    stale: float = 600.0
    again: float = 10.0
    pause: float = 1.0
    tired: float = 30.0
    cooling: float = 1.0
    quiet: float = 1.0
    courtesy: float = 10.0


@dataclass(frozen=True, slots=True)
class MeasureConfig:
    """Settings. probe: whether to probe at all; what flows is measured in any case.

    loopback: probe peers on this machine too, where there is nothing to be learned but how fast it is.
    """

    probe: bool = True
    loopback: bool = False
    probing: ProbeConfig = field(default_factory=ProbeConfig)
