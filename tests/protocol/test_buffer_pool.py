"""Memory for chunks: nobody's bytes are overwritten, and what nobody needs is used again."""

from __future__ import annotations

from p2psync.protocol.buffer_pool import BufferPool


def test_what_is_lent_is_nobody_elses() -> None:
    memory = BufferPool(spare=1 << 20)
    pieces = [memory.take(1000) for _ in range(20)]
    for number, piece in enumerate(pieces):
        piece[:] = bytes([number]) * 1000
    assert [bytes(piece) for piece in pieces] == [bytes([number]) * 1000 for number in range(20)]
    assert memory.lent == 20


def test_what_nobody_refers_to_is_used_again() -> None:
    memory = BufferPool(spare=1 << 20)
    first = memory.take(1000)
    first[:4] = b"left"
    del first
    assert memory.lent == 0
    assert bytes(memory.take(600)[:4]) == b"left"


def test_a_part_of_it_keeps_it_lent() -> None:
    memory = BufferPool(spare=1 << 20)
    part = memory.take(1000)[10:20].cast("b")
    assert memory.lent == 1
    other = memory.take(1000)
    other[:] = b"x" * 1000
    assert bytes(part) != b"x" * 10
    del part
    assert memory.lent == 1


def test_no_more_is_kept_than_may_be() -> None:
    memory = BufferPool(spare=4096)
    pieces = [memory.take(2048) for _ in range(5)]
    for piece in pieces:
        piece[:4] = b"left"
    del pieces, piece
    again = [memory.take(2048) for _ in range(3)]
    assert [bytes(piece[:4]) == b"left" for piece in again[:2]] == [True, True]
    assert memory.take(1 << 14).nbytes == 1 << 14
    assert memory.lent == 3
