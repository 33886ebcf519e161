"""The checks of `p2psync doctor --join URL`: the hub, the token, and the swarm's ports in both directions."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from collections.abc import AsyncIterator

from p2psync.cli.finding import Finding
from p2psync.errors import HubError, P2PSyncError, TrustError
from p2psync.membership.records import HUB_HOST, NodeInfo, Status
from p2psync.net.dial_back import DIAL_SECONDS, DialBack, DialedBack, answering
from p2psync.net.hub_client import HubClient

#: Nodes that are dialled: a swarm of thousands is judged by some of them.
MAX_DIALLED = 32
#: How long each is tried (seconds).
_PEER_SECONDS = 4.0
_NAMED = 3


async def findings(url: str, token: str | None, port: int) -> list[Finding]:
    """Returns the findings about one hub and its swarm. port: where this machine would listen."""
    return [finding async for finding in _findings(url, token, port)]


async def _findings(url: str, token: str | None, port: int) -> AsyncIterator[Finding]:
    async with HubClient(url, token) as client:
        began = time.monotonic()
        try:
            status = await client.status()
        except TrustError as error:
            yield Finding("hub", "ok", f"{url} answers in {_ms(began)}")
            yield Finding("join token", "missing", str(error), "give --token TOKEN", needed=True)
            return
        except P2PSyncError as error:
            mend = "start it there, or open its port (TCP) in the firewalls between"
            yield Finding("hub", "missing", str(error), mend, needed=True)
            return
        run = f"run {status.view.run[:12]}" if status.view.run else "no trainer yet"
        yield Finding("hub", "ok", f"{url} answers in {_ms(began)}; {run}, nodes: {len(status.view.members)}")
        yield await peers(status, client.url.host or "")
        yield await dialled_back(client, port)


async def peers(status: Status, hub_host: str) -> Finding:
    """Checks whether the ports of the swarm's nodes can be reached from here."""
    infos = [member.info for member in status.view.members if member.info.port][:MAX_DIALLED]
    name = "peers' ports"
    if not infos:
        return Finding(name, "ok", "no node listens yet: nothing to dial")
    reached = await asyncio.gather(*(_reaches(info, hub_host) for info in infos))
    missed = [info for info, good in zip(infos, reached, strict=True) if not good]
    text = f"{len(infos) - len(missed)} of {len(infos)} nodes can be dialled from here"
    if not missed:
        return Finding(name, "ok", text)
    named = ", ".join(f"{info.name or info.node[:8]} ({info.location})" for info in missed[:_NAMED])
    more = f" and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
    mend = "let TCP out to these ports, and in at these nodes; or start these nodes with --no-listen"
    return Finding(name, "could be better", f"{text}; not {named}{more}", mend)


async def dialled_back(client: HubClient, port: int) -> Finding:
    """Checks whether the hub reaches a port of this machine."""
    name, nonce = "dial back", secrets.token_hex(16)
    taken = ""
    server: asyncio.Server | None = None
    try:
        server = await answering(port, nonce)
    except OSError as error:
        taken = error.strerror or str(error)
    try:
        answer = await client.post("/v1/dial-back", DialBack(port=port, nonce=nonce), DialedBack, wait=2 * DIAL_SECONDS)
    except HubError as error:
        return Finding(name, "could be better", f"the hub does not tell: {error}", "ask again, or update the hub")
    finally:
        if server is not None:
            server.close()
    return judged(answer, port, taken)


def judged(answer: DialedBack, port: int, taken: str = "") -> Finding:
    """Returns the finding of a dial-back. taken: why this process could not listen on the port; "" if it could."""
    name, place = "dial back", f"port {port} at {answer.host}"
    if answer.outcome == "reached" or (answer.outcome == "other" and taken):
        near = ", over this machine's loopback: it tells nothing of firewalls" if _is_loopback(answer.host) else ""
        return Finding(name, "ok", f"the hub reaches {place}{near}")
    mend = f"let TCP in at port {port} (firewall, port forwarding); or start with --no-listen, which only dials out"
    if answer.outcome == "other":
        return Finding(name, "could be better", f"something else answers at {place}: a NAT's own?", mend)
    if answer.outcome == "refused":
        return Finding(name, "could be better", f"{place} refuses the hub", mend)
    return Finding(name, "could be better", f"the hub gets no answer from {place}", mend)


async def _reaches(info: NodeInfo, hub_host: str) -> bool:
    for host in info.hosts:
        try:
            async with asyncio.timeout(_PEER_SECONDS):
                _, writer = await asyncio.open_connection(hub_host if host == HUB_HOST else host, info.port)
        except (OSError, TimeoutError):
            continue
        writer.close()
        return True
    return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _ms(began: float) -> str:
    return f"{1e3 * (time.monotonic() - began):.0f} ms"
