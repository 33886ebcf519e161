"""Settings of the chunk exchange. Bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass

# ---- the estimate of the downlink (seconds) --------------------------------------------------------------------------

#: The estimator needs a busy period of so long. A longer one is steadier, and gives no estimate of short transfers.
DOWNLINK_MIN_SECONDS = 1.0
#: After so long the estimator halves the period and its bytes. Longer is steadier, and follows changes later.
DOWNLINK_MEMORY_SECONDS = 10.0
#: A request within so long of the last chunk continues the busy period: with a window of one chunk, no request is
#: outstanding for a moment after each. Longer counts pauses as busy.
DOWNLINK_MAX_GAP_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConfig:
    """Settings of one node's exchange; each line says what a larger value does.

    Requests.
    window_least, window_most: bounds of the bytes that a peer may owe before this node requests more of it. More hides
    longer round trips, and leaves more in the queues of slow peers.
    horizon: seconds of a peer's rate that this node requests ahead, in addition to the round trip.
    prior_rate, prior_round_trip: bytes/s and seconds assumed of a peer before its first chunk.
    rate_window: seconds over which a peer's rate counts, or four round trips; more is steadier, and notices a cut link
    later.
    poll_interval: seconds between checks of what peers owe.
    short_wait: the repair leaves chunks to a peer that should send all of them within so many seconds and a round trip.
    silent_after: after so many seconds without a chunk from a peer, or twice what its round trip and planned rate
    explain, the repair may request its chunks of any other.
    held_for: seconds after a peer announced a chunk, and none owes it, at which a free parent may be asked for it; at
    most the push timeout.
    free_horizon: seconds of its planned rate, in addition to the round trip, that a free parent may owe.
    idle_backlog: a peer that reports a longer queue (seconds) is not asked for chunks that a parent pushes, nor by the
    repair.
    others_after: seconds after its announcement at which a node requests a chunk that another node of its region was to
    fetch; with pushes the push timeout is added.
    request_timeout: seconds after which an owed chunk is cancelled if its peer has sent nothing; else twice the time of
    the bytes before it is added. Each timeout doubles it, up to `backoff_most` times.
    push_first, push_least, push_most: the retransmission timeout of pushed chunks before the first sample, and its
    bounds. push_weight: of a new sample in its mean and deviation; more follows changes sooner, and lets one burst of
    late chunks delay requests.

    Uploads.
    flush_limit: bytes in one peer's connections that the kernel has not taken yet; at least two chunks, or one for each
    connection up to `flush_most`. More cannot be cancelled.
    push_room: bytes queued for a child of the publisher before its trees take no more. More keeps trees of several
    children busy, and lets slow children take more than they can forward.
    unsolicited_bytes: bytes of a manifest that a node pushes to a peer that runs its base and has not subscribed yet.
    burst, burst_seconds: bytes that a node with a limited uplink sends at once, or what its rate gives in so many
    seconds.
    queued_most: requested chunks that one peer may have queued; a node rejects more.

    Publisher.
    window_first: bytes of a manifest that may be in flight without a window, so that a small one need not wait.
    stalled_after: a tree whose children had no room for so many seconds does not hold the others back.
    ahead: how much a tree may be ahead of its share of the chunks, as a part of it, unless its planned rate explains
    more.
    announce_after: seconds without sending or hearing of a delivery after which a publisher announces its chunks.
    resend_after, resend_factor: the publisher sends a chunk down another tree if no peer announces it for so many
    seconds, and so many times the mean delivery time.

    In-flight window, see `in_flight_window`.
    window_gain: the window, as a multiple of what the trees carry in one latency. More fills links whose latency
    varies, and leaves more in queues.
    window_per_path: chunks that the window has in addition for each path. More keeps short paths busy.
    latency_first: seconds of latency before the first sample. More keeps long paths busy at the start, and fills queues
    of short ones.
    latency_most: the largest latency that sizes the window (seconds).
    path_gain, path_least: bounds of one path in the window, as a multiple of its share, and chunks at least. More
    leaves more to paths that are slower than planned.
    straggler_share, straggler_least: the window does not wait for a receiver that alone would fill so large a share of
    it, or that lacks so many windows if that is more. More waits longer.
    chunk_timeout: seconds after which a chunk leaves the window. More sends less into a path that delivers nothing.
    completion_part: the least time in which a tree completes a chunk, as a part of the mean. More leaves slow trees out
    sooner.
    delivery_interval, delivery_intervals: seconds over which the window measures a delivery rate; it uses the highest
    of so many. More keeps a rate longer that the trees no longer carry.

    Messages.
    have_delay: seconds that a Have of requested chunks waits for more chunks; have_delay_pushed: of pushed chunks;
    have_per_peer: at least so many seconds for each peer, which bounds the share of Haves in the traffic.

    Trust.
    surplus_most: a node bans a peer that sent so many more useless bytes than useful ones.
    ban: seconds of a ban, at most. first_ban: for the first wrong chunk, see `blame`; ban_factor: how many times as
    long each further one is. More costs a liar, and an honest peer with a damaged disk, more.
    recheck_after: seconds between two reports of one peer that make this node verify its chunks.
    refetch_pause_first, refetch_pause_most: seconds before a node fetches a chunk again that the store lost for the
    second time, and at most; each further loss doubles them.
    """

    window_least: int = 256 << 10
    window_most: int = 16 << 20
    horizon: float = 0.5
    prior_rate: float = 500_000.0
    prior_round_trip: float = 0.2
    rate_window: float = 1.0
    poll_interval: float = 0.05
    short_wait: float = 0.3
    idle_backlog: float = 0.1
    others_after: float = 1.5
    held_for: float = 0.6
    free_horizon: float = 0.3
    silent_after: float = 2.0
    request_timeout: float = 8.0
    backoff_most: float = 8.0
    push_first: float = 1.5
    push_least: float = 1.0
    push_most: float = 30.0
    push_weight: float = 1 / 16

    flush_limit: int = 128 << 10
    flush_most: int = 4 << 20
    push_room: int = 128 << 10
    unsolicited_bytes: int = 1 << 20
    burst: int = 128 << 10
    burst_seconds: float = 0.01
    queued_most: int = 4096

    window_first: int = 4 << 20
    stalled_after: float = 0.5
    ahead: float = 0.2
    announce_after: float = 1.0
    resend_after: float = 2.0
    resend_factor: float = 4.0

    window_gain: float = 2.0
    window_per_path: float = 1.5
    latency_first: float = 0.25
    latency_most: float = 1.0
    path_gain: float = 2.0
    path_least: float = 2.0
    straggler_share: float = 0.5
    straggler_least: float = 1.5
    chunk_timeout: float = 10.0
    completion_part: float = 0.8
    delivery_interval: float = 0.5
    delivery_intervals: int = 4

    have_delay: float = 0.01
    have_delay_pushed: float = 0.1
    have_per_peer: float = 0.005

    surplus_most: int = 32 << 20
    ban: float = 600.0
    first_ban: float = 2.0
    ban_factor: float = 10.0
    recheck_after: float = 5.0
    refetch_pause_first: float = 1.0
    refetch_pause_most: float = 60.0
