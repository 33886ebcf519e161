"""A hub's client at a port that is no hub's."""

from __future__ import annotations

import asyncio

import pytest

from p2psync.errors import HubError
from p2psync.net.hub_client import HubClient


async def test_the_port_of_the_swarm_is_named_and_none_of_its_bytes_is_shown() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\1\x95\xa7p2psync\x06\n\n" * 8)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with HubClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(HubError) as refused:
            await client.status()
    server.close()
    reported = str(refused.value)
    assert "answers, but not as a hub does: is that the port of the swarm?" in reported
    assert "\\x" not in reported and "\n" not in reported
