"""Emulated networks start and end: simultaneously, by kill, and leave nothing."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulator_parts import SMALL, needs_networks, round_trip_ms, until

from p2psync.cli.main import main
from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import Emulator, namespaces, runs
from p2psync.topology.emulator.scenario import Scenario
from p2psync.topology.events import NetworkEvent
from p2psync.topology.model import Link, Region, Topology

pytestmark = [pytest.mark.root, needs_networks]

ROOT = Path(__file__).parents[2]
TINY = Topology("a-0", {"a": Region(1, 100), "b": Region(1, 100)}, [Link(("a", "b"), 100, 5)])
FILE = """
trainer = "a-0"
[region.a]
hosts = 2
up = 100
[region.b]
hosts = 1
up = 100
[[link]]
between = ["a", "b"]
rate = 10
"""


def left(run: str) -> list[str]:
    """The existing namespaces of a run."""
    return namespaces.existing(runs.prefix_of(run))


@pytest.fixture
def wan(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `p2psync wan …`: its exit status, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["p2psync", "wan", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.mark.parametrize("alive", [True, False])
def test_an_unanswered_request_is_repeated_while_the_router_lives(
    alive: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runs, "PLACE", tmp_path)
    runs.folder_of("run").mkdir()
    with (runs.folder_of("run") / "lock").open("w") as lock, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        if alive:
            fcntl.flock(lock, fcntl.LOCK_EX)
        s.bind(str(runs.folder_of("run") / "control"))
        s.listen(8)

        def serve() -> None:
            s.accept()[0].close()  # a client that was not scheduled in time
            if alive:
                client, _ = s.accept()
                with client:
                    client.recv(1 << 10)
                    client.send(b"{}")

        router = threading.Thread(target=serve, daemon=True)
        router.start()
        if alive:
            assert runs.ask("run", {}) == b"{}"
        else:
            with pytest.raises(P2PSyncError, match="died"):
                runs.ask("run", {})
        router.join(10)
        assert not router.is_alive()


def test_simultaneous_networks_are_isolated() -> None:
    with Emulator(TINY) as one, Emulator(TINY) as other:
        other.set_link("a", "b", delay_ms=20)
        assert one.address("a-0") == other.address("a-0")
        assert 9.7 < round_trip_ms(one, "a-0", "b-0") < 11
        assert 39.7 < round_trip_ms(other, "a-0", "b-0") < 41
    assert left(one.state.run) == left(other.state.run) == []


def test_the_end_of_a_network_ends_its_processes() -> None:
    with Emulator(TINY) as network:
        process = network.run("b-0", ["sleep", "1000"])
    assert process.wait() == -signal.SIGKILL


@pytest.fixture
def strange_namespace() -> Iterator[str]:
    """A namespace that no emulated network made, though its name looks like one."""
    name = f"p2w-{os.getpid()}-mine"
    namespaces.add([name])
    yield name
    namespaces.remove([name])


def test_the_next_network_removes_only_resources_of_killed_routers(strange_namespace: str) -> None:
    with Emulator(TINY) as living:
        killed = Emulator(TINY)
        killed.__enter__()
        process = killed.run("a-0", ["sleep", "1000"])
        os.kill(killed.state.router, signal.SIGKILL)
        until(lambda: namespaces._is_dead(killed.state.router))
        with pytest.raises(P2PSyncError, match="has died: bring it up again"):
            killed.counters()
        assert len(left(killed.state.run)) == 2
        assert killed.state.run in runs.sweep()
        assert process.wait() == -signal.SIGKILL
        assert left(killed.state.run) == []
        assert not runs.folder_of(killed.state.run).exists()
        assert len(left(living.state.run)) == 2
        assert living.counters().unroutable == 0
        assert namespaces.existing(strange_namespace) == [strange_namespace]
        killed.close()


def test_a_network_ends_with_its_killed_user() -> None:
    code = """
import sys; sys.path.insert(0, "tests/topology")
from test_emulator_life import TINY
from p2psync.topology.emulator import Emulator
with Emulator(TINY) as network:
    print(network.state.run, network.run("a-0", ["sleep", "1000"]).pid, flush=True)
    input()
"""
    user = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with user:
        assert user.stdout
        run, pid = user.stdout.readline().split()
        assert len(left(run)) == 2
        user.kill()
    until(lambda: not runs.folder_of(run).exists())
    assert left(run) == []
    assert namespaces._is_dead(int(pid))


def test_events_happen_to_hosts_and_links_at_their_times() -> None:
    events = [
        NetworkEvent(0.3, "join", host="b-0"),
        NetworkEvent(0.2, "kill", host="a-0"),
        NetworkEvent(0.1, "degrade", link=("a", "b"), rate=1.0),
        NetworkEvent(0.4, "cut", regions=("a",)),
    ]
    seen: list[str] = []
    with Emulator(SMALL) as network:

        def start(host: str) -> "subprocess.Popen[bytes]":
            seen.append(f"start {host}")
            return network.run(host, ["sleep", "1000" if host == "a-0" else "0.5"])

        hosts = ["a-0", "b-0"]
        outcomes = Scenario(network, events, start, hosts, lambda text, at: seen.append(text)).play()
    assert seen == [
        "start a-0",
        "degrade a–b to 1 Mbit/s",
        "kill a-0",
        "join b-0",
        "start b-0",
        "cut a",
    ]
    assert [(o.host, o.code, o.killed) for o in outcomes] == [("a-0", -signal.SIGKILL, True), ("b-0", 0, False)]


def test_a_host_that_was_not_named_does_not_join() -> None:
    events = [NetworkEvent(0, "join", host="b-0"), NetworkEvent(0, "degrade", host="b-1", loss=0.1)]
    seen: list[str] = []
    with Emulator(SMALL) as network:

        def start(host: str) -> "subprocess.Popen[bytes]":
            return network.run(host, ["sleep", "0.1"])

        outcomes = Scenario(network, events, start, ["a-0"], lambda text, at: seen.append(text)).play()
    assert [outcome.host for outcome in outcomes] == ["a-0"]
    assert seen == ["degrade b-1 to 0.1 lost"]


def test_commands_end_with_their_network_and_not_later() -> None:
    with Emulator(TINY) as network:

        def start(host: str) -> "subprocess.Popen[bytes]":
            process = network.run(host, ["sleep", "1000"])
            if host == "b-0":
                os.kill(network.state.router, signal.SIGKILL)
            return process

        scenario = Scenario(network, [], start)
        with pytest.raises(P2PSyncError, match="has died: bring it up again"):
            scenario.play()
        assert [outcome.killed for outcome in scenario.outcomes] == [True, True]
    assert left(network.state.run) == []


def test_a_command_that_cannot_start_kills_nothing_that_was_there() -> None:
    with Emulator(TINY) as network:
        there = network.run("a-0", ["sleep", "1000"])
        with pytest.raises(FileNotFoundError):
            Scenario(network, [], lambda host: network.run(host, ["/nonexistent"])).play()
        assert there.poll() is None


def test_a_run_that_is_terminated_leaves_no_command_in_the_network(
    tmp_path: Path, wan: Callable[..., tuple[int, str, str]]
) -> None:
    file = tmp_path / "net.toml"
    file.write_text(FILE)
    assert wan("up", str(file))[0] == 0
    state = runs.find(file)
    assert state is not None
    names = left(state.run)
    # Only the last host's command ends its run, so that the others' are there by then.
    ending = f"if [ $WAN_HOST = b-0 ]; then kill {os.getpid()}; fi; exec sleep 1000"
    assert wan("run", str(file), "--", "sh", "-c", ending)[0] == 128 + signal.SIGTERM
    alive = [pid for pid in namespaces.processes(names) if not namespaces._is_dead(pid)]
    assert wan("down", str(file))[0] == 0
    assert alive == []


def test_the_command_line_brings_a_network_up_uses_changes_and_removes_it(
    tmp_path: Path, wan: Callable[..., tuple[int, str, str]]
) -> None:
    file = tmp_path / "net.toml"
    file.write_text(FILE)
    status, out, _ = wan("up", str(file))
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["a-0", "a-1", "b-0"]
    state = runs.find(file)
    assert state is not None
    assert wan("up", str(file)) == (1, "", f"p2psync: {file} is up already: p2psync wan down {file}\n")
    only = ("--host", "a-0", "--host", "b-0")
    status, out, _ = wan("run", str(file), *only, "--", "sh", "-c", "echo at $WAN_ADDRESS; exit 4")
    assert (status, sorted(out.splitlines())) == (4, ["a-0: at 10.77.0.1", "b-0: at 10.77.0.3"])
    assert wan("run", str(file), "--seconds", "0.1", "--", "sleep", "1000")[0] == 0
    assert wan("set", str(file), "a", "b", "--rate", "1", "--cut") == (0, "", "")
    assert wan("set", str(file))[1].splitlines()[0].split()[0] == "link"
    assert wan("set", str(file), "a", "--rate", "1") == (2, "", "p2psync: say which link: two regions, or a host\n")
    assert wan("set", str(file), "a", "z", "--cut")[2].startswith("p2psync: there is no link between a and z")
    assert wan("down", str(file)) == (0, "", "")
    assert left(state.run) == []
    assert wan("set", str(file), "--restore") == (1, "", f"p2psync: {file} is not up: p2psync wan up {file}\n")


def test_an_unknown_congestion_control_is_refused_and_leaves_nothing() -> None:
    before = namespaces.existing("p2w-")
    with pytest.raises(P2PSyncError, match="'nosuch' cannot be used here"):
        Emulator(TINY, congestion="nosuch").__enter__()
    assert namespaces.existing("p2w-") == before


def test_without_root_or_ip_the_command_fails_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert namespaces.missing() == "emulating a network needs `ip`: install iproute2"
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        os.write(sender, (namespaces.missing() or "").encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receiver, 1000).decode() == (
        "emulating a network makes namespaces and TUN devices, and needs root: run it with sudo"
    )
    os.close(receiver)
    os.close(sender)
