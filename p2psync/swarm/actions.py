"""What the swarm asks its shell to do, and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from p2psync.protocol.messages import Control


@dataclass(frozen=True, slots=True)
class SwarmConfig:
    """Settings. Bytes and seconds.

    window_least, window_most: bounds of what is asked of one peer at a time. horizon: how far ahead requests reach.
    flight_least: of what may be on its way in all trees, so that a small delta need not wait. late_after: a request
    counts as late this long after the peer's own pace would have brought it. flush_limit: bytes given to one peer's
    connections ahead of the kernel, or two chunks, or one for each connection up to `flush_most`: little, since what
    was given cannot be called off. push_room: what may wait for a first hop before its trees are passed over; with
    little, a tree of several first hops waits for the moment in which all of them have room. unasked: what is pushed
    of a manifest to a peer that runs its base (before an anchor: nothing) and has not asked for it yet: it may not
    know the manifest, or want something else. surplus_most: a peer is banned that sent more which is of no use; it is
    far more than what slow links deliver after it was called off. endgame_copies: peers asked for the same chunk at the
    end, once it is `endgame_after` and half as much again as the first one's pace would take overdue. have_delay: how
    long news of held chunks may wait for company; have_delay_pushed: where they come by pushes, so that nobody waits
    for the news, which cost more than the chunks where each tells all; have_per_peer: and so much for each peer at
    least, so that news of pushed chunks do not cost more the more peers there are. ban: for how long a liar is shut
    out. first_ban: for how long one is that sent its first wrong chunk, which may have rotted there unseen: see
    `swarm.blame`.
    recheck_after: how often one peer can make this node look at a chunk that it holds.
    """

    window_least: int = 256 << 10
    window_most: int = 16 << 20
    horizon: float = 0.5
    flight_least: int = 4 << 20
    late_after: float = 8.0
    flush_limit: int = 128 << 10
    flush_most: int = 4 << 20
    push_room: int = 1 << 20
    unasked: int = 1 << 20
    surplus_most: int = 32 << 20
    endgame_copies: int = 2
    endgame_after: float = 0.2
    have_delay: float = 0.01
    have_delay_pushed: float = 0.1
    have_per_peer: float = 0.005
    ban: float = 600.0
    first_ban: float = 2.0
    recheck_after: float = 5.0


@dataclass(frozen=True, slots=True)
class Send:
    """Send a control message to a peer."""

    peer: str
    message: Control


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Read a held chunk (manifest id of 32 bytes) and send it with its tag (see `swarm.trees`).

    Say `flushed` with its size when it has left, and also when it could not be read; in that case say `lost` too. The
    manifest may be exchanged no longer by then.
    """

    peer: str
    id: bytes
    index: int
    size: int
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """A verified chunk to keep, before any later `SendChunk` of it is carried out. If it cannot be kept, say `lost`."""

    id: bytes
    index: int
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Complete:
    """Every wanted chunk of this manifest is held."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Ban:
    """Hang up on this peer and do not take it back before `until`."""

    peer: str
    reason: str
    until: float


@dataclass(frozen=True, slots=True)
class Vet:
    """Check a signed manifest that this peer offered; answer `vetted` or `forged`. id: 32 bytes, as the peer says."""

    peer: str
    id: bytes
    signed: bytes


@dataclass(frozen=True, slots=True)
class Recheck:
    """A peer says that this chunk came from here with other bytes: hash what the store holds, and say `lost` if it is
    wrong. All other chunks of the manifest are hashed again before they are sent."""

    id: bytes
    index: int


@dataclass(frozen=True, slots=True)
class Widen:
    """More is about to go to this peer than the plan foresees: its connections look for what the path gives, up to so
    many bytes a second."""

    peer: str
    rate: float


Action: TypeAlias = Send | SendChunk | Save | Complete | Ban | Vet | Recheck | Widen
