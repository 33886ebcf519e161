"""The relay bench: its figures, that leaves get nothing but from the relay, and a short one of real processes."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import time
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console

from p2psync.bench.relay.bench import BASELINES, RelayBench, RelayOptions
from p2psync.bench.relay.meter import CpuSamples, clock_of
from p2psync.bench.relay.report import Passage, RelayReport, lines, times_cheaper
from p2psync.bench.relay.tables import print_relay_report
from p2psync.bench.relay.wires import RELAY, SEED, Wires, star
from p2psync.bench.swarm import forward
from p2psync.bench.swarm.contenders import P2PSYNC, missing
from p2psync.bench.swarm.trial import in_turn
from p2psync.topology.emulator import namespaces, runs, why_not
from p2psync.topology.network import from_topology

_reason = why_not()
needs_networks = pytest.mark.skipif(_reason is not None, reason=_reason or "")


def passed(contender: str, cpu: float, *, round: int = 0, rate: float = 0.0, trouble: str = "") -> Passage:
    """A run of 250 MB in 4 s."""
    return Passage(
        contender, round, rate, 250 << 20, 250_000_000, 65536, 4.0, cpu, 260_000_000, 255_000_000, trouble=trouble
    )


def test_a_line_gives_the_cost_of_a_byte() -> None:
    (line,) = lines([passed(P2PSYNC, cpu, round=n) for n, cpu in enumerate((0.5, 0.9, 0.4))])
    assert (line.runs, line.per_gb, line.per_cpu_second) == (3, 2.0, pytest.approx(500))
    assert line.share == pytest.approx(0.25)  # 125 MB, where a core passes 500 in a second
    assert line.busy == pytest.approx(0.125)
    assert line.through == pytest.approx(500.0)
    assert line.waste == pytest.approx(1.04)


def test_each_limit_has_lines_of_its_own_and_runs_that_failed_count_nowhere() -> None:
    found = lines([passed(P2PSYNC, 0.5), passed(P2PSYNC, 1.0, rate=1000.0), passed("aria2", 9.0, trouble="it ended")])
    assert [(line.contender, line.rate, line.per_gb) for line in found] == [(P2PSYNC, 0.0, 2.0), (P2PSYNC, 1000.0, 4.0)]


def test_baselines_are_compared_round_by_round() -> None:
    runs = [passed(P2PSYNC, 1.0), passed("aria2", 2.0), passed(P2PSYNC, 4.0, round=1), passed("aria2", 12.0, round=1)]
    assert times_cheaper([*runs, passed(P2PSYNC, 1.0, round=2)], P2PSYNC, "aria2") == 2.5
    assert times_cheaper(runs[:1], P2PSYNC, "aria2") is None
    assert times_cheaper([runs[0], passed("aria2", 2.0, trouble="it ended")], P2PSYNC, "aria2") is None


def test_a_report_can_be_printed_and_read_again() -> None:
    made = RelayReport(
        leaves=1,
        congestion="bbr",
        passages=[passed(P2PSYNC, 0.5), passed("aria2", 1.0), passed("libtorrent", 0.0, trouble="it ended early")],
        skipped=["rsync: there is none"],
    )
    text = io.StringIO()
    print_relay_report(made, Console(file=text, width=150))
    shown = text.getvalue()
    assert "aria2 takes 2.00 times the CPU time of p2psync" in shown
    assert "libtorrent, round 1: it ended early" in shown
    assert "rsync: there is none" in shown
    assert msgspec.json.decode(msgspec.json.encode(made), type=RelayReport) == made


def test_processor_time_is_known_between_any_two_moments() -> None:
    looks = CpuSamples()
    for at, spent in ((10.0, 1.0), (11.0, 1.5), (13.0, 1.5)):
        looks.add(at, spent)
    assert looks.between(10.5, 12.0) == 0.25
    assert looks.between(0.0, 10.5) == 0.25  # the seconds before the first sample are not known
    assert looks.between(11.0, 99.0) == 0.0


def test_the_clock_of_a_process_is_its_own() -> None:
    before = time.process_time()
    spent = time.clock_gettime(clock_of(os.getpid()))
    assert before <= spent <= time.process_time()


def test_seed_and_leaves_know_only_the_relay() -> None:
    network = from_topology(star(2))
    met = network.connections()
    for i, one in enumerate(network.names):
        for j, other in enumerate(network.names):
            assert met[i, j] == (one != other and RELAY in (one, other))


def test_connections_are_passed_on() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    async def asked() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        there = server.sockets[0].getsockname()[1]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        passing = asyncio.create_task(forward.main("127.0.0.1", port, "127.0.0.1", there))
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0)
        writer.write(b"hello\n")
        answer = await reader.read()
        writer.close()
        passing.cancel()
        server.close()
        return answer

    assert asyncio.run(asyncio.wait_for(asked(), 10)) == b"HELLO\n"


@pytest.mark.parametrize(
    "arguments", [("--baselines", "rsync"), ("--size", "much"), ("--rounds", "0"), ("--rate", "-1")]
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], refused: Callable[..., tuple[int, str]]) -> None:
    code, told = refused("relay", *arguments)
    assert code == 2
    assert told


def reaches(wires: Wires, host: str, other: str) -> bool:
    """Returns whether a host's kernel lets it open a connection to another one's listening port."""
    with wires.inside(other):
        listener = socket.create_server((wires.address(other), 0))
    with wires.inside(host):
        call = socket.socket()
    call.settimeout(2)
    with listener, call:
        return call.connect_ex((wires.address(other), listener.getsockname()[1])) == 0


@pytest.mark.root
@needs_networks
def test_a_leaf_can_get_nothing_but_from_the_relay() -> None:
    with Wires(2) as wires:
        run = wires.state.run
        leaves = [host for host in wires.hosts if host not in (SEED, RELAY)]
        assert all(reaches(wires, RELAY, host) and reaches(wires, host, RELAY) for host in [SEED, *leaves])
        assert not any(reaches(wires, SEED, leaf) or reaches(wires, leaf, SEED) for leaf in leaves)
        assert not reaches(wires, *leaves)
    assert not namespaces.existing(runs.prefix_of(run))
    assert not runs.folder_of(run).exists()


@pytest.mark.root
@needs_networks
def test_real_relays_are_measured_and_keep_the_payload() -> None:
    names = [name for name in (P2PSYNC, *BASELINES) if not missing(name)]
    options = RelayOptions(names, [1 << 20], rates=[0.0], rounds=1, leaves=2, limit=120, settle=0.2)
    made = RelayBench(options).run()
    assert [run.contender for run in made.passages] == names
    for run in made.passages:
        assert run.trouble == ""
        assert run.cpu_seconds > 0
        assert run.received >= run.payload_bytes
        assert run.sent >= 2 * run.payload_bytes


def test_each_contender_comes_first_in_its_turn() -> None:
    rounds = [in_turn(["p2psync", "aria2", "libtorrent"], number) for number in range(4)]
    assert [names[0] for names in rounds] == ["p2psync", "aria2", "libtorrent", "p2psync"]
    assert all(sorted(names) == ["aria2", "libtorrent", "p2psync"] for names in rounds)
    assert in_turn([], 3) == []
