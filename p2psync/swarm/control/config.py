"""The settings of the control: every tunable of this package, once. Seconds, bytes, and bytes a second."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Round trips (seconds) within which a peer is near. Over a fraction of a millisecond BBR's timers cost more than they
#: bring, and a machine with other things to do is late for them.
NEAR_RTT_SECONDS = 0.002
#: Mbit/s of a byte/s.
MBIT = 8e-6
#: Connections to each peer until measurements say otherwise.
INITIAL_STREAMS = 2
#: Bytes of padding in a frame.
PADDING_BYTES = 32 << 10

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
#: such a share of the bytes. More reports changes later, and makes fewer plans.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorConfig:
    """Settings of estimates. Bytes, seconds, and bytes/s.

    Rates. min_seconds, max_seconds, round_trips: a rate counts once it lasted for `round_trips`, within these bounds;
    longer hides more bursts, and finds no rate in short transfers. near_rtt, near_seconds: it counts after
    `near_seconds` up to this round trip, since nearby a hole in the sequence is filled at once, and padding is dear.
    window_seconds, buckets: the maximum covers so many conclusive seconds, in so many steps; longer keeps what a path
    no longer has. min_interval, max_interval: other intervals are no samples, since timers are late. min_transfer_rate:
    less is messages, no transfer.

    Conclusions. paced: a flow that delivers this share of its pacing limit shows no less than the path has. crowded,
    fair: the uplink limits flows that together use the first share of it, as far as each has the second share of an
    equal share. ramp_seconds, ramp_round_trips: time that a flow needs to find its rate. pause_seconds: after which a
    flow counts as a new one.

    Degradation. degraded: a path is degraded below this share of its planned rate; more takes shared links for degraded
    ones. settle_seconds, settle_round_trips: for how long; longer finds cut links later. min_share: reported of a path
    that delivers nothing, since 0 means that it is not degraded. recovered: times the degraded rate at which a path is
    no longer degraded.

    Loss. loss_memory_bytes: after which older losses count half. loss_min_bytes: before which there is no share.
    """

    min_seconds: float = 0.5
    max_seconds: float = 0.75
    round_trips: float = 5.0
    near_rtt: float = 0.005
    near_seconds: float = 0.2
    window_seconds: float = 60.0
    buckets: int = 10
    min_interval: float = 0.05
    max_interval: float = 1.0
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
    starts. max_loss: share of the bytes from which on a path loses rather than lags. sample_seconds: of a sample; more
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
    sample_bytes: fewer would make chance losses count. pacing_gain: pacing rate as a share of the planned rate, so that
    queues drain. paced_growth, startup_growth: factors of the pacing rate for each sample without many losses; more
    finds spare bandwidth sooner, and overflows queues. backoff: factor for each sample with many losses. free_above: a
    path is free once its pacing rate is so many times the one after the last loss.

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
    `idle_delay`, and below `busy_delay` (seconds); more finds spare uplink sooner, and fills the queue. full_seconds,
    full_bytes: an uplink is full whose connections have both as backlog.
    """

    binding: float = 0.6
    gain: float = 0.985
    surely_known: float = 0.9
    sample_seconds: float = 0.75
    all_delivered: float = 0.95
    idle_delay: float = 0.01
    fast_growth: float = 1.25
    busy_delay: float = 0.05
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
    with fewer it notices a loss by a timeout only. slack: more connections than this times what the loss explains are
    closed. assumed_loss: share of a path of which nothing is known, and the most that counts. unplanned: connections to
    a far peer that is not in the plan, which may measure it.
    """

    lossy: float = 2e-4
    growth: int = 3
    gain: float = 1.1
    watch_seconds: float = 1.0
    forget_seconds: float = 60.0
    pause_seconds: float = 60.0
    max_pause_seconds: float = 960.0
    min_window: int = 5
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
