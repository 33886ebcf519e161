"""Parses and formats addresses: as people write them, as URLs hold them, and as nodes announce them. Pure.

A host is a name or an address in text form. IPv6 addresses are bracketed when a port follows, and bare elsewhere. An
IPv4 address mapped into IPv6 is written as IPv4. A zone (`fe80::1%eth0`) names an interface of one machine: a node may
listen on such an address and dial it, but cannot announce it.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterable, Sequence

from yarl import URL

from p2psync.errors import UsageError
from p2psync.membership.checks import MAX_FURTHER_HOSTS
from p2psync.setting_names import named

#: Hosts that stand for every address of the machine, of both families; and for every IPv4 address.
ALL_ADDRESSES = ("", "*", "::")
ALL_IPV4 = ("0.0.0.0",)
#: Placeholder in a printed URL whose host this machine does not know.
UNKNOWN_HOST = "<address of this machine>"

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?\Z")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address_of(host: str) -> _Address | None:
    """Returns the address that a host is in text form, mapped IPv4 as IPv4; None for a name."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def plain_host(text: str, setting: str) -> str:
    """Returns a host in its internal form: without brackets, IPv6 shortened, `%25` of a zone as `%`.

    Raises `UsageError`, naming the setting, if the text is neither a name nor an address.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in bare or "[" in text:
        bare = bare.replace("%25", "%", 1)
    found = address_of(bare)
    if found is not None:
        return str(found)
    if bare != text or not _NAME.match(bare):
        raise UsageError(
            f"{setting} {text!r}: give a host name or an address without a port, like 192.0.2.7 or 2001:db8::7"
        )
    return bare


def listen_host(text: str) -> str:
    """Returns the host to listen on, in the form of `plain_host`; "" means every address of both families. Raises
    `UsageError`."""
    host = text if text in ALL_ADDRESSES else plain_host(text, named("host"))
    return "" if host in ALL_ADDRESSES else host


def advertised_hosts(text: str) -> tuple[str, ...]:
    """Returns the hosts that a node announces to its peers, from a comma-separated list. Raises `UsageError`."""
    setting = named("advertise")
    hosts = tuple(plain_host(part.strip(), setting) for part in text.split(",")) if text else ()
    if len(hosts) > 1 + MAX_FURTHER_HOSTS:
        raise UsageError(f"{setting} names {len(hosts)} addresses: give at most {1 + MAX_FURTHER_HOSTS}")
    for host in hosts:
        found = address_of(host)
        if "%" in host:
            raise UsageError(f"{setting} {host}: a zone names an interface of this machine only; give another address")
        if found is not None and (found.is_unspecified or found.is_multicast):
            raise UsageError(f"{setting} {host} is no address that reaches this machine; give one that does")
    return hosts


def further_hosts(seen: str, own: Iterable[str]) -> tuple[str, ...]:
    """Returns those of a node's own addresses that peers should know besides the one that the hub sees.

    These are addresses of the other family, because behind a NAT the hub sees one family only. A private one is
    included only if the hub sees a private one too; elsewhere it would belong to another machine.
    """
    first = address_of(seen)
    if first is None:
        return ()
    found = [(host, address) for host in own if (address := address_of(host)) is not None]
    return tuple(
        host
        for host, address in found
        if address.version != first.version
        and is_announceable(host)
        and (address.is_global or (not first.is_global and not first.is_loopback))
    )[:MAX_FURTHER_HOSTS]


def is_announceable(host: str) -> bool:
    """Returns whether a host in text form means the same machine to others: not loopback, link-local or zoned."""
    found = address_of(host)
    if found is None:
        return True
    return not (found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast or "%" in host)


def is_loopback(host: str) -> bool:
    """Returns whether a host always reaches the machine that dials it."""
    found = address_of(host)
    return host == "localhost" if found is None else found.is_loopback


def host_and_port(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """Returns the URL of a server, with brackets around IPv6 and `%25` before its zone."""
    return f"{scheme}://{host_and_port(host.replace('%', '%25') if ':' in host else host, port)}"


def shell_words(words: Sequence[str]) -> str:
    """Returns a command line that can be pasted into a shell, quoted where needed."""
    return shlex.join(words)


def check_url(text: str) -> URL:
    """Parses a hub's address, `http://host:port` or `https://host:port`; its host is in the form of `plain_host`.

    Raises `UsageError` for anything else.
    """
    try:
        parsed = URL(text)
        good = parsed.scheme in ("http", "https") and parsed.host and parsed.explicit_port
        bare = parsed.path in ("", "/") and not (parsed.query_string or parsed.fragment or parsed.user)
        if good and bare:
            # A zone is written `%25` in a URL, and `%` for the resolver.
            return URL(f"{parsed.scheme}://{host_and_port(plain_host(_url_host(text), 'host'), parsed.port or 0)}")
    except (ValueError, UsageError):
        pass
    shown = " ".join("".join(c if c.isprintable() else " " for c in text[:200]).split())[:100]
    hint = ", an IPv6 address in brackets: http://[::1]:7070" if text.count(":") > 2 else ""
    raise UsageError(f"{shown!r} is not a hub's address; give one like http://host:port{hint}")


def _url_host(text: str) -> str:
    """Returns the host as written in the URL, brackets included: a parser may take `::g` for a name."""
    authority = text.split("://", 1)[1].split("/", 1)[0]
    return authority.rsplit(":", 1)[0]
