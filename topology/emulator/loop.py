"""The packet loop, compiled: from TUN to TUN through up to three stages, each with a rate, a queue, a delay and loss.

No stage has a queue of packets. A stage knows when it will have sent everything that it accepted (`busy`), so a
packet's times are computed when it arrives at the stage, and one heap holds all packets by the time of their next step.
Stages cut through: the first segment of a super-packet moves on while the rest is still being sent, so that a train of
segments takes as long as its segments would. The cost is then per super-packet, not per segment.

Super-packets longer than the quantum (in time, on the slowest stage of their path) are split on arrival, so that they
delay no other packet for long; one that loses a segment is split around it; one that does not fit into a buffer loses
its tail.

All functions that call each other are in this one file, because numba's cache notices changes in a function's own file
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from p2psync.topology.emulator import syscalls
from p2psync.topology.emulator.plane import (
    BARRED,
    DELIVERED,
    HEAP_SIZE,
    LARGE,
    LARGE_FREE,
    LATE_BUCKET,
    LATE_BUCKETS,
    NO_MEMORY,
    ORDER,
    REFUSED,
    SMALL,
    SMALL_FREE,
    SMALL_SLOTS,
    UNROUTABLE,
    WAKEUPS,
    Plane,
)

_F = TypeVar("_F", bound=Callable[..., Any])

_read, _write, _memcpy = syscalls.read, syscalls.write, syscalls.memcpy
_ppoll, _clock_gettime, _CLOCK = syscalls.ppoll, syscalls.clock_gettime, syscalls.CLOCK_MONOTONIC
_POLLIN, _POLL_DEAD = syscalls.POLLIN, syscalls.POLL_DEAD

#: Bytes of struct virtio_net_hdr before every packet: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
_VNET = 10
_NEEDS_CHECKSUM, _GSO_TCP4, _GSO_UDP = 1, 1, 5
_TCP, _UDP = 6, 17
_FIN, _SYN, _PSH, _ACK, _CWR = 0x01, 0x02, 0x08, 0x10, 0x80
#: Super-packets read from one host before the next host is read.
_MAX_READS = 64
#: Bytes are widened before arithmetic: int() leaves them unsigned, and mixed sums become floats.
_wide: Any = np.int64
#: Segments until the next loss on a link without losses.
_NEVER = 1 << 62


def _entry(function: _F) -> _F:
    """Compiles a function that Python calls, cached on disk with all that it calls."""
    return cast(_F, numba.njit(nogil=True, cache=True, error_model="numpy", _nrt=False)(function))


def _kernel(function: _F) -> _F:
    """Compiles a function that only compiled code calls, without the wrapper for Python, which would double the time to
    compile."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    return cast(_F, numba.njit(nogil=True, error_model="numpy", **options)(function))


@_kernel
def _now(plane: Plane) -> int:
    _clock_gettime(_CLOCK, plane.clock_at)
    return int(plane.clock[0] * 1_000_000_000 + plane.clock[1])


@_kernel
def _offset(slot: int) -> int:
    if slot < SMALL_SLOTS:
        return slot * SMALL
    return SMALL_SLOTS * SMALL + (slot - SMALL_SLOTS) * LARGE


@_kernel
def _take(plane: Plane, size: int) -> int:
    """Returns a slot for `size` bytes with the vnet header, or -1."""
    state = plane.state
    if size <= SMALL and state[SMALL_FREE] > 0:
        state[SMALL_FREE] -= 1
        return int(plane.small[state[SMALL_FREE]])
    if state[LARGE_FREE] > 0:
        state[LARGE_FREE] -= 1
        return int(plane.large[state[LARGE_FREE]])
    state[NO_MEMORY] += 1
    return -1


@_kernel
def _free(plane: Plane, slot: int) -> None:
    state = plane.state
    if slot < SMALL_SLOTS:
        plane.small[state[SMALL_FREE]] = slot
        state[SMALL_FREE] += 1
    else:
        plane.large[state[LARGE_FREE]] = slot
        state[LARGE_FREE] += 1


@_kernel
def _before(plane: Plane, a: int, b: int) -> bool:
    one, other = plane.packets[a], plane.packets[b]
    return bool(one.due < other.due or (one.due == other.due and one.order < other.order))


@_kernel
def _push(plane: Plane, slot: int) -> None:
    heap, state = plane.heap, plane.state
    plane.packets[slot].order = state[ORDER]
    state[ORDER] += 1
    at = state[HEAP_SIZE]
    state[HEAP_SIZE] += 1
    while at > 0:
        parent = (at - 1) >> 1
        if not _before(plane, slot, heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = slot


@_kernel
def _sink(plane: Plane, at: int, slot: int) -> None:
    """Places a slot at index `at` of the heap, or below it."""
    heap, size = plane.heap, plane.state[HEAP_SIZE]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(plane, heap[child + 1], heap[child]):
            child += 1
        if not _before(plane, heap[child], slot):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = slot


@_kernel
def _pop(plane: Plane) -> int:
    heap, state = plane.heap, plane.state
    top = heap[0]
    state[HEAP_SIZE] -= 1
    if state[HEAP_SIZE] > 0:
        _sink(plane, 0, heap[state[HEAP_SIZE]])
    return int(top)


@_kernel
def _get16(memory: Any, at: int) -> int:
    return int((_wide(memory[at]) << 8) | _wide(memory[at + 1]))


@_kernel
def _put16(memory: Any, at: int, value: int) -> None:
    memory[at] = (value >> 8) & 255
    memory[at + 1] = value & 255


@_kernel
def _sum16(memory: Any, at: int, size: int, start: int) -> int:
    """Returns the ones' complement sum of big-endian 16-bit words, folded but not inverted."""
    total = start
    for i in range(at, at + size, 2):
        total += _get16(memory, i)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@_kernel
def _rewrite(plane: Plane, slot: int, first: int, count: int, is_last: bool) -> None:
    """Rewrites the headers of `slot` for `count` segments from segment `first` of the packet that it was copied
    from."""
    memory, packet = plane.memory, plane.packets[slot]
    vnet = _offset(slot)
    ip = vnet + _VNET
    words = 4 * _wide(memory[ip] & 15)
    transport = ip + words
    size = packet.length - words
    _put16(memory, ip + 2, packet.length)
    _put16(memory, ip + 4, (_get16(memory, ip + 4) + first) & 0xFFFF)
    _put16(memory, ip + 10, 0)
    _put16(memory, ip + 10, _sum16(memory, ip, words, 0) ^ 0xFFFF)
    if memory[ip + 9] == _TCP:
        sequence = (_get16(memory, transport + 4) << 16) + _get16(memory, transport + 6) + first * packet.mss
        _put16(memory, transport + 4, (sequence >> 16) & 0xFFFF)
        _put16(memory, transport + 6, sequence & 0xFFFF)
        if first > 0:
            memory[transport + 13] &= 255 - _CWR
        if not is_last:
            memory[transport + 13] &= 255 - (_FIN | _PSH)
        check = transport + 16
    else:
        _put16(memory, transport + 4, size)
        check = transport + 6
    # The receiver's kernel expects the sum of the pseudo-header, and completes it where needed.
    _put16(memory, check, _sum16(memory, ip + 12, 8, _wide(memory[ip + 9]) + size))
    memory[vnet] = _NEEDS_CHECKSUM
    if count == 1:
        memory[vnet + 1] = 0
        memory[vnet + 4] = 0
        memory[vnet + 5] = 0
        packet.mss = 0
    memory[vnet + 2] = packet.header & 255
    memory[vnet + 3] = packet.header >> 8
    packet.segments = count
    packet.wire = packet.length + (count - 1) * packet.header


@_kernel
def _piece(plane: Plane, slot: int, first: int, count: int) -> int:
    """Returns a new packet with `count` segments from segment `first` on; -1 without memory."""
    packets = plane.packets
    whole = packets[slot]
    begin = first * whole.mss
    end = min((first + count) * whole.mss, whole.length - whole.header)
    new = _take(plane, _VNET + whole.header + end - begin)
    if new < 0:
        return -1
    packets[new] = whole
    packets[new].length = whole.header + end - begin
    source, target = plane.memory_at + _offset(slot), plane.memory_at + _offset(new)
    head = _VNET + whole.header
    _memcpy(target, source, head)
    _memcpy(target + head, source + head + begin, end - begin)
    _rewrite(plane, new, first, count, first + count == whole.segments)
    return new


@_kernel
def _shorten(plane: Plane, slot: int, count: int) -> None:
    """Keeps the first `count` segments of a super-packet; fewer than it has."""
    packet = plane.packets[slot]
    packet.length = packet.header + count * packet.mss
    _rewrite(plane, slot, 0, count, False)


@_kernel
def _uniform(stage: Any) -> float:
    """Returns a number in (0, 1] from the stage's own xorshift generator."""
    x = stage.random
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    stage.random = x
    return (float((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) + 1.0) / 9007199254740992.0


@_kernel
def _draw_loss(stage: Any) -> None:
    """Draws how many segments pass before the next loss: geometric, as for independent losses."""
    if stage.loss <= 0.0:
        stage.to_loss = _NEVER
    else:
        stage.to_loss = min(int(np.log(_uniform(stage)) / np.log1p(-stage.loss)), _NEVER)


@_kernel
def _send(plane: Plane, s: int, slot: int, time: int, last: int) -> None:
    """Sends a packet, whose segments reach the stage from `time` to `last`, or drops what its buffer cannot hold."""
    stage, packet = plane.stages[s], plane.packets[slot]
    segment = packet.wire * stage.ns_per_byte / packet.segments
    wait = max(stage.busy - time, 0)
    free = stage.buffer - wait
    if wait > 0 and packet.wire * stage.ns_per_byte > free:
        fit = int(free / segment) if free > 0 else 0
        stage.overflowed += packet.segments - fit
        if fit == 0:
            _free(plane, slot)
            return
        _shorten(plane, slot, fit)
    start = time + wait
    stage.busy = start + int(packet.wire * stage.ns_per_byte)
    if stage.ns_per_byte > 0.0:
        stage.queue_peak = max(stage.queue_peak, int((stage.busy - time) / stage.ns_per_byte))
    stage.packets += packet.segments
    stage.bytes += packet.wire
    end = max(stage.busy, last + int(segment)) + stage.delay
    hosts = plane.tuns.size
    if hosts <= s < 2 * hosts:
        packet.due = end
    else:
        packet.due = max(start + int(segment) + stage.delay, stage.latest)
        stage.latest = packet.due
    packet.last = max(end, packet.due)
    packet.stage = s
    _push(plane, slot)


@_kernel
def _offer(plane: Plane, s: int, slot: int, time: int, last: int) -> None:
    """A packet reaches a stage, which sends it, drops it, or sends what random loss leaves of it."""
    stage, packet = plane.stages[s], plane.packets[slot]
    if stage.cut > 0:
        stage.severed += packet.segments
        _free(plane, slot)
        return
    if stage.to_loss >= packet.segments:
        stage.to_loss -= packet.segments
        _send(plane, s, slot, time, last)
        return
    segments = packet.segments
    at = 0
    while at < segments:
        run = min(stage.to_loss, segments - at)
        if run > 0:
            part = _piece(plane, slot, at, run)
            if part >= 0:
                _send(plane, s, part, time, last)
            stage.to_loss -= run
        at += run
        if at < segments:
            stage.lost += 1
            at += 1
            _draw_loss(stage)
    _free(plane, slot)


@_kernel
def _parse(plane: Plane, slot: int, size: int, source: int) -> bool:
    """Fills in a packet's fields from its headers. Returns False for a packet to no host of this network."""
    memory, packet = plane.memory, plane.packets[slot]
    vnet = _offset(slot)
    ip = vnet + _VNET
    if size < _VNET + 20 or memory[ip] >> 4 != 4 or memory[ip + 16] != 10 or memory[ip + 17] != 77:
        return False
    target = _get16(memory, ip + 18) - 1
    if target < 0 or target >= plane.tuns.size or target == source:
        return False
    packet.source, packet.target = source, target
    packet.length = size - _VNET
    packet.mss, packet.header, packet.segments = 0, 0, 1
    kind = memory[vnet + 1] & 0x7F
    if kind != 0:
        header = 4 * _wide(memory[ip] & 15)
        if kind == _GSO_TCP4:
            header += _wide(memory[ip + header + 12] >> 4) * 4
        elif kind == _GSO_UDP:
            header += 8
        else:
            return False
        mss = _wide(memory[vnet + 4]) | (_wide(memory[vnet + 5]) << 8)
        payload = packet.length - header
        if mss == 0 or payload <= 0:
            return False
        packet.mss, packet.header = mss, header
        packet.segments = (payload + mss - 1) // mss
    packet.wire = packet.length + (packet.segments - 1) * packet.header
    return True


@_kernel
def _is_dialling(plane: Plane, slot: int) -> bool:
    """Returns whether a packet requests a TCP connection."""
    memory = plane.memory
    ip = _offset(slot) + _VNET
    flags = memory[ip + 4 * _wide(memory[ip] & 15) + 13]
    return bool(memory[ip + 9] == _TCP and flags & (_SYN | _ACK) == _SYN)


@_kernel
def _arrive(plane: Plane, slot: int, time: int) -> None:
    """Puts a host's packet into its uplink, split so that no stage of its path is occupied for long."""
    packet, stages, hosts = plane.packets[slot], plane.stages, plane.tuns.size
    here, there = plane.region_of[packet.source], plane.region_of[packet.target]
    link = plane.link_of[here, there]
    if link < 0 and here != there:
        plane.state[UNROUTABLE] += 1
        _free(plane, slot)
        return
    if plane.barred[packet.source, packet.target] and _is_dialling(plane, slot):
        plane.state[BARRED] += 1
        _free(plane, slot)
        return
    slowest = max(stages[packet.source].ns_per_byte, stages[hosts + packet.target].ns_per_byte)
    if link >= 0:
        slowest = max(slowest, stages[link].ns_per_byte)
    up, count, done = packet.source, packet.segments, 0
    most = count
    if slowest > 0.0 and count > 1:
        most = max(1, int(plane.quantum / (slowest * (packet.mss + packet.header))))
    while count - done > most:
        part = _piece(plane, slot, done, most)
        if part >= 0:
            _offer(plane, up, part, time, time)
        done += most
    if done == 0:
        _offer(plane, up, slot, time, time)
        return
    part = _piece(plane, slot, done, count - done)
    if part >= 0:
        _offer(plane, up, part, time, time)
    _free(plane, slot)


@_kernel
def _drain(plane: Plane, host: int, time: int) -> None:
    """Reads the packets that a host has sent."""
    slot = _take(plane, LARGE)
    for _ in range(_MAX_READS):
        if slot < 0:
            return
        size = _read(plane.tuns[host], plane.memory_at + _offset(slot), LARGE)
        if size <= 0:
            break
        if not _parse(plane, slot, size, host):
            plane.state[UNROUTABLE] += 1
            continue
        taken = slot
        if size <= SMALL and plane.state[SMALL_FREE] > 0:
            taken = _take(plane, size)
            _memcpy(plane.memory_at + _offset(taken), plane.memory_at + _offset(slot), size)
            plane.packets[taken] = plane.packets[slot]
            _arrive(plane, taken, time)
        else:
            _arrive(plane, slot, time)
            slot = _take(plane, LARGE)
    if slot >= 0:
        _free(plane, slot)


@_kernel
def _step(plane: Plane, slot: int) -> None:
    """A packet leaves a stage: it goes into the next one, or out to the host."""
    packet, hosts = plane.packets[slot], plane.tuns.size
    if hosts <= packet.stage < 2 * hosts:
        late = (_now(plane) - packet.due) // LATE_BUCKET
        plane.late[min(max(late, 0), LATE_BUCKETS - 1)] += 1
        size = _VNET + packet.length
        if _write(plane.tuns[packet.target], plane.memory_at + _offset(slot), size) < 0:
            plane.state[REFUSED] += 1
        plane.state[DELIVERED] += 1
        _free(plane, slot)
        return
    following = hosts + packet.target
    if packet.stage < hosts:
        link = plane.link_of[plane.region_of[packet.source], plane.region_of[packet.target]]
        if link >= 0:
            following = link
    _offer(plane, following, slot, packet.due, packet.last)


@_kernel
def _wait(plane: Plane, count: int, left: int) -> int:
    """Waits up to `left` nanoseconds (below 0: without limit) for the first `count` descriptors; returns how many are
    ready."""
    timeout = 0
    if left >= 0:
        plane.clock[2], plane.clock[3] = left // 1_000_000_000, left % 1_000_000_000
        timeout = plane.clock_at + 16
    return int(_ppoll(plane.polls_at, count, timeout, 0))


@_entry
def forward(plane: Plane, watched: int, tick: int) -> int:
    """Forwards packets until one of the first `watched` descriptors is readable, or a signal arrived (-1); returns its
    index.

    tick: least nanoseconds between two wake-ups, which cost most, while the load is high. A packet may move on half a
    tick early, and appear up to a tick late.
    """
    polls, state = plane.polls, plane.state
    awake, busy = _now(plane), False
    while True:
        while state[HEAP_SIZE] > 0 and plane.packets[plane.heap[0]].due <= awake + tick // 2:
            _step(plane, _pop(plane))
        time = _now(plane)
        if busy and time < awake + tick:
            _wait(plane, 0, awake + tick - time)
            time = awake + tick
        left = -1
        if state[HEAP_SIZE] > 0:
            left = max(plane.packets[plane.heap[0]].due - tick // 2 - time, 0)
        ready = _wait(plane, polls.shape[0], left)
        if ready < 0:
            return -1
        state[WAKEUPS] += 1
        time = _now(plane)
        # At low load, a second sleep between two wake-ups would only cost time.
        busy = time < awake + 2 * tick
        awake = time
        if ready == 0:
            continue
        for i in range(watched, polls.shape[0]):
            events = polls[i, 1] >> 16
            if events & _POLLIN:
                _drain(plane, i - watched, awake)
            elif events & _POLL_DEAD:
                polls[i, 0] = -1
        for i in range(watched):
            if polls[i, 1] >> 16:
                return i


@_entry
def retune(plane: Plane, s: int, ns_per_byte: float, delay: int, loss: float) -> None:
    """Changes a stage. Its queue is sent at the new rate; packets past the queue keep their delay."""
    stage, state = plane.stages[s], plane.state
    time = _now(plane)
    if ns_per_byte != stage.ns_per_byte and stage.ns_per_byte > 0.0:
        scale = ns_per_byte / stage.ns_per_byte
        stage.busy = time + int(max(stage.busy - time, 0) * scale)
        sent = time + stage.delay
        stage.latest = 0
        for i in range(state[HEAP_SIZE]):
            packet = plane.packets[plane.heap[i]]
            if packet.stage == s:
                packet.due = packet.due if packet.due < sent else sent + int((packet.due - sent) * scale)
                packet.last = packet.last if packet.last < sent else sent + int((packet.last - sent) * scale)
                stage.latest = max(stage.latest, packet.due)
        for i in range(state[HEAP_SIZE] // 2 - 1, -1, -1):
            _sink(plane, i, plane.heap[i])
    stage.ns_per_byte, stage.delay = ns_per_byte, delay
    if loss != stage.loss or stage.packets == 0:
        stage.loss = loss
        _draw_loss(stage)
