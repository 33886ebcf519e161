"""Listening sockets for the swarm and the hub, and the addresses of this machine that others can use."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import socket
import struct
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from p2psync.errors import P2PSyncError
from p2psync.net.addresses import ALL_IPV4, UNKNOWN_HOST, address_of, host_and_port, is_announceable, url_of
from p2psync.setting_names import named

#: Connections that may wait to be accepted.
BACKLOG = 1024
#: Attempts to find a port that is free at all addresses of a host: another process may take it between two binds.
_PORT_TRIES = 16
#: Errors for an address that this machine does not have, or a family that it does not support.
_MISSING = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
#: Documentation addresses (RFC 5737, RFC 3849), which nobody has: the kernel names the own address that it would use
#: towards them. Nothing is sent.
_ELSEWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
#: Linux ioctl: the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915


async def open_listeners(host: str, port: int, setting: str = "port") -> list[socket.socket]:
    """Opens listening sockets for a host, all at one port (0: any free one).

    host: "" for every address of both families: one socket serves both where the machine has IPv6. A name is listened
    to at each of its addresses that this machine has. Raises `P2PSyncError`, which names the setting of the port, a
    parameter.
    """
    try:
        if not host:
            return [_listen_everywhere(port)]
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list(dict.fromkeys((family, tuple(address)) for family, _, _, _, address in found))
        return _listen_together(addresses)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error, named(setting)) from None


def _listen_everywhere(port: int) -> socket.socket:
    """Opens one socket for both families; for IPv4 alone where the machine has no IPv6."""
    try:
        return _listen(socket.AF_INET6, ("::", port), dual=True)
    except OSError as error:
        if error.errno not in _MISSING:
            raise
    return _listen(socket.AF_INET, ("0.0.0.0", port))


def _listen_together(addresses: Sequence[tuple[socket.AddressFamily, tuple[object, ...]]]) -> list[socket.socket]:
    """Opens a socket at each address that this machine has, all at the port that the first of them gets."""
    for attempt in range(_PORT_TRIES):
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        try:
            for family, address in addresses:
                port = sockets[0].getsockname()[1] if sockets else address[1]
                try:
                    sockets.append(_listen(family, (address[0], port, *address[2:])))
                except OSError as error:
                    if error.errno not in _MISSING:
                        raise
                    missing = error
        except OSError as error:
            any_port = addresses[0][1][1] == 0 and bool(sockets)
            for sock in sockets:
                sock.close()
            if error.errno == errno.EADDRINUSE and any_port and attempt + 1 < _PORT_TRIES:
                continue
            raise
        if sockets:
            return sockets
        raise missing or OSError(errno.EADDRNOTAVAIL, "the name has no address")
    raise AssertionError("unreachable")


def _listen(family: socket.AddressFamily, address: tuple[object, ...], *, dual: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError, setting: str) -> P2PSyncError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        where = f"port {port} on {host or 'every address'}"
        return P2PSyncError(f"{where} is in use; stop what listens there, or choose another port with {setting}")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    remedy = f"choose another port with {setting}, or another address"
    if not isinstance(error, OSError) or isinstance(error, socket.gaierror) or error.errno in _MISSING:
        remedy = f"give an address of this machine with {named('host')}"
    return P2PSyncError(f"cannot listen on {host_and_port(host or '*', port)}: {reason}; {remedy}")


def own_addresses() -> list[str]:
    """Returns the addresses at which others may reach this machine, IPv4 first: that of each family's default route,
    or, without such a route, the first one of an interface. Nothing is sent."""
    found = []
    for elsewhere, family in _ELSEWHERE:
        candidates = [_towards(elsewhere, family), *_of_interfaces(family)]
        host = next((host for host in candidates if host and is_announceable(host)), None)
        if host is not None:
            found.append(host)
    return found


def reachable_host(host: str, advertised: tuple[str, ...] = ()) -> str:
    """Returns the host at which others reach a server that listens on `host`; "" if this machine does not know it.

    advertised: the user's own addresses, which take precedence.
    """
    if advertised:
        return advertised[0]
    if host and host not in ALL_IPV4:
        return host
    own = own_addresses()
    usable = [one for one in own if not host or ":" not in one]
    return usable[0] if usable else ""


def printed_hub_url(host: str, advertised: tuple[str, ...], port: int) -> str:
    """Returns the hub's URL for people: one that other machines can use, or one with a placeholder."""
    return url_of(reachable_host(host, advertised) or UNKNOWN_HOST, port)


def announced_hosts(host: str, advertised: tuple[str, ...], otherwise: str = "") -> tuple[str, tuple[str, ...]]:
    """Returns the hosts that a node announces: (`NodeInfo.host`, `NodeInfo.further`).

    host: where the node listens. advertised: the user's own addresses. otherwise: the host if the user gives none; ""
    makes the hub fill in the address that it sees, and keep those of this machine's addresses that peers can use in
    addition.
    """
    if advertised:
        return advertised[0], advertised[1:]
    return otherwise, () if host or otherwise else tuple(own_addresses())


def local_host(host: str) -> str:
    """Returns the host at which this machine itself reaches a server that listens on `host`."""
    if host and host not in ALL_IPV4:
        return host
    return "127.0.0.1" if host or _has("127.0.0.1", socket.AF_INET) else "::1"


def _has(host: str, family: socket.AddressFamily) -> bool:
    """Returns whether this machine has an address."""
    with suppress(OSError), closing(socket.socket(family, socket.SOCK_STREAM)) as trial:
        trial.bind((host, 0))
        return True
    return False


def _towards(elsewhere: str, family: socket.AddressFamily) -> str:
    """Returns the own address that the kernel uses towards another one; "" without a route. Connecting UDP sends
    nothing."""
    with suppress(OSError), closing(socket.socket(family, socket.SOCK_DGRAM)) as trial:
        trial.connect((elsewhere, 9))
        return str(trial.getsockname()[0])
    return ""


def _of_interfaces(family: socket.AddressFamily) -> list[str]:
    """Returns the addresses of this machine's interfaces, in the kernel's order; none where it does not list them."""
    if family == socket.AF_INET6:
        return _of_interfaces_v6()
    found = []
    with suppress(OSError), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as control:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(control.fileno(), _SIOCGIFADDR, struct.pack("16s24x", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _of_interfaces_v6() -> list[str]:
    """See `_of_interfaces`; each line of the kernel's table begins with an address as 32 hex digits."""
    with suppress(OSError):
        lines = Path("/proc/thread-self/net/if_inet6").read_text().splitlines()
        return [str(address_of(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[:32])))) for line in lines]
    return []
