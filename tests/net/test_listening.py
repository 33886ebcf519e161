"""Listening to one address, to a name's, to all of both families, and where a family is missing."""

from __future__ import annotations

import asyncio
import socket

import pytest
from private_network import LINK, NO_IPV4, NO_IPV6, OWN_V4, OWN_V6, inside, needs_root

from p2psync.errors import P2PSyncError
from p2psync.net.listening import local_host, open_listeners, own_addresses, printed_hub_url, reachable_host
from p2psync.setting_names import named_as_options


def listened(host: str, tried: list[str], commands: list[str]) -> list[str]:
    """Which of these hosts are connected to where `host` is listened to, all at the port that the first socket has."""

    def look() -> list[str]:
        sockets = asyncio.run(open_listeners(host, 0))
        ports = {sock.getsockname()[1] for sock in sockets}
        assert len(ports) == 1, "every address of a host is at one port"
        found = []
        for where in tried:
            try:
                socket.create_connection((where, min(ports)), 1).close()
                found.append(where)
            except OSError:
                continue
        for sock in sockets:
            sock.close()
        return found

    return inside(look, commands)


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(
    ("host", "commands", "reached"),
    [
        ("", [], ["127.0.0.1", "::1"]),
        ("", [NO_IPV4], ["::1"]),
        ("", [NO_IPV6], ["127.0.0.1"]),
        ("0.0.0.0", [], ["127.0.0.1"]),
        ("127.0.0.1", [], ["127.0.0.1"]),
        ("::1", [], ["::1"]),
        ("::1", [NO_IPV4], ["::1"]),
    ],
)
def test_a_host_is_listened_to_in_the_families_that_there_are(
    host: str, commands: list[str], reached: list[str]
) -> None:
    assert listened(host, ["127.0.0.1", "::1"], commands) == reached


@pytest.mark.root
@needs_root
def test_every_ipv4_address_is_listened_to_where_the_machine_speaks_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socket

    def without_ipv6(family: int = -1, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return made(family, *rest)

    monkeypatch.setattr("p2psync.net.listening.socket.socket", without_ipv6)
    sockets = asyncio.run(open_listeners("", 0))
    assert [sock.family for sock in sockets] == [socket.AF_INET]
    sockets[0].close()


@pytest.mark.parametrize(
    ("host", "remedy"),
    [("192.0.2.1", "address of this machine with host$"), ("no.such.invalid", "address of this machine with host$")],
)
async def test_an_address_of_another_machine_is_refused_with_the_remedy(host: str, remedy: str) -> None:
    with pytest.raises(P2PSyncError, match=remedy) as refused:
        await open_listeners(host, 0)
    assert f"cannot listen on {host}:0" in str(refused.value)


async def test_a_port_in_use_is_named_with_the_setting_as_the_caller_gave_it() -> None:
    (held,) = await open_listeners("127.0.0.1", 0)
    port = held.getsockname()[1]
    with pytest.raises(P2PSyncError, match=f"port {port} on every address is in use.* with hub_port$"):
        await open_listeners("", port, "hub_port")
    with named_as_options(), pytest.raises(P2PSyncError, match=f"port {port} on every .* with --hub-port$"):
        await open_listeners("", port, "hub_port")
    held.close()


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(
    ("commands", "own"),
    [
        ([], []),
        (LINK, [OWN_V4, OWN_V6]),  # no default route: the first address of an interface
        ([*LINK, f"route add default via {OWN_V4[:-1]}9"], [OWN_V4, OWN_V6]),
        ([*LINK, f"addr del {OWN_V4}/24 dev v0"], [OWN_V6]),
        ([*LINK, f"-6 addr del {OWN_V6}/64 dev v0"], [OWN_V4]),
    ],
)
def test_own_addresses_are_those_that_others_can_use(commands: list[str], own: list[str]) -> None:
    assert inside(own_addresses, commands) == own


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(
    ("host", "commands", "url"),
    [
        ("", LINK, f"http://{OWN_V4}:7070"),
        ("", [*LINK, f"addr del {OWN_V4}/24 dev v0"], f"http://[{OWN_V6}]:7070"),
        ("", [], "http://<address of this machine>:7070"),
        ("0.0.0.0", LINK, f"http://{OWN_V4}:7070"),
        ("0.0.0.0", [*LINK, f"addr del {OWN_V4}/24 dev v0"], "http://<address of this machine>:7070"),
        ("::1", LINK, "http://[::1]:7070"),
        ("trainer.example", LINK, "http://trainer.example:7070"),
    ],
)
def test_the_url_that_is_printed_is_one_for_others_or_says_that_it_is_none(
    host: str, commands: list[str], url: str
) -> None:
    assert inside(lambda: printed_hub_url(host, (), 7070), commands) == url


def test_what_the_user_advertises_is_printed() -> None:
    assert printed_hub_url("", ("hub.example", "192.0.2.7"), 7070) == "http://hub.example:7070"


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(("commands", "host"), [([], "127.0.0.1"), ([NO_IPV4], "::1"), ([NO_IPV6], "127.0.0.1")])
def test_this_machine_reaches_itself_by_a_family_that_it_has(commands: list[str], host: str) -> None:
    assert inside(lambda: local_host(""), commands) == host


def test_a_server_at_one_address_is_reached_there() -> None:
    assert (reachable_host("::1"), local_host("::1")) == ("::1", "::1")
