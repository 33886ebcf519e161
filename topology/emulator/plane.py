"""The packet loop's memory: link stages, packets in flight, and their buffers; arrays only.

A *stage* is one direction of one link: a host's uplink, a host's downlink, or a region pair's link one way. With H
hosts, stage h is host h's uplink, stage H + h its downlink, and those from 2 H on are between regions. Times are
nanoseconds of the monotonic clock; sizes are bytes of IP packets on the wire, so that a super-packet of n segments
counts n headers.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

STAGE = np.dtype(
    [
        ("ns_per_byte", np.float64),  # 0: no limit
        ("delay", np.int64),
        ("buffer", np.int64),  # what may wait, in nanoseconds of sending
        ("loss", np.float64),  # probability for each segment
        ("cut", np.int64),  # how many reasons there are to let nothing through
        ("busy", np.int64),  # when everything accepted so far will have been sent
        ("latest", np.int64),  # when the last packet accepted leaves: none overtakes it
        ("to_loss", np.int64),  # segments that still get through before one is lost
        ("random", np.uint64),
        ("packets", np.int64),
        ("bytes", np.int64),
        ("lost", np.int64),
        ("overflowed", np.int64),
        ("severed", np.int64),
        ("queue_peak", np.int64),  # bytes
    ],
    align=True,
)

PACKET = np.dtype(
    [
        ("due", np.int64),  # when its first bit is past the stage; past the last stage: its last bit
        ("last", np.int64),  # when its last segment is past the stage
        ("order", np.int64),  # ties are broken by age
        ("stage", np.int64),
        ("source", np.int64),
        ("target", np.int64),
        ("length", np.int64),  # bytes of the (super-)packet in memory, from the IP header on
        ("header", np.int64),  # bytes of the IP and transport headers that every segment repeats
        ("mss", np.int64),  # payload bytes of each segment but the last; 0: not a super-packet
        ("segments", np.int64),
        ("wire", np.int64),
    ],
    align=True,
)

#: Slot sizes: most packets are acknowledgements or single segments, the others up to 64 KiB; both with their vnet
#: header.
SMALL, LARGE = 2048, 66 * 1024
#: Number of slots of each size. Pages are touched only when used, and the slot freed last is used first.
SMALL_SLOTS, LARGE_SLOTS = 65_536, 8_192

#: Indices into `Plane.state`.
HEAP_SIZE, SMALL_FREE, LARGE_FREE, ORDER, UNROUTABLE, REFUSED, NO_MEMORY, DELIVERED, WAKEUPS, BARRED = range(10)
#: `Plane.late` counts deliveries by lateness: buckets of this many nanoseconds, the last one for all longer times.
LATE_BUCKET, LATE_BUCKETS = 10_000, 1_000


class Plane(NamedTuple):
    """The arrays that the packet loop works on."""

    memory: NDArray[np.uint8]
    memory_at: int
    packets: NDArray[Any]
    heap: NDArray[np.int64]
    small: NDArray[np.int64]
    large: NDArray[np.int64]
    stages: NDArray[Any]
    region_of: NDArray[np.int64]
    link_of: NDArray[np.int64]
    barred: NDArray[np.uint8]
    tuns: NDArray[np.int64]
    polls: NDArray[np.int32]
    polls_at: int
    clock: NDArray[np.int64]
    clock_at: int
    state: NDArray[np.int64]
    late: NDArray[np.int64]
    quantum: int


def make_plane(
    region_of: list[int],
    link_of: NDArray[np.int64],
    barred: NDArray[np.uint8],
    stages: int,
    tuns: list[int],
    watched: list[int],
    quantum: int,
) -> Plane:
    """Returns an empty plane. watched: descriptors that the loop polls but does not read. tuns: one per host, in order.

    barred[i, j]: whether host i cannot open connections to host j.
    """
    slots = SMALL_SLOTS + LARGE_SLOTS
    # mmap rather than numpy's allocation, which uses huge pages: scattered packets would touch two megabytes each.
    memory = np.frombuffer(mmap.mmap(-1, SMALL_SLOTS * SMALL + LARGE_SLOTS * LARGE), np.uint8)
    polls = np.zeros((len(watched) + len(tuns), 2), np.int32)
    polls[:, 0] = watched + tuns
    polls[:, 1] = 1
    clock = np.zeros(4, np.int64)
    state = np.zeros(16, np.int64)
    state[SMALL_FREE], state[LARGE_FREE] = SMALL_SLOTS, LARGE_SLOTS
    return Plane(
        memory,
        memory.ctypes.data,
        np.zeros(slots, PACKET),
        np.zeros(slots, np.int64),
        np.arange(SMALL_SLOTS, dtype=np.int64)[::-1].copy(),
        np.arange(SMALL_SLOTS, slots, dtype=np.int64)[::-1].copy(),
        np.zeros(stages, STAGE),
        np.array(region_of, np.int64),
        link_of,
        barred,
        np.array(tuns, np.int64),
        polls,
        polls.ctypes.data,
        clock,
        clock.ctypes.data,
        state,
        np.zeros(LATE_BUCKETS, np.int64),
        quantum,
    )
