"""The settings of the control: every tunable of this package, once. Seconds, bytes, and bytes a second."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Round trips (seconds) within which a peer is near. Over a fraction of a millisecond BBR's timers cost more than they
#: bring, and a machine with other things to do is late for them.
NEAR_RTT = 0.002
#: Connections to each peer until measurements say otherwise.
INITIAL_STREAMS = 2
#: Bytes of padding in a frame.
PADDING_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """Settings of probing. Bytes, seconds, and bytes a second; each line says what a larger value does.

    Budget, for each direction of a link.
    link_share: part of the link that probes take in the long run, within `budget_window`; costs the link's users more.
    initial_bytes: what probes may take besides, so that a newcomer measures at once; of a link that is measured at most
    `initial_seconds` of its rate.
    own_link_share: part of the rest of the budget that one probe of a node's own link takes. More leaves less for the
    paths between regions, which bind plans more often.
    assumed_rate: rate of a link that was not measured.

    Probes.
    max_bytes, min_bytes: bounds of the bytes requested of one peer.
    min_seconds, round_trips, max_seconds: a probe lasts the first and so many round trips, at most the last. More
    lets slower startups end.
    downlink_peers, uplink_peers: peers with which a node probes its own links at one time; more find wider links, and
    are seldom all free. attempts_per_peer: failed attempts after which it is one peer fewer.
    peers_per_node: peers of a region that one node probes before the next node of its own region goes on behind them.
    planned_path_gain: rate of a probe of a path in the plan, as a multiple of the planned one.
    uplink_path_gain: rate on each of several far paths over which an uplink is probed, as a multiple of the path's.

    Times.
    settle_seconds: paths to other regions are probed first, a node's own links after so long.
    rank_seconds: by how much each node of a region comes after the one before it. jitter_seconds: spread of first
    probes. answer_seconds: after which an answer is not expected any more. invitation_seconds: how long an invitation
    waits for a busy peer. retry_seconds: after a probe that failed; budget_seconds: after one that the budget forbade.
    confirm_seconds: after a figure that no other probe confirmed; refresh_seconds: after a confirmed one.
    serve_again_seconds: after which the same peer is served again.
    quiet_seconds: for which no chunk may have flowed; yield_seconds: the same while others fetch what a node has.
    suppressed_seconds: for which nobody probes because a version is about to come.

    Judgements, as factors.
    confirmed_factor: a probe confirms a figure if it gives at most so many times as much.
    carried_share: a parent that sent this part of its planned rate is not probed.
    ample_factor: a downlink that carried so many times what the plan sends needs no probe.
    limit_factor: a downlink limited a probe if the senders announced so many times what came.
    uplink_seen_share, uplink_min_seconds: a probe of an uplink counts if the estimate is this part of its rate at
    least, taken over so long at least.
    announce_factor: an uplink is announced again once it differs by so much.
    """

    link_share: float = 0.01
    budget_window: float = 60.0
    initial_bytes: int = 256 << 20
    initial_seconds: float = 10.0
    own_link_share: float = 0.35
    assumed_rate: float = 2.5e6

    max_bytes: int = 64 << 20
    min_bytes: int = 64 << 10
    min_seconds: float = 1.6
    round_trips: float = 14.0
    max_seconds: float = 20.0
    downlink_peers: int = 3
    uplink_peers: int = 2
    attempts_per_peer: int = 3
    peers_per_node: int = 2
    planned_path_gain: float = 1.25
    uplink_path_gain: float = 1.05

    settle_seconds: float = 4.0
    rank_seconds: float = 30.0
    jitter_seconds: float = 1.0
    answer_seconds: float = 1.0
    invitation_seconds: float = 2.5
    retry_seconds: float = 1.0
    budget_seconds: float = 30.0
    confirm_seconds: float = 10.0
    refresh_seconds: float = 600.0
    serve_again_seconds: float = 1.0
    quiet_seconds: float = 1.0
    yield_seconds: float = 10.0
    suppressed_seconds: float = 5.0

    confirmed_factor: float = 1.1
    carried_share: float = 0.7
    ample_factor: float = 1.5
    limit_factor: float = 1.25
    uplink_seen_share: float = 0.5
    uplink_min_seconds: float = 0.4
    announce_factor: float = 1.25


@dataclass(frozen=True, slots=True)
class MeasureConfig:
    """Settings. probe: whether to probe at all; what flows is measured in any case.

    loopback: probe peers on this machine too, where there is nothing to be learned but how fast it is.
    """

    probe: bool = True
    loopback: bool = False
    probing: ProbeConfig = field(default_factory=ProbeConfig)
