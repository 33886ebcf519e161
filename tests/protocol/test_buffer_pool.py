"""Receive buffers: no lease overwrites another, and the pool reuses buffers whose leases ended."""

from __future__ import annotations

from p2psync.protocol.buffer_pool import BufferPool


def test_buffer_pool_leases_no_buffer_twice() -> None:
    pool = BufferPool(max_idle_bytes=1 << 20)
    leases = [pool.take(1000) for _ in range(20)]
    for number, lease in enumerate(leases):
        lease[:] = bytes([number]) * 1000
    assert [bytes(lease) for lease in leases] == [bytes([number]) * 1000 for number in range(20)]
    assert pool.leased == 20


def test_buffer_pool_reuses_a_dropped_buffer() -> None:
    pool = BufferPool(max_idle_bytes=1 << 20)
    first = pool.take(1000)
    first[:4] = b"left"
    del first
    assert pool.leased == 0
    assert bytes(pool.take(600)[:4]) == b"left"


def test_buffer_pool_keeps_a_lease_while_a_view_of_it_lives() -> None:
    pool = BufferPool(max_idle_bytes=1 << 20)
    part = pool.take(1000)[10:20].cast("b")
    assert pool.leased == 1
    other = pool.take(1000)
    other[:] = b"x" * 1000
    assert bytes(part) != b"x" * 10
    del part
    assert pool.leased == 1


def test_buffer_pool_bounds_its_idle_bytes() -> None:
    pool = BufferPool(max_idle_bytes=4096)
    leases = [pool.take(2048) for _ in range(5)]
    for lease in leases:
        lease[:4] = b"left"
    del leases, lease
    again = [pool.take(2048) for _ in range(3)]
    assert [bytes(lease[:4]) == b"left" for lease in again[:2]] == [True, True]
    assert pool.take(1 << 14).nbytes == 1 << 14
    assert pool.leased == 3
