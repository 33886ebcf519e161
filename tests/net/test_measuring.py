"""Measuring over real sockets: counters, probe padding, streams opened and closed, congestion control."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
import uvloop
from peer_parts import SHORT, Raw, Run, Told, hello, until

from p2psync.errors import UsageError
from p2psync.net import tcp
from p2psync.protocol.messages import Chunk, Message, ProbeEnd, ProbePadding, ProbeRequest, RequestStreams
from p2psync.protocol.plan import NodePlan, TreePosition
from p2psync.swarm.control import monitor as monitor_module
from p2psync.swarm.control import stream_count
from p2psync.swarm.control.config import MeasureConfig, ProbeConfig
from p2psync.swarm.control.monitor import NetworkMonitor
from p2psync.swarm.control.path_estimates import PathEstimates
from p2psync.swarm.control.prober import Prober


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


#: Probes at once, for as long as a rate must last.
SOON = ProbeConfig(
    settle_seconds=0.0,
    jitter_seconds=0.0,
    min_seconds=0.9,
    max_bytes=1 << 30,
    initial_bytes=2 << 30,
    serve_again_seconds=0.0,
)
#: Probes nobody, and has little to give.
POOR = ProbeConfig(settle_seconds=1e6, initial_bytes=16 << 20, link_share=0.0, serve_again_seconds=0.0)


def measured(
    told: Told,
    *,
    loopback: bool = True,
    config: ProbeConfig = SOON,
    congestion: str = "",
    others_fetch: Callable[[], bool] = lambda: False,
    on_connections: Callable[[str, int], None] = lambda peer, count: None,
) -> NetworkMonitor:
    """Measuring put to a peer table, as a runner does it."""
    made = NetworkMonitor(
        told.info,
        told.table,
        random.Random(told.name),
        MeasureConfig(loopback=loopback, probing=config),
        asyncio.get_running_loop(),
        streams=0,
        congestion=congestion,
        others_fetch=others_fetch,
        on_connections=on_connections,
    )
    events, up, down, message = told.table._events, told._up, told.down.append, told.messages.append

    def on_up(name: str, region: str) -> bool:
        accepted = up(name, region)
        if accepted:
            made.peer_up(name, region)
        return accepted

    def on_down(name: str) -> None:
        down(name)
        made.peer_down(name)

    def on_message(name: str, what: Message) -> None:
        if not made.message(name, what):
            message((name, what))

    events.up, events.down, events.message = on_up, on_down, on_message
    made.start()
    return made


async def stop(*things: NetworkMonitor | Told) -> None:
    for thing in things:
        if isinstance(thing, NetworkMonitor):
            thing.stop()
        else:
            await thing.table.close()


def test_two_that_know_nothing_of_each_other_probe_and_know_rates_and_round_trips(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a", streams=2).listen(), await Told("b").listen()
        one, other = measured(a), measured(b)
        a.table.dial(b.info)
        # Nothing here holds padding up but its sender, so that only what comes is a measure.
        await until(lambda: any(path.received.value for path in one.estimates.paths.values()))
        await until(lambda: other.estimates.down.value)
        path = one.statistics().paths[0]
        assert path.peer == "b"
        assert 0 < path.rtt < 0.1
        assert path.received > 1
        assert one.padding_sent and other.padding_sent
        assert not a.messages and not b.messages
        await stop(one, other, a, b)

    run(check())


def test_a_downlink_is_reported_once_the_prober_is_sure_of_it_or_if_nobody_probes(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a").listen(), await Told("b").listen()
        one = measured(a)
        for _ in range(12):
            one.estimates.down.add(250_000, 0.25)
        one._report()
        assert one._statistics.down == 0
        one._prober.peer_up("b", "", 0.0)
        job = one._prober.schedule.downlink
        assert job is not None
        job.is_confirmed = True
        one._report()
        assert one._statistics.down == 0, "it may be all that others can send"
        job.is_limit = True
        one._report()
        assert one._statistics.down == 8
        one._statistics = one._reporter.report(is_down_sure=False)
        one._config = replace(one._config, probe=False)
        job.is_confirmed = False
        one._report()
        assert one._statistics.down == 8
        await stop(one, a, b)

    run(check())


def test_nodes_on_one_machine_do_not_probe_each_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "TICK", 0.01)

    async def check() -> None:
        a, b = await Told("a").listen(), await Told("b").listen()
        one, other = measured(a, loopback=False), measured(b, loopback=False)
        a.table.dial(b.info)
        await until(lambda: a.up and one._fresh == {} and other._fresh == {})
        for _ in range(5):
            one._prober.poll(False, 1e9)
        assert one._prober.actions() == []
        await stop(one, other, a, b)

    run(check())


def test_while_others_fetch_what_is_here_nobody_is_probed_for_some_while(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        fetching = [True]
        one = measured(a, config=ProbeConfig(quiet_seconds=0.0, yield_seconds=1e6), others_fetch=lambda: fetching[0])
        told: list[bool] = []
        one._prober.poll = lambda flowing, now: told.append(flowing)  # type: ignore[method-assign]
        await until(lambda: len(told) >= 2)
        assert not any(told), "nothing flowed here"
        a.table.chunk_at = asyncio.get_running_loop().time()
        told.clear()
        await until(lambda: len(told) >= 2)
        assert all(told)
        fetching[0] = False
        told.clear()
        await until(lambda: len(told) >= 2)
        assert not any(told)
        await stop(one, a)

    run(check())


def test_a_child_of_the_plan_has_a_path_controller_and_its_connections_are_sampled(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a").listen(), await Told("b").listen()
        one = measured(a, config=POOR)
        a.table.dial(b.info)
        await until(lambda: a.up)
        one.planned(NodePlan(1, ["b"], [1], [TreePosition(-1, [0], 0, 8.0)], headroom=[2.0]))
        await until(lambda: {stream.peer for stream in one._path_controllers._last} == {"b"})
        assert {name: path._limit for name, path in one._path_controllers._paths.items()} == {"b": 2e6}
        await stop(one, a, b)

    run(check())


def test_a_path_that_lacks_connections_is_expected_to_deliver_as_much_less(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a", streams=2).listen(), await Told("b").listen()
        one = measured(a, config=POOR, on_connections=lambda peer, count: connections.append((peer, count)))
        a.table.dial(b.info)
        await until(lambda: len(a.table.streams("b")) == 2)
        one.stop()  # the kernel would tell how near the peer is
        one.estimates.paths["b"] = PathEstimates(0.1)
        plan = NodePlan(1, ["b"], [1], [TreePosition(-1, [0], 0, 20.0)])
        one.planned(plan)
        wanted = one._streams._policy.wanted("b")
        assert wanted > 8
        assert one.estimates._expected == {"b": pytest.approx(20.0 * 125_000 * 2 / wanted)}
        await until(lambda: len(a.table.streams("b")) == wanted)
        one.planned(plan)
        assert one.estimates._expected == {"b": pytest.approx(20.0 * 125_000)}
        assert connections[-1] == ("b", wanted)
        await stop(one, a, b)

    connections: list[tuple[str, int]] = []
    run(check())


@pytest.mark.parametrize(("congestion", "times"), [("cubic", 1), ("bbr", 0)])
def test_a_path_is_probed_again_over_many_more_connections_unless_one_fills_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, congestion: str, times: int
) -> None:
    probed: list[str] = []
    again = Prober.again

    def noted(prober: Prober, name: str, now: float) -> None:
        probed.append(name)
        again(prober, name, now)

    async def check() -> None:
        a, b = await Told("a", streams=2).listen(), await Told("b").listen()
        one = measured(a, config=POOR, congestion=congestion)
        a.table.dial(b.info)
        await until(lambda: len(a.table.streams("b")) == 2)
        one.stop()
        one._adjust()
        a.table.set_streams("b", 6)
        await until(lambda: len(a.table.streams("b")) == 6)
        one._adjust()
        assert probed == ["b"] * times
        await stop(one, a, b)

    monkeypatch.setattr(Prober, "again", noted)
    run(check())


def test_probe_padding_ends_at_the_budget_however_often_a_peer_asks(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        one = measured(a, config=POOR)
        raw = await Raw.dial(a.port, hello("x"))
        await until(lambda: a.up)
        got = 0
        for token in range(12):
            raw.say(ProbeRequest(token, 1 << 30, 60.0))
            ended = False
            while not ended:
                for message in await raw.hear():
                    if isinstance(message, ProbePadding):
                        got += len(message.data)
                    ended = ended or (isinstance(message, ProbeEnd) and message.token == token)
        assert 0.9 * POOR.initial_bytes < got <= 1.05 * POOR.initial_bytes
        await stop(one, a)

    run(check())


def test_probe_padding_is_paced_as_requested_and_chunks_after_it_are_not(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        one = measured(a, config=POOR)
        raw = await Raw.dial(a.port, hello("x"))
        await until(lambda: a.up)
        (stream,) = a.table.streams("x")
        raw.say(ProbeRequest(7, 1 << 30, 60.0, 3e6))
        await until(lambda: one._probe_sender._flows)
        await until(lambda: tcp.max_pacing_rate(stream._socket) == 3_000_000)
        assert list(one._probe_sender.paced) == ["x"]
        raw.say(ProbeRequest(7, 0, 0.0))
        await until(lambda: not one._probe_sender._flows)
        assert tcp.max_pacing_rate(stream._socket) == 0
        raw.say(
            ProbeRequest(8, 1 << 30, 60.0, 1e-3)
        )  # who wants it that slow would wait for what is under way for ever
        await until(lambda: one._probe_sender._flows)
        await until(lambda: tcp.max_pacing_rate(stream._socket) == 64 << 10)
        await stop(one, a)

    run(check())


def test_probe_padding_ends_when_chunks_flow(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        one = measured(a, config=POOR)
        raw = await Raw.dial(a.port, hello("x"))
        await until(lambda: a.up)
        raw.say(ProbeRequest(7, 1 << 30, 60.0))  # and reads nothing, so that it lasts
        await until(lambda: one._probe_sender._flows)
        assert a.table.send_chunk("x", SHORT, 1, bytes(1000))
        await until(lambda: not one._probe_sender._flows)
        sent = one.padding_sent
        raw.say(ProbeRequest(8, 1 << 30, 60.0))
        ends: list[ProbeEnd] = []
        while len(ends) < 2:
            ends += [m for m in await raw.hear() if isinstance(m, ProbeEnd)]
        assert ends[1] == ProbeEnd(8, 0)
        assert one.padding_sent == sent
        await stop(one, a)

    run(check())


def test_probe_padding_that_nobody_requested_ends_the_connection(run: Run) -> None:
    async def check() -> None:
        a = await Told("a").listen()
        one = measured(a, config=POOR)
        raw = await Raw.dial(a.port, hello("x"))
        await until(lambda: a.up)
        raw.say(ProbePadding(memoryview(bytes(1000))))
        await raw.hung_up()
        assert a.down == ["x"]
        await stop(one, a)

    run(check())


def test_streams_are_opened_and_closed_while_chunks_flow(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_count, "CLOSE_IDLE_SECONDS", 0.05)
    monkeypatch.setattr(stream_count, "DIAL_PAUSE_SECONDS", 0.0)

    async def check() -> None:
        a, b = await Told("a", streams=2).listen(), await Told("b").listen()
        a.table.dial(b.info)
        await until(lambda: len(a.table.streams("b")) == len(b.table.streams("a")) == 2)
        a.table.set_streams("b", 6)
        a.table.set_streams("b", 6)  # said again before they stand, it opens no more
        await until(lambda: len(b.table.streams("a")) == 6)
        data = random.Random(0).randbytes(1 << 20)
        sent = 0
        while len(a.table.streams("b")) > 1 or len(b.table.streams("a")) > 1:
            a.table.set_streams("b", 1)
            for table, peer in ((a.table, "b"), (b.table, "a")):
                assert table.send_chunk(peer, SHORT, sent, data)
            sent += 1
            await asyncio.sleep(0.01)
            if sent % 20 == 0:
                await asyncio.sleep(0.1)  # all are idle for once
        for told in (a, b):
            await until(lambda told=told: len(told.messages) == sent)  # type: ignore[misc]
            chunks = [message for _, message in told.messages if isinstance(message, Chunk)]
            assert sorted(chunk.index for chunk in chunks) == list(range(sent))
            assert all(bytes(chunk.data) == data for chunk in chunks)
            await until(lambda told=told: told.flushed == sent * len(data))  # type: ignore[misc]
        assert not a.down and not b.down
        await stop(a, b)

    run(check())


def test_a_dialled_node_requests_connections_of_the_one_that_dialled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "ADJUST_EVERY", 0.0)

    async def check() -> None:
        a, b = await Told("a", streams=2).listen(), await Told("b").listen()
        one, other = measured(a, loopback=False), measured(b, loopback=False)
        a.table.dial(b.info)
        await until(lambda: a.up and b.up)
        other._streams._policy.wanted = lambda name: 5  # type: ignore[method-assign]
        await until(lambda: len(b.table.streams("a")) == 5)
        assert not any(isinstance(message, RequestStreams) for _, message in a.messages)
        await stop(one, other, a, b)

    run(check())


def test_connections_get_the_congestion_control_that_was_chosen(run: Run) -> None:
    async def check() -> None:
        a = Told("a", streams=2, congestion=tcp.Congestion("reno", "reno"))
        b = await Told("b", congestion=tcp.Congestion("reno", "reno")).listen()
        a.table.dial(b.info)
        await until(lambda: a.up and b.up)
        for stream in [*a.table.streams("b"), *b.table.streams("a")]:
            assert tcp.congestion_of(stream._socket) == "reno"
        await stop(a, b)

    run(check())


def test_connections_to_near_peers_get_the_congestion_control_for_near_ones(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def used(near_rtt: float) -> set[str]:
        monkeypatch.setattr(tcp, "NEAR_RTT_SECONDS", near_rtt)
        choice = tcp.Congestion("reno", "cubic")
        a, b = Told("a", streams=2, congestion=choice), await Told("b", congestion=choice).listen()
        a.table.dial(b.info)
        await until(lambda: a.up and b.up)
        found = {tcp.congestion_of(s._socket) for s in [*a.table.streams("b"), *b.table.streams("a")]}
        await stop(a, b)
        return found

    # However long this machine takes to turn a packet around when it is busy.
    assert run(used(60.0)) == {"cubic"}
    assert run(used(0.0)) == {"reno"}


def test_a_connection_counts_chunks_that_meet_an_empty_queue(run: Run) -> None:
    async def check() -> None:
        a, b = await Told("a", streams=1).listen(), await Told("b", streams=1).listen()
        a.table.dial(b.info)
        await until(lambda: a.up and b.up)
        stream = a.table.streams("b")[0]
        for _ in range(3):
            a.table.send_chunk("b", SHORT, 0, bytes(100_000))
            await until(lambda: not stream.sample().backlog)
        assert stream.sample().app_limited == 3
        b.table.streams("a")[0]._transport.pause_reading()  # type: ignore[union-attr]
        for _ in range(100):  # more than the kernels take
            a.table.send_chunk("b", SHORT, 0, bytes(100_000))
        assert stream.sample().app_limited < 103
        before = stream.sample().app_limited
        a.table.send_chunk("b", SHORT, 0, bytes(100_000))
        assert stream.sample().app_limited == before
        await stop(a, b)

    run(check())


def test_a_round_trip_is_timed_by_pings_without_the_kernels_counters(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_TCP_INFO", None)

    async def check() -> None:
        a, b = await Told("a").listen(), await Told("b").listen()
        a.table.dial(b.info)
        await until(lambda: a.up and b.up)
        stream = a.table.streams("b")[0]
        stream.ping(5)
        await until(lambda: stream.round_trip)
        a.table.send_chunk("b", SHORT, 0, bytes(100_000))
        await until(lambda: b.messages)
        sample = stream.sample()
        assert sample.delivered > 100_000
        assert sample.rtt == stream.round_trip < 1
        assert b.table.streams("a")[0].sample().received > 100_000
        await stop(a, b)

    run(check())


def test_the_kernels_counters_are_read_at_their_offsets() -> None:
    data = bytearray(232)
    struct.pack_into("<I", data, 16, 1448)  # tcpi_snd_mss
    struct.pack_into("<III", data, 28, 3, 5, 2)  # tcpi_sacked, tcpi_lost, tcpi_retrans
    struct.pack_into("<QQ", data, 120, 10_000, 777)  # tcpi_bytes_acked, tcpi_bytes_received
    struct.pack_into("<II", data, 144, 55, 20_000)  # tcpi_notsent_bytes, tcpi_min_rtt
    struct.pack_into("<QQQ", data, 168, 9_000_000, 250_000, 500_000)  # busy, rwnd_limited, sndbuf_limited
    struct.pack_into("<QQ", data, 200, 20_000, 300)  # tcpi_bytes_sent, tcpi_bytes_retrans
    assert tcp.parse_info(bytes(data), 23) == tcp.TcpInfo(14_344, 800, 20_000, 300, 55 + 3 * 1448, 0.02, 0.25)
    assert tcp.parse_info(bytes(data[:215])) is None


def test_the_kernel_agrees_about_a_connection_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            sender.sendall(bytes(50_000))
            left = 50_000
            while left:
                left -= len(receiver.recv(left))
            sent, received = tcp.tcp_info(sender), tcp.tcp_info(receiver)
    assert sent is not None and received is not None
    assert sent.sent >= 50_000
    assert received.received == 50_000
    assert 0 < sent.rtt < 1


@pytest.mark.parametrize(
    ("wish", "offered", "chosen"),
    [
        ("auto", {"bbr", "cubic"}, ("bbr", "cubic")),
        ("auto", {"bbr"}, ("bbr", "bbr")),
        ("auto", {"cubic", "reno"}, ("cubic", "cubic")),
        ("auto", set(), ("", "")),
        ("bbr", {"bbr", "cubic"}, ("bbr", "bbr")),
        ("", set(), ("", "")),
    ],
)
def test_the_best_available_congestion_control_is_chosen(
    wish: str, offered: set[str], chosen: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    has: Callable[[str], bool] = offered.__contains__
    monkeypatch.setattr(tcp, "offers", has)
    assert tcp.choose_congestion(wish) == tcp.Congestion(*chosen)


def test_an_unavailable_congestion_control_is_an_error_of_one_line() -> None:
    with pytest.raises(UsageError, match="congestion quic is not offered here"):
        tcp.choose_congestion("quic")


async def test_estimates_know_the_regions_of_peers_that_are_in_another_one() -> None:
    one = Told("one", region="here")
    made = measured(one)
    for name, region in [("mate", "here"), ("far", "there"), ("nobody-knows", "")]:
        made.peer_up(name, region)
    assert made.estimates._regions == {"far": "there"}
    made.peer_down("far")
    assert not made.estimates._regions
