"""Connections between nodes over real sockets, on both kinds of loop."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop
from msgspec.structs import replace
from peer_parts import SHORT, Raw, Run, Told, hello, until

from p2psync.errors import P2PSyncError
from p2psync.net import peers, stream, tcp
from p2psync.protocol.messages import Chunk, Ping, Pong, Request, encode_chunk_header, encode_control
from p2psync.swarm.control import config, send_time


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def test_nodes_that_dial_each_other_exchange_messages_and_chunks(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a", streams=3).listen(), await Told("b").listen()
        a.table.dial(b.info)
        await until(lambda: a.up == ["b"] and b.up == ["a"])
        a.table.send("b", Request(SHORT, [1, 2]))
        data = bytes(range(256)) * 4096
        assert a.table.send_chunk("b", SHORT, 7, memoryview(data))
        await until(lambda: len(b.messages) == 2)
        chunk = next(m for _, m in b.messages if isinstance(m, Chunk))
        assert (chunk.manifest, chunk.index, bytes(chunk.data)) == (SHORT, 7, data)
        assert ("a", Request(SHORT, [1, 2])) in b.messages
        await until(lambda: a.flushed == len(data))
        await b.table.close()
        await until(lambda: a.down == ["b"])
        assert not a.table.send_chunk("b", SHORT, 7, data)
        await a.table.close()

    run(check())


def segments_sent(link: stream.PeerStream) -> int:
    """Packets with data that left so far: the kernel's tcpi_data_segs_out."""
    info = link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return int.from_bytes(info[156:160], "little")


def test_a_chunk_takes_the_connection_that_will_have_sent_it_first(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a", streams=2).listen(), await Told("b").listen()
        a.table.dial(b.info)
        await until(lambda: len(a.table.streams("b")) == 2)
        busy, idle = a.table.streams("b")
        assert 0 < idle.seconds_to_send(1000) < idle.seconds_to_send(1_000_000)
        # As much at once as no socket takes.
        busy.send_chunk(SHORT, 0, bytes(64 << 20))
        assert busy.seconds_to_send(1000) > idle.seconds_to_send(1000)
        before = idle.written
        assert a.table.send_chunk("b", SHORT, 7, bytes(1000))
        assert idle.written > before
        await a.table.close()
        await b.table.close()

    run(check())


class Kernel:
    """A socket of which the kernel tells this: mss, round trip (us), congestion window, bytes not sent."""

    def __init__(self, mss: int, rtt: int, window: int, notsent: int) -> None:
        info = bytearray(232)
        for offset, value in ((16, mss), (68, rtt), (80, window), (144, notsent)):
            info[offset : offset + 4] = value.to_bytes(4, "little")
        self._info = bytes(info)
        self.options: dict[int, int] = {}

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options[option] = value

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._info[:size]

    def fileno(self) -> int:
        return -1


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel tells nothing of windows")
def test_of_two_empty_connections_the_one_with_the_larger_window_is_taken(run: Run) -> None:
    assert tcp.queue_and_window_rate(Kernel(1000, 100_000, 16, 500)) == (500, pytest.approx(160_000))
    assert tcp.queue_and_window_rate(Kernel(1000, 0, 16, 500)) == (500, 0.0)

    async def check() -> None:
        a, b = await Told("a", streams=2).listen(), await Told("b").listen()
        a.table.dial(b.info)
        await until(lambda: len(a.table.streams("b")) == 2)
        for cold in (0, 1):
            streams = a.table.streams("b")
            real = [link._socket for link in streams]
            for number, link in enumerate(streams):
                link._socket = Kernel(1448, 100_000, 16 if number == cold else 250, 0)
            before = [link.written for link in streams]
            assert a.table.send_chunk("b", SHORT, 7, bytes(1000))
            assert [link.written > was for link, was in zip(streams, before, strict=True)] == [cold == 1, cold == 0]
            for link, sock in zip(streams, real, strict=True):
                link._socket = sock
        await a.table.close()
        await b.table.close()

    run(check())


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the kernel bounds no queue")
def test_what_may_wait_in_the_kernel_is_what_leaves_in_a_few_hundredths_of_a_second(run: Run) -> None:
    slow, fast, held = Kernel(1000, 100_000, 50, 0), Kernel(1000, 10_000, 25, 0), Kernel(1000, 10_000, 25, 0)

    async def check() -> None:
        a, b = await Told("a").listen(), await Told("b").listen()
        a.table.dial(b.info)
        await until(lambda: a.up == ["b"] and b.up == ["a"])
        (link,) = a.table.streams("b")
        assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == config.MIN_NOTSENT_BYTES
        real = link._socket
        for kernel in (fast, slow):
            link._socket = kernel
            assert a.table.send_chunk("b", SHORT, 7, bytes(1000))
        link._socket = held
        link.set_pacing_limit(0.2e6)
        assert a.table.send_chunk("b", SHORT, 7, bytes(1000))
        link._socket = real
        await a.table.close()
        await b.table.close()

    run(check())
    # 2.5 MB/s, and 0.5 MB/s, of which the least may always wait.
    assert fast.options == {socket.TCP_NOTSENT_LOWAT: 128 << 10}
    assert slow.options == {socket.TCP_NOTSENT_LOWAT: 32 << 10}
    assert held.options[socket.TCP_NOTSENT_LOWAT] == config.MIN_NOTSENT_BYTES
    assert send_time.notsent_for(0.0) == config.MIN_NOTSENT_BYTES
    assert send_time.notsent_for(1e9) == config.MAX_NOTSENT_BYTES


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel does not count packets for us")
def test_a_chunk_and_its_header_leave_together(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a").listen(), await Told("b").listen()
        a.table.dial(b.info)
        await until(lambda: a.up == ["b"] and b.up == ["a"])
        (link,) = a.table.streams("b")
        before = segments_sent(link)
        assert a.table.send_chunk("b", SHORT, 7, b"x" * 1000)
        await until(lambda: len(b.messages) == 1)
        assert segments_sent(link) == before + 1
        await a.table.close()
        await b.table.close()

    run(check())


def test_a_host_may_be_given_by_its_name(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a").listen(), await Told("b").listen()
        # It listens on 127.0.0.1 alone: where the name has ::1 as well, that refuses, and the next is tried.
        a.table.dial(replace(b.info, host="localhost"))
        await until(lambda: a.up == ["b"] and b.up == ["a"])
        await a.table.close()
        await b.table.close()

    run(check())


def test_a_port_that_is_taken_is_one_line(run: Run) -> None:
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(P2PSyncError, match="choose another port"):
            await Told("a").table.listen("127.0.0.1", server.getsockname()[1])

    run(check())


def test_a_dial_that_reaches_nobody_has_failed(run: Run) -> None:
    async def check() -> None:
        a, gone = Told("a", streams=2), await Told("b").listen()
        await gone.table.close()
        a.table.dial(gone.info)
        await until(lambda: a.failed == ["b"])
        await a.table.close()

    run(check())


def test_a_dial_that_is_hung_up_on_or_reaches_another_has_failed(run: Run) -> None:
    async def check() -> None:
        a, b = Told("a", streams=2), await Told("b", refuses={"a"}).listen()
        mute = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = mute.sockets[0].getsockname()[1]
        a.table.dial(replace(b.info, node="mute", port=port))
        await until(lambda: a.failed == ["mute"])
        a.table.dial(replace(b.info, node="other"))
        await until(lambda: "other" in a.failed and a.up)
        assert a.up[0] == "b"
        await until(lambda: "b" in a.down)
        mute.close()
        await a.table.close()
        await b.table.close()

    run(check())


def test_a_node_does_not_take_itself_for_a_peer(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        raw = await Raw.dial(a.port, hello("a"))
        await raw.hung_up()
        assert not a.up
        await a.table.close()

    run(check())


def test_a_peer_that_is_shut_out_is_hung_up_on(run: Run) -> None:
    async def check() -> None:
        a = await Told("a", refuses={"x"}).listen()
        raw = await Raw.dial(a.port, hello("x"))
        await raw.hung_up()
        assert not a.up and not a.down
        await a.table.close()

    run(check())


def test_hung_up_on_a_peer_is_down_at_once_and_asked_about_anew(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        first = await Raw.dial(a.port, hello("x"))
        await until(lambda: a.up)
        a.table.hang_up("x", "banned")
        assert a.down == ["x"]
        a.refuses.add("x")
        again = await Raw.dial(a.port, hello("x"))
        await again.hung_up()
        await first.hung_up()
        assert a.up == ["x"] and a.down == ["x"]
        await a.table.close()

    run(check())


def test_a_name_cannot_be_taken_while_its_owner_is_alive(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        owner = await Raw.dial(a.port, hello("x", "1"))
        await until(lambda: a.up)
        thief = await Raw.dial(a.port, hello("x", "2"))
        await thief.hung_up()
        assert a.up == ["x"] and not a.down
        monkeypatch.setattr(peers, "PING_EVERY", -1.0)  # as if the owner had long been silent
        heir = await Raw.dial(a.port, hello("x", "2"))
        await until(lambda: a.up == ["x", "x"])
        assert a.down == ["x"]
        await owner.hung_up()
        heir.writer.close()
        await a.table.close()

    run(check())


def test_pings_are_answered_and_never_reach_the_owner(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        raw = await Raw.dial(a.port, hello("x"), Ping(9))
        heard: list[object] = []
        async with asyncio.timeout(10):
            while Pong(9) not in heard:
                heard += await raw.hear()
        assert not a.messages
        raw.writer.close()
        await a.table.close()

    run(check())


def test_silence_ends_a_connection(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr(peers, "PING_EVERY", 0.01)
        monkeypatch.setattr(peers, "DEAD_AFTER", 0.05)
        a = await Told("a").listen()
        a.table.watch()
        raw = await Raw.dial(a.port, hello("x"))
        await raw.hung_up()  # it hears pings, and answers none
        await until(lambda: a.down == ["x"])
        await a.table.close()

    run(check())


def test_a_peer_that_does_not_greet_in_time_is_disconnected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr(stream, "GREETING_TIMEOUT", 0.05)
        a = await Told("a").listen()
        raw = await Raw.dial(a.port)
        raw.writer.write(b"\x00")
        await raw.hung_up()
        assert not a.up
        await a.table.close()

    run(check())


def test_connections_are_bounded_and_places_are_given_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr(peers, "MAX_CONNECTIONS", 3)
        a = await Told("a").listen()
        taken = [await Raw.dial(a.port, hello(f"x{i}")) for i in range(3)]
        await until(lambda: len(a.up) == 3)
        for _ in range(5):
            await (await Raw.dial(a.port, hello("y"))).hung_up()
        assert "y" not in a.up
        taken[0].writer.close()
        await until(lambda: a.down == ["x0"])
        last = await Raw.dial(a.port, hello("y"))
        await until(lambda: "y" in a.up)
        for raw in [*taken, last]:
            raw.writer.close()
        await a.table.close()

    run(check())


def test_streams_of_one_peer_are_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr(peers, "MAX_STREAMS_PER_PEER", 2)
        a = await Told("a").listen()
        raws = [await Raw.dial(a.port, hello("x")) for _ in range(2)]
        await until(lambda: a.up)
        await (await Raw.dial(a.port, hello("x"))).hung_up()
        raws[0].writer.close()
        await raws[0].hung_up()
        assert not a.down, "one stream is left"
        raws[1].writer.close()
        await until(lambda: a.down == ["x"])
        await a.table.close()

    run(check())


def test_the_backlog_of_a_peer_that_does_not_read_is_bounded(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        raw = await Raw.dial(a.port, hello("x"))
        await until(lambda: a.up)
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        links = a.table._links["x"].streams[0]
        sent = 0
        answer = Request(SHORT, list(range(1024)))
        while not a.down and sent < 200_000:
            a.table.send("x", answer)
            sent += 1
            assert links.backlog <= stream.MAX_BACKLOG + (1 << 16)
            if sent % 1000 == 0:
                await asyncio.sleep(0)
        assert a.down == ["x"]
        raw.writer.close()
        await a.table.close()

    run(check())


def test_every_chunk_is_flushed_even_when_the_connection_is_lost(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        raw = await Raw.dial(a.port, hello("x"))
        await until(lambda: a.up)
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        data = bytes(1 << 20)
        for _ in range(40):
            assert a.table.send_chunk("x", SHORT, 0, data)
        await asyncio.sleep(0)
        assert a.flushed < 40 << 20, "the peer does not read"
        raw.writer.close()
        await until(lambda: a.down)
        assert a.flushed == 40 << 20
        await a.table.close()

    run(check())


def test_a_node_is_woken_for_parts_of_a_chunk_and_at_once_for_its_end_and_for_all_else(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        raw = await Raw.dial(a.port, hello("b"))
        await until(lambda: a.up == ["b"])
        (link,) = a.table.streams("b")

        def least() -> int:
            return link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)  # type: ignore[union-attr]

        async def write(data: bytes) -> None:
            wanted = link.got + len(data)
            raw.writer.write(data)
            await until(lambda: link.got == wanted)

        assert least() == 1
        data = bytes(range(256)) * 256
        await write(encode_chunk_header(SHORT, 3, len(data)) + data[:1000])
        assert least() == stream._PART
        await write(data[1000:50_000])
        assert least() == len(data) - 50_000
        await write(data[50_000:] + encode_control(Ping(5)))
        assert least() == 1
        assert [m for _, m in a.messages if isinstance(m, Chunk)] == [Chunk(SHORT, 3, data)]
        await write(encode_control(Ping(6)))
        await a.table.close()

    run(check())


def test_a_peer_that_goes_within_a_chunk_is_noticed(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        raw = await Raw.dial(a.port, hello("b"))
        await until(lambda: a.up == ["b"])
        raw.writer.write(encode_chunk_header(SHORT, 3, 1 << 20) + bytes(1000))
        raw.writer.close()
        await until(lambda: a.down == ["b"])
        await a.table.close()

    run(check())


def test_on_a_path_that_hardly_moves_what_has_come_is_read_before_the_peer_is_taken_for_dead(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PING_EVERY", 0.01)

    async def check() -> None:
        a = await Told("a").listen()
        a.table.watch()
        raw = await Raw.dial(a.port, hello("b"))
        await until(lambda: a.up == ["b"])
        (link,) = a.table.streams("b")
        raw.writer.write(encode_chunk_header(SHORT, 3, 1 << 20) + bytes(1000))
        await until(lambda: link.got > 1000)
        came = link.got
        # Less than a part, and nothing after it.
        raw.writer.write(bytes(1000))
        await until(lambda: link.got == came + 1000)
        await a.table.close()

    run(check())


def test_a_node_that_may_open_no_more_files_still_speaks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("p2psync.net.tcp.os.dup", full)

    async def check() -> None:
        a, b = await Told("a").listen(), await Told("b").listen()
        a.table.dial(b.info)
        await until(lambda: a.up == ["b"] and b.up == ["a"])
        assert a.table.send_chunk("b", SHORT, 7, memoryview(bytes(100_000)))
        await until(lambda: b.messages)
        await a.table.close()
        await b.table.close()

    run(check())
