"""The settings of the control: every tunable of this package. Seconds, bytes, and bytes a second."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Round trips (seconds) within which a peer is near. Below this RTT, BBR's pacing timers reduce throughput. A larger
#: value gives more paths to cubic, which slows down at each lost packet.
NEAR_RTT_SECONDS = 0.002
#: Mbit/s of a byte/s.
MBIT = 8e-6
#: Connections to each peer until measurements say otherwise.
INITIAL_STREAMS = 2
#: Bytes of padding in a frame.
PADDING_BYTES = 32 << 10
#: Seconds between two fills of the connections with padding, and bytes that wait in user space after one: what 300
#: Mbit/s send between two fills. More lets more padding follow the end of a probe.
FILL_SECONDS, FILL_BYTES = 0.005, 192 << 10

# ---- the monitor -----------------------------------------------------------------------------------------------------

#: Seconds between samples: while padding flows, and otherwise. More finds changes later, and costs fewer system calls.
TICK_PROBING, TICK = 0.1, 0.25
#: Seconds between adjustments of the numbers of connections, and reports.
ADJUST_EVERY = 1.0
#: A connection is sampled for so long after its last bytes, and so often while it is idle (seconds).
LINGER_SECONDS, IDLE_EVERY_SECONDS = 1.0, 5.0
#: Without BBR transfers of up to so many bytes restart no path: they are over before a path has found its rate.
LARGE = 4 << 20
#: Seconds without a chunk after which a path's congestion control is out of date.
QUIET = 1.0

# ---- reports ---------------------------------------------------------------------------------------------------------

#: Paths in the reports of all members together, about: a hub holds them all and plans from them. And in one report at
#: least, which has room for a node's paths of the plan and its peers in other regions.
ALL_PATHS, MIN_PATHS = 1 << 16, 32
#: Uses of two paths within so many seconds count as equal, so that reports do not change all the time.
SAME_USE_SECONDS = 60.0
#: A figure changes if it moves by more than this share of itself; round trips by so many seconds at least, losses by
#: such a share of the bytes. More makes reports later, and plans fewer.
CHANGE, RTT_CHANGE, LOSS_CHANGE = 0.06, 0.001, 0.002

# ---- connections -----------------------------------------------------------------------------------------------------

#: A surplus connection is closed once it was idle for so long (seconds); less opens and closes more often.
CLOSE_IDLE_SECONDS = 2.0
#: Pause between dials of further connections to one peer (seconds): dials may fail again and again.
DIAL_PAUSE_SECONDS = 5.0
#: Unsent bytes that the kernel may hold, at least and at most, and for how long they may wait (seconds): more cannot be
#: overtaken or cancelled; less leaves a fast connection without data.
MIN_NOTSENT_BYTES, MAX_NOTSENT_BYTES, MAX_NOTSENT_SECONDS = 16 << 10, 128 << 10, 0.04
#: The assumed rate of a connection that nobody has measured (bytes/s).
ASSUMED_RATE = 1e6
#: Seconds in which half of a former, larger window is forgotten. BBR closes its window for 0.2 s to measure the round
#: trip; another connection would have to find its window first. More waits longer for a window that stays closed.
WINDOW_HALF_LIFE = 0.4


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
    uplink_path_gain: rate on each of several paths beyond `LOW_RTT` over which an uplink is probed, as a multiple of
    the path's.

    Convergence, see `ConvergenceDetector`.
    started_bytes: a probe begins with so many bytes. converged_seconds, converged_round_trips: no probe converges
    before the first and so many round trips, in which startup grows from one packet to a thousand; more costs more
    padding. converged_least, converged_most: a rate has converged that is between so many times the rate before; wider
    bounds end probes sooner, and take growing rates for final ones.

    Times.
    settle_seconds: paths to other regions are probed first, a node's own links after so long.
    rank_seconds: by how much each node of a region comes after the one before it. jitter_seconds: spread of first
    probes. answer_seconds: after which an answer is not expected any more. invitation_seconds: how long an invitation
    waits for a busy peer. retry_seconds: after a probe that failed; budget_seconds: after one that the budget forbade.
    confirm_seconds: after a success that confirms nothing; refresh_seconds: after one that confirms a figure.
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

    started_bytes: int = 32 << 10
    converged_seconds: float = 0.8
    converged_round_trips: float = 10.0
    converged_least: float = 0.85
    converged_most: float = 1.1

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorConfig:
    """Settings of estimates. Bytes, seconds, and bytes/s.

    Rates. min_seconds, max_seconds, round_trips: a rate counts once it lasted for `round_trips`, within these bounds;
    longer hides more bursts, and finds no rate in short transfers. low_rtt, low_rtt_seconds: it counts after
    `low_rtt_seconds` up to this round trip, since nearby a hole in the sequence is filled at once, and padding is dear.
    window_seconds, buckets: the maximum covers so many conclusive seconds, in so many steps; longer reports outdated
    rates. min_interval, max_interval: other intervals are no samples, since timers are late. timer_slack:
    timers are late by so much (seconds). sample_span: a rate is the least of those over the last one to so many times
    the seconds for which it must last; more hides more bursts. min_transfer_rate: less is messages, no transfer.

    Conclusions. paced: the pacing limit, not the network, sets the rate of a flow that delivers this share of it.
    crowded, fair: the uplink limits flows that together use the first share of it, as far as each has the second share
    of an equal share. ramp_seconds, ramp_round_trips: time that a flow needs to find its rate. pause_seconds: after
    which a flow counts as a new one.

    Degradation. degraded: a path is degraded below this share of its planned rate; more takes shared links for degraded
    ones. settle_seconds, settle_round_trips: for how long; longer finds cut links later. min_share: reported of a path
    that delivers nothing, since 0 means that it is not degraded. recovered: times the degraded rate at which a path is
    no longer degraded.

    Loss. loss_memory_bytes: after which older losses count half. loss_min_bytes: before which there is no share.
    """

    min_seconds: float = 0.5
    max_seconds: float = 0.75
    round_trips: float = 5.0
    low_rtt: float = 0.005
    low_rtt_seconds: float = 0.2
    window_seconds: float = 60.0
    buckets: int = 10
    min_interval: float = 0.05
    max_interval: float = 1.0
    timer_slack: float = 0.02
    sample_span: float = 1.6
    min_transfer_rate: float = 64 << 10
    paced: float = 0.85
    crowded: float = 0.7
    fair: float = 0.3
    ramp_seconds: float = 1.0
    ramp_round_trips: float = 3.0
    pause_seconds: float = 1.0
    degraded: float = 0.3
    settle_seconds: float = 1.0
    settle_round_trips: float = 4.0
    min_share: float = 0.01
    recovered: float = 2.0
    loss_memory_bytes: int = 64 << 20
    loss_min_bytes: int = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPathConfig:
    """When a path restarts because it is slow. Seconds count only while data waits.

    slow: a sample is slow that delivers less than this share of the expected rate. More restarts paths that merely
    share a link. growing: a path grows by itself that delivers so many times the sample before; less misses slow
    starts. max_loss: share of the lost bytes above which losses, not an
    outdated model, explain the rate. sample_seconds: of a sample; more
    is steadier and later. slow_samples: slow samples in a row before a restart. grace_seconds: for a restarted path to
    grow. helped: a restart helped if the next slow rate is so many times the one before. max_failed: restarts in a row
    that did not help before the path is left to TCP.
    """

    slow: float = 0.65
    growing: float = 1.5
    max_loss: float = 0.02
    sample_seconds: float = 0.25
    slow_samples: int = 2
    grace_seconds: float = 2.0
    helped: float = 1.3
    max_failed: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PathControlConfig:
    """Settings of path control. Rates in bytes/s; a sample is an interval of `sample_bytes` sent while data waits.

    Pacing. max_loss: share of lost bytes above which a path is paced: links lose up to some percent by themselves.
    sample_bytes: fewer would make chance losses count. pacing_gain: pacing rate as a share of the rate at which
    a link of the path is full, so that queues drain. paced_growth, startup_growth: factors of the pacing rate
    for each sample without many losses; more finds spare bandwidth sooner, and overflows queues. backoff: factor for
    each sample with many losses. free_above: a path is free once its pacing rate is so many times the one after the
    last loss.

    Startup. queue_seconds: of a link's rate that every queue holds; more starts small transfers faster, and overflows
    short queues. min_startup_rate: no path starts slower, since a chunk would take seconds.

    Restarts. slow_path: of slow paths. refresh_seconds, refresh_spread: a busy path restarts between so many seconds
    after its last restart and the sum of both, which must be less than the 10 s of BBR. idle_seconds: a connection is
    idle that carried only small messages for so long; idle_restart_seconds: it restarts so often.
    """

    max_loss: float = 0.04
    sample_bytes: int = 192 << 10
    pacing_gain: float = 0.97
    paced_growth: float = 1.004
    startup_growth: float = 1.03
    backoff: float = 0.93
    free_above: float = 1.25
    queue_seconds: float = 0.025
    min_startup_rate: float = 640 << 10
    slow_path: SlowPathConfig = field(default_factory=SlowPathConfig)
    refresh_seconds: float = 6.0
    refresh_spread: float = 3.0
    idle_seconds: float = 2.0
    idle_restart_seconds: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkPacerConfig:
    """Settings of the uplink pacer.

    binding: the pacer acts if the plan takes this share of the uplink; more leaves chunks in the queue of the link.
    gain: limit as a share of what the uplink delivered, so that the queue drains. surely_known: share of the measured
    rate that is no burst. sample_seconds: of a sample; longer rises later. all_delivered: share of the limit that
    counts as all of it. fast_growth, slow_growth: factors of the limit while the least queueing delay is below
    `idle_delay`, and below `busy_delay` (seconds); more finds spare uplink sooner, and fills the queue. busy_share: a
    connection sees the queue that sends this part of `min_transfer_rate`. full_seconds, full_bytes: an uplink is full
    whose connections have both as backlog.
    """

    binding: float = 0.6
    gain: float = 0.985
    surely_known: float = 0.9
    sample_seconds: float = 0.75
    all_delivered: float = 0.95
    idle_delay: float = 0.01
    fast_growth: float = 1.25
    busy_delay: float = 0.05
    busy_share: float = 0.25
    slow_growth: float = 1.01
    full_seconds: float = 0.06
    full_bytes: int = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPolicyConfig:
    """Settings of the number of connections without BBR.

    lossy: share of lost bytes from which on more connections may help. growth, gain: a trial has so many times the
    connections, and must raise the rate by such a factor. watch_seconds: saturated seconds for which a number is
    watched; longer is steadier. forget_seconds: after which its best rate starts over. pause_seconds,
    max_pause_seconds: between trials that fail, at first and at most. min_window: packets in flight of each connection;
    with fewer it notices a loss by a timeout only. spare: connections that a rate needs, as a multiple of what the loss
    explains; more opens more of them. slack: more connections than this times that number are closed. assumed_loss:
    share of a path of which nothing is known, and the most that counts. unplanned: connections to a far peer that is
    not in the plan, which may measure it.
    """

    lossy: float = 2e-4
    growth: int = 3
    gain: float = 1.1
    watch_seconds: float = 1.0
    forget_seconds: float = 60.0
    pause_seconds: float = 60.0
    max_pause_seconds: float = 960.0
    min_window: int = 5
    spare: float = 1.3
    slack: float = 1.5
    assumed_loss: float = 0.01
    unplanned: int = 6


@dataclass(frozen=True, slots=True)
class MeasureConfig:
    """Settings of measuring and control.

    probe: whether to probe; transfers are measured in any case. loopback: whether to probe peers on this machine.
    """

    probe: bool = True
    loopback: bool = False
    probing: ProbeConfig = field(default_factory=ProbeConfig)
    estimates: EstimatorConfig = field(default_factory=EstimatorConfig)
    paths: PathControlConfig = field(default_factory=PathControlConfig)
    uplink: UplinkPacerConfig = field(default_factory=UplinkPacerConfig)
