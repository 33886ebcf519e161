"""The packet loop's memory, compiled: slots for packets, and the heap of packets by the time of their next step."""

from __future__ import annotations

from p2psync.topology.emulator.compiled import kernel
from p2psync.topology.emulator.plane import (
    HEAP_SIZE,
    LARGE,
    LARGE_FREE,
    NO_MEMORY,
    ORDER,
    SMALL,
    SMALL_FREE,
    SMALL_SLOTS,
    Plane,
)


@kernel
def offset_of(slot: int) -> int:
    if slot < SMALL_SLOTS:
        return slot * SMALL
    return SMALL_SLOTS * SMALL + (slot - SMALL_SLOTS) * LARGE


@kernel
def allocate(plane: Plane, size: int) -> int:
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


@kernel
def release(plane: Plane, slot: int) -> None:
    state = plane.state
    if slot < SMALL_SLOTS:
        plane.small[state[SMALL_FREE]] = slot
        state[SMALL_FREE] += 1
    else:
        plane.large[state[LARGE_FREE]] = slot
        state[LARGE_FREE] += 1


@kernel
def _is_before(plane: Plane, a: int, b: int) -> bool:
    one, other = plane.packets[a], plane.packets[b]
    return bool(one.due < other.due or (one.due == other.due and one.order < other.order))


@kernel
def push(plane: Plane, slot: int) -> None:
    heap, state = plane.heap, plane.state
    plane.packets[slot].order = state[ORDER]
    state[ORDER] += 1
    at = state[HEAP_SIZE]
    state[HEAP_SIZE] += 1
    while at > 0:
        parent = (at - 1) >> 1
        if not _is_before(plane, slot, heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = slot


@kernel
def sift_down(plane: Plane, at: int, slot: int) -> None:
    """Places a slot at index `at` of the heap, or below it."""
    heap, size = plane.heap, plane.state[HEAP_SIZE]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _is_before(plane, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(plane, heap[child], slot):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = slot


@kernel
def pop_first(plane: Plane) -> int:
    heap, state = plane.heap, plane.state
    top = heap[0]
    state[HEAP_SIZE] -= 1
    if state[HEAP_SIZE] > 0:
        sift_down(plane, 0, heap[state[HEAP_SIZE]])
    return int(top)
