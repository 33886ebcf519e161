"""`p2psync doctor --join URL`: the hub, its token, and the swarm's ports both ways."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from p2psync.cli import doctor_join
from p2psync.cli.doctor_join import judged
from p2psync.cli.finding import Finding
from p2psync.errors import FormatError, HubError
from p2psync.membership.hub import HubConfig
from p2psync.membership.records import Join, NodeInfo
from p2psync.net.dial_back import MAX_AT_ONCE, DialBack, DialedBack, Dialer
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient

TOKEN = "open-sesame"
NONCE = "n" * 32


@pytest.fixture
async def hub() -> AsyncIterator[HubService]:
    service = HubService(HubConfig(trusted=frozenset({bytes(32)})), token=TOKEN)
    await service.start("127.0.0.1", 0)
    yield service
    await service.stop()


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


async def examined(hub: HubService, token: str | None, port: int) -> dict[str, Finding]:
    found = await doctor_join.findings(f"http://127.0.0.1:{hub.port}", token, port)
    return {finding.name: finding for finding in found}


async def join(hub: HubService, name: str, port: int) -> None:
    async with HubClient(f"http://127.0.0.1:{hub.port}", TOKEN) as client:
        info = NodeInfo(node=name[0] * 32, role="actor", host="127.0.0.1", port=port, name=name)
        await client.post("/v1/join", Join(info=info), dict[str, object])


async def test_a_hub_that_dials_back_and_nodes_that_listen_are_fine(hub: HubService) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    await join(hub, "alpha", server.sockets[0].getsockname()[1])
    found = await examined(hub, TOKEN, free_port())
    server.close()
    assert [finding.state for finding in found.values()] == ["ok"] * 3
    assert found["peers' ports"].detail == "1 of 1 nodes can be dialled from here"
    assert "the hub reaches port" in found["dial back"].detail and "loopback" in found["dial back"].detail


async def test_nodes_that_cannot_be_dialled_are_named(hub: HubService) -> None:
    for name in ("alpha", "beta", "cecilia", "delta"):
        await join(hub, name, free_port())
    found = (await examined(hub, TOKEN, free_port()))["peers' ports"]
    assert found.state == "could be better"
    assert found.detail.startswith("0 of 4 nodes can be dialled from here; not alpha (127.0.0.1:")
    assert found.detail.endswith("and 1 more")


async def test_a_wrong_token_is_distinguished_from_a_missing_hub(hub: HubService) -> None:
    found = await examined(hub, "wrong", free_port())
    assert found["hub"].state == "ok"
    assert found["join token"].state == "missing" and found["join token"].needed
    away = await doctor_join.findings(f"http://127.0.0.1:{free_port()}", None, 7071)
    assert [(finding.name, finding.state, finding.needed) for finding in away] == [("hub", "missing", True)]


async def test_the_hub_reports_the_answer_at_the_dialled_port() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 32)
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    dialer = Dialer()
    assert (await dialer.dial("127.0.0.1", DialBack(port=port, nonce=NONCE))).outcome == "other"
    server.close()
    assert (await dialer.dial("127.0.0.1", DialBack(port=free_port(), nonce=NONCE))).outcome == "refused"


async def test_impossible_dial_backs_and_too_many_at_once_are_refused() -> None:
    dialer = Dialer()
    for port, nonce in ((0, NONCE), (1 << 16, NONCE), (7071, "short")):
        with pytest.raises(FormatError):
            await dialer.dial("127.0.0.1", DialBack(port=port, nonce=nonce))
    dialer._dialling = MAX_AT_ONCE
    with pytest.raises(HubError, match="ask again"):
        await dialer.dial("127.0.0.1", DialBack(port=7071, nonce=NONCE))


@pytest.mark.parametrize(
    ("outcome", "taken", "state"),
    [
        ("reached", "", "ok"),
        ("other", "Address already in use", "ok"),
        ("other", "", "could be better"),
        ("refused", "", "could be better"),
        ("silent", "", "could be better"),
    ],
)
def test_only_a_port_that_is_reached_is_ok(outcome: str, taken: str, state: str) -> None:
    finding = judged(DialedBack(host="192.0.2.7", outcome=outcome), 7071, taken)  # type: ignore[arg-type]
    assert finding.state == state
    assert bool(finding.mend) == (state != "ok") and "--no-listen" in (finding.mend or "--no-listen")
