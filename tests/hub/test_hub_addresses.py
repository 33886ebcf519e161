"""The hub with IPv4 and IPv6: the addresses that it sees, and how its client finds it."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
import uvloop
from hub_parts import TRUSTED, node
from private_network import LINK, NO_IPV4, NO_IPV6, OWN_V4, OWN_V6, SILENCE, SILENT_V4, SILENT_V6, inside, needs_root

from p2psync.errors import HubError
from p2psync.membership.hub import HubConfig
from p2psync.membership.records import HUB_HOST, NodeInfo
from p2psync.net.addresses import url_of
from p2psync.net.dialling import ATTEMPT_DELAY_SECONDS
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient

pytestmark = [pytest.mark.root, needs_root]
LINK_LOCAL = "-6 addr add fe80::1/64 dev v0 nodad"


async def seen(host: str, info: NodeInfo) -> NodeInfo:
    """Returns the addresses that a hub on every address announces of a node that joins through this host."""
    service = HubService(HubConfig(trusted=TRUSTED))
    port = await service.start("", 0)
    async with HubClient(url_of(host, port)) as client:
        await client.join(info)
        members = (await client.view()).members
    await service.stop()
    return members[0].info


SEEN = [
    (OWN_V4, [], OWN_V4),  # not ::ffff:198.51.100.1
    (OWN_V6, [], OWN_V6),
    ("fe80::1%v0", [LINK_LOCAL], "fe80::1%v0"),
    ("127.0.0.1", [NO_IPV6], HUB_HOST),
    ("::1", [NO_IPV4], HUB_HOST),
]
#: uvloop looks interfaces up in threads of the process, which may be older than the private network.
LOOPS = [(run, *case) for run in (asyncio.run, uvloop.run) for case in SEEN if run is asyncio.run or "%" not in case[0]]


@pytest.mark.parametrize(("run", "host", "commands", "announced"), LOOPS)
def test_a_node_is_announced_where_the_hub_sees_it(run: Any, host: str, commands: list[str], announced: str) -> None:
    info = inside(lambda: run(seen(host, node(1, host=""))), [*LINK, *commands])
    assert info.host == announced


def test_a_node_of_both_families_is_announced_in_both() -> None:
    joins = node(1, host="", further=(OWN_V4, OWN_V6))
    assert inside(lambda: asyncio.run(seen(OWN_V6, joins)), LINK).hosts == (OWN_V6, OWN_V4)
    assert inside(lambda: asyncio.run(seen(OWN_V4, joins)), LINK).hosts == (OWN_V4, OWN_V6)


def test_advertised_addresses_are_announced_unchanged() -> None:
    joins = node(1, host="2001:db8::5", further=("node.example",))
    assert inside(lambda: asyncio.run(seen(OWN_V4, joins)), LINK).hosts == ("2001:db8::5", "node.example")


def named(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Makes `hub.test` resolve to these addresses, in this order."""
    real = socket.getaddrinfo

    def answer(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host != "hub.test":
            return real(host, port, *rest, **options)
        return [one for text in addresses for one in real(text, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.parametrize("silent", [SILENT_V4, SILENT_V6])
def test_a_hub_is_reached_past_an_unresponsive_address_of_its_name(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    named(monkeypatch, silent, "::1", "127.0.0.1")

    async def main() -> float:
        service = HubService(HubConfig(trusted=TRUSTED))
        port = await service.start("", 0)
        async with HubClient(url_of("hub.test", port)) as client:
            begun = time.monotonic()
            await client.view()
            took = time.monotonic() - begun
        await service.stop()
        return took

    assert ATTEMPT_DELAY_SECONDS * 0.9 <= inside(lambda: asyncio.run(main()), [*LINK, *SILENCE]) < 3


@pytest.mark.parametrize(
    ("host", "commands"), [("::1", [NO_IPV4]), ("127.0.0.1", [NO_IPV6]), ("::1", []), ("127.0.0.1", [])]
)
def test_a_name_is_resolved_where_the_loopback_is_all_there_is(
    monkeypatch: pytest.MonkeyPatch, host: str, commands: list[str]
) -> None:
    named(monkeypatch, host)
    assert inside(lambda: asyncio.run(seen("hub.test", node(1, host=""))), commands).host == HUB_HOST


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://[::1]:9", "the hub at http://[::1]:9 cannot be reached: Connection refused;"),
        ("http://127.0.0.1:9", "the hub at http://127.0.0.1:9 cannot be reached: Connection refused;"),
        ("https://127.0.0.1:9", "the hub at https://127.0.0.1:9 cannot be reached: Connection refused;"),
        ("http://no.such.invalid:9", "the hub at http://no.such.invalid:9 cannot be reached: "),
        ("http://192.0.2.1:9", "the hub at http://192.0.2.1:9 cannot be reached: Network is unreachable"),
    ],
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_hub_that_cannot_be_reached_is_named_with_its_port_and_the_cause(url: str, cause: str, run: Any) -> None:
    message = inside(lambda: run(failure(url)))
    assert message.startswith(cause)
    assert "ssl:" not in message and "[Errno" not in message


def test_a_name_whose_every_address_refuses_gives_one_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "127.0.0.1", "::1")
    message = inside(lambda: asyncio.run(failure("http://hub.test:9")))
    assert message == "the hub at http://hub.test:9 cannot be reached: Connection refused; is it running there?"


async def failure(url: str) -> str:
    """Returns the error of an unreachable hub."""
    async with HubClient(url) as client:
        with pytest.raises(HubError) as failed:
            await client.view()
    return str(failed.value)
