"""The packet loop, compiled: from TUN to TUN through up to three stages, each with a rate, a queue, a delay and loss.

No stage has a queue of packets. A stage knows when it will have sent everything that it accepted (`busy`), so a
packet's times are computed when it arrives at the stage, and one heap holds all packets by the time of their next step.
Stages cut through: the first segment of a super-packet moves on while the rest is still being sent, so that a train of
segments takes as long as its segments would. The cost is then per super-packet, not per segment.

Super-packets longer than the quantum (in time, on the slowest stage of their path) are split on arrival, so that they
delay no other packet for long; one that loses a segment is split around it; one that does not fit into a buffer loses
its tail.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from p2psync.topology.emulator import syscalls
from p2psync.topology.emulator.compiled import entry, kernel
from p2psync.topology.emulator.packet_memory import allocate, offset_of, pop_first, push, release, sift_down
from p2psync.topology.emulator.plane import (
    BARRED,
    DELIVERED,
    HEAP_SIZE,
    LARGE,
    LATE_BUCKET,
    LATE_BUCKETS,
    REFUSED,
    SMALL,
    SMALL_FREE,
    UNROUTABLE,
    WAKEUPS,
    Plane,
)
from p2psync.topology.emulator.segments import VNET_BYTES, copy_segments, is_dialling, parse, truncate

_read, _write, _memcpy = syscalls.read, syscalls.write, syscalls.memcpy
_ppoll, _clock_gettime, _CLOCK = syscalls.ppoll, syscalls.clock_gettime, syscalls.CLOCK_MONOTONIC
_POLLIN, _POLL_DEAD = syscalls.POLLIN, syscalls.POLL_DEAD
#: Super-packets read from one host before the next host is read. More cost less per packet and delay other hosts.
_MAX_READS = 64
#: Segments until the next loss on a link without losses.
_NEVER = 1 << 62


@kernel
def _now(plane: Plane) -> int:
    _clock_gettime(_CLOCK, plane.clock_at)
    return int(plane.clock[0] * 1_000_000_000 + plane.clock[1])


@kernel
def _uniform(stage: Any) -> float:
    """Returns a number in (0, 1] from the stage's own xorshift generator."""
    x = stage.random
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    stage.random = x
    return (float((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) + 1.0) / 9007199254740992.0


@kernel
def _draw_loss(stage: Any) -> None:
    """Draws how many segments pass before the next loss: geometric, as for independent losses."""
    if stage.loss <= 0.0:
        stage.to_loss = _NEVER
    else:
        stage.to_loss = min(int(np.log(_uniform(stage)) / np.log1p(-stage.loss)), _NEVER)


@kernel
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
            release(plane, slot)
            return
        truncate(plane, slot, fit)
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
    push(plane, slot)


@kernel
def _offer(plane: Plane, s: int, slot: int, time: int, last: int) -> None:
    """A packet reaches a stage, which sends it, drops it, or sends what random loss leaves of it."""
    stage, packet = plane.stages[s], plane.packets[slot]
    if stage.cut > 0:
        stage.severed += packet.segments
        release(plane, slot)
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
            part = copy_segments(plane, slot, at, run)
            if part >= 0:
                _send(plane, s, part, time, last)
            stage.to_loss -= run
        at += run
        if at < segments:
            stage.lost += 1
            at += 1
            _draw_loss(stage)
    release(plane, slot)


@kernel
def _segments_at_once(plane: Plane, slot: int, link: int) -> int:
    """Returns how many segments of a packet the slowest stage of its path sends within the quantum, at least one."""
    packet, stages = plane.packets[slot], plane.stages
    slowest = max(stages[packet.source].ns_per_byte, stages[plane.tuns.size + packet.target].ns_per_byte)
    if link >= 0:
        slowest = max(slowest, stages[link].ns_per_byte)
    if slowest > 0.0 and packet.segments > 1:
        return max(1, int(plane.quantum / (slowest * (packet.mss + packet.header))))
    return int(packet.segments)


@kernel
def _enter(plane: Plane, slot: int, time: int) -> None:
    """Puts a host's packet into its uplink, split so that no stage of its path is occupied for long."""
    packet = plane.packets[slot]
    here, there = plane.region_of[packet.source], plane.region_of[packet.target]
    link = plane.link_of[here, there]
    if link < 0 and here != there:
        plane.state[UNROUTABLE] += 1
        release(plane, slot)
        return
    if plane.barred[packet.source, packet.target] and is_dialling(plane, slot):
        plane.state[BARRED] += 1
        release(plane, slot)
        return
    up, count, done = packet.source, packet.segments, 0
    most = _segments_at_once(plane, slot, link)
    while count - done > most:
        part = copy_segments(plane, slot, done, most)
        if part >= 0:
            _offer(plane, up, part, time, time)
        done += most
    if done == 0:
        _offer(plane, up, slot, time, time)
        return
    part = copy_segments(plane, slot, done, count - done)
    if part >= 0:
        _offer(plane, up, part, time, time)
    release(plane, slot)


@kernel
def _drain(plane: Plane, host: int, time: int) -> None:
    """Reads the packets that a host has sent."""
    slot = allocate(plane, LARGE)
    for _ in range(_MAX_READS):
        if slot < 0:
            return
        size = _read(plane.tuns[host], plane.memory_at + offset_of(slot), LARGE)
        if size <= 0:
            break
        if not parse(plane, slot, size, host):
            plane.state[UNROUTABLE] += 1
            continue
        taken = slot
        if size <= SMALL and plane.state[SMALL_FREE] > 0:
            taken = allocate(plane, size)
            _memcpy(plane.memory_at + offset_of(taken), plane.memory_at + offset_of(slot), size)
            plane.packets[taken] = plane.packets[slot]
            _enter(plane, taken, time)
        else:
            _enter(plane, slot, time)
            slot = allocate(plane, LARGE)
    if slot >= 0:
        release(plane, slot)


@kernel
def _drain_ready(plane: Plane, watched: int, time: int) -> None:
    """Reads from every host that has sent packets."""
    polls = plane.polls
    for i in range(watched, polls.shape[0]):
        events = polls[i, 1] >> 16
        if events & _POLLIN:
            _drain(plane, i - watched, time)
        elif events & _POLL_DEAD:
            polls[i, 0] = -1


@kernel
def _leave(plane: Plane, slot: int) -> None:
    """A packet leaves a stage: it goes into the next one, or out to the host."""
    packet, hosts = plane.packets[slot], plane.tuns.size
    if hosts <= packet.stage < 2 * hosts:
        late = (_now(plane) - packet.due) // LATE_BUCKET
        plane.late[min(max(late, 0), LATE_BUCKETS - 1)] += 1
        size = VNET_BYTES + packet.length
        if _write(plane.tuns[packet.target], plane.memory_at + offset_of(slot), size) < 0:
            plane.state[REFUSED] += 1
        plane.state[DELIVERED] += 1
        release(plane, slot)
        return
    following = hosts + packet.target
    if packet.stage < hosts:
        link = plane.link_of[plane.region_of[packet.source], plane.region_of[packet.target]]
        if link >= 0:
            following = link
    _offer(plane, following, slot, packet.due, packet.last)


@kernel
def _poll(plane: Plane, count: int, left: int) -> int:
    """Waits up to `left` nanoseconds (below 0: without limit) for the first `count` descriptors; returns how many are
    ready."""
    timeout = 0
    if left >= 0:
        plane.clock[2], plane.clock[3] = left // 1_000_000_000, left % 1_000_000_000
        timeout = plane.clock_at + 16
    return int(_ppoll(plane.polls_at, count, timeout, 0))


@entry
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
            _leave(plane, pop_first(plane))
        time = _now(plane)
        if busy and time < awake + tick:
            _poll(plane, 0, awake + tick - time)
            time = awake + tick
        left = -1
        if state[HEAP_SIZE] > 0:
            left = max(plane.packets[plane.heap[0]].due - tick // 2 - time, 0)
        ready = _poll(plane, polls.shape[0], left)
        if ready < 0:
            return -1
        state[WAKEUPS] += 1
        time = _now(plane)
        # At low load, a second sleep between two wake-ups would only cost time.
        busy = time < awake + 2 * tick
        awake = time
        if ready == 0:
            continue
        _drain_ready(plane, watched, awake)
        for i in range(watched):
            if polls[i, 1] >> 16:
                return i


@entry
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
            sift_down(plane, i, plane.heap[i])
    stage.ns_per_byte, stage.delay = ns_per_byte, delay
    if loss != stage.loss or stage.packets == 0:
        stage.loss = loss
        _draw_loss(stage)
