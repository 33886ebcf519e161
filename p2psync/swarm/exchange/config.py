"""Settings of the chunk exchange. Bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConfig:
    """Settings of one node's exchange; each line says what a larger value does.

    Requests.
    window_least, window_most: bounds of the bytes that may be owed by a peer before another chunk is requested of it.
    More hides longer round trips, and leaves more in the queues of slow peers.
    horizon: seconds of a peer's rate that are requested ahead, in addition to its round trip.
    prior_rate: bytes/s that a peer is expected to send before anything came from it.
    rate_window: seconds over which a peer's rate counts, or four round trips; more is steadier, and notices a cut link
    later.
    poll_interval: seconds between looks at the queues of peers.
    short_wait: what a peer owes and sends within so many seconds and a round trip is left to it.
    silent_after: what a peer owes that has sent nothing for so long may be requested of any other, too.
    held_for: a free parent may be asked for a chunk that some peer has held for so long and nobody owes.
    free_horizon: seconds of its planned rate, in addition to the round trip, that a free parent may owe.
    idle_backlog: a peer that says to have queued less (seconds) may be asked for chunks that another peer owes.
    others_after: seconds after which a node requests chunks that another node of its region was to fetch.
    request_timeout: a requested chunk is given up so long after the time at which the peer's rate would have brought
    it; the time doubles with every timeout up to `backoff_most` times.
    push_first, push_least, push_most: the retransmission timeout of pushed chunks before any came, and its bounds.

    Uploads.
    flush_limit: bytes handed to one peer's connections ahead of the kernel, or two chunks, or one for each connection
    up to `flush_most`. More cannot be called off.
    push_room: bytes that may wait for a child of the publisher before its trees take no more. More keeps trees of
    several children busy, and lets slow children take more than they can send on.
    unsolicited_bytes: bytes of a manifest pushed to a peer that runs its base and has not subscribed to it yet.
    burst, burst_seconds: bytes that a node with a limited uplink hands out at once, or what its rate brings in so many
    seconds.
    queued_most: chunks that one peer may have queued here; more are rejected.

    Publisher.
    window_first: bytes of a manifest that may be under way as a whole, so that a small one need not wait.
    stalled_after: a tree whose first hops had no room for so long does not hold the others back.
    ahead: how much a tree may be ahead of its share of the chunks, as a part of it.
    announce_after: a publisher that sent nothing, and heard of no delivery, for so long tells everybody what it holds.
    resend_after, resend_factor: the publisher sends a chunk down another tree if no peer holds it so long after it was
    sent, and so many times the usual delivery time.

    In-flight window, see `in_flight_window`.
    window_gain: the window, as a multiple of what the trees carry in one latency. More fills links whose latency
    varies, and leaves more in queues.
    window_per_path: chunks that the window has in addition for each path. More keeps short paths busy.
    latency_first: latency before any was measured. More keeps long paths busy at the start, and fills queues of short
    ones.
    latency_most: the window is not sized for longer latencies.
    path_gain, path_least: what one path may have of the window, as a multiple of its share, and chunks at least. More
    leaves more to paths that are slower than planned.
    straggler_share: a receiver whose missing chunks fill so much of the window is not waited for. More waits longer.
    chunk_timeout: a chunk leaves the window after so long. More sends less into a path that delivers nothing.
    completion_part: a tree completes a chunk in so much of the mean time at least. More leaves slow trees out sooner.
    delivery_interval, delivery_intervals: seconds over which a rate of delivery is measured; the highest of so many is
    used. More keeps a rate longer that the trees no longer carry.

    Messages.
    have_delay: how long a Have of chunks that were requested may wait for company; have_delay_pushed: of chunks that
    were pushed; have_per_peer: and at least so long for each peer, so that Haves do not cost more the more peers there
    are.

    Trust.
    surplus_most: a peer that sent so many more useless bytes than useful ones is banned.
    ban: seconds for which a peer is shut out; first_ban: for its first wrong chunk, see `blame`.
    recheck_after: how often one peer can make this node verify a chunk that it holds.
    refetch_pause_first, refetch_pause_most: pauses before a chunk that the store lost twice and more is fetched again.
    """

    window_least: int = 256 << 10
    window_most: int = 16 << 20
    horizon: float = 0.5
    prior_rate: float = 500_000.0
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
    recheck_after: float = 5.0
    refetch_pause_first: float = 0.25
    refetch_pause_most: float = 60.0
