"""Bounds on what a node reports, checked before the hub keeps any of it. Every refusal is one line."""

from __future__ import annotations

import re

from p2psync.errors import FormatError
from p2psync.membership.records import HUB_HOST, NodeInfo, NodeStatistics, RunClaim

#: Characters of a region's name and of a host (a name or an address in text form).
MAX_REGION = 64
MAX_HOST = 255
#: Further hosts of a node, which a peer tries in addition to the first.
MAX_FURTHER_HOSTS = 4
#: Characters of a trainer's note on its newest version, and of a node's waiting reason.
MAX_NOTE = 400
#: Versions and epochs stay below this, so that every language's integers hold them.
MAX_COUNT = 1 << 53
#: Paths in one node's statistics, Mbit/s of any rate, and seconds of any round trip.
MAX_PATHS = 256
MAX_MBITS = 1e6
#: Nodes that publish together with a trainer.
MAX_CO_PUBLISHERS = 1024
MAX_RTT_SECONDS = 3600.0

_HOST = re.compile(rf"[A-Za-z0-9._:%-]{{0,{MAX_HOST}}}\Z")


def is_hex(text: str, digits: int) -> bool:
    """Returns whether `text` is exactly `digits` lower-case hex digits."""
    return len(text) == digits and all(c in "0123456789abcdef" for c in text)


def check_info(info: NodeInfo) -> None:
    """Raise `FormatError` unless every field of a node's description is within its bounds."""
    _check_hex("node id", info.node, 32)
    if len(info.region) > MAX_REGION or not info.region.isprintable():
        raise FormatError(f"a region is at most {MAX_REGION} printable characters; choose a shorter name")
    if len(info.name) > MAX_HOST or not info.name.isprintable():
        raise FormatError(f"a node's name is at most {MAX_HOST} printable characters; choose a shorter one")
    if any(host != HUB_HOST and not _HOST.match(host) for host in info.hosts):
        raise FormatError(f"a host is a name or an address of at most {MAX_HOST} characters")
    if len(info.further) > MAX_FURTHER_HOSTS:
        raise FormatError(f"a node has at most {MAX_FURTHER_HOSTS} further hosts")
    if not 0 <= info.port <= 65535:
        raise FormatError(f"port {info.port} is not between 0 and 65535")


def check_running(version: int | None, digest: str, run: str = "", epoch: int = 0) -> None:
    """Raise `FormatError` unless these can be the live version, its digest, run ("": not reported) and epoch."""
    if run:
        _check_hex("run", run, 32)
    if not 0 <= epoch < MAX_COUNT:
        raise FormatError(f"epoch {epoch} is not between 0 and 2^53")
    if version is not None and not 0 <= version < MAX_COUNT:
        raise FormatError(f"version {version} is not between 0 and 2^53")
    if digest:
        _check_hex("digest", digest, 32)


def check_rate(fetch_rate: int) -> None:
    """Raise `FormatError` unless this can be a rate in bytes a second."""
    if not 0 <= fetch_rate < MAX_COUNT:
        raise FormatError(f"a rate of {fetch_rate} bytes/s is not between 0 and 2^53")


def check_co_publishers(nodes: list[str]) -> None:
    """Raise `FormatError` unless these can be the ids of nodes that publish together with a trainer."""
    if len(nodes) > MAX_CO_PUBLISHERS:
        raise FormatError(f"at most {MAX_CO_PUBLISHERS} nodes publish together with a trainer")
    for node in nodes:
        _check_hex("node id", node, 32)


def check_statistics(statistics: NodeStatistics) -> None:
    """Raise `FormatError` unless every figure is within its bounds and every path leads to another node."""
    paths = statistics.paths
    if len(paths) > MAX_PATHS or len({path.peer for path in paths}) < len(paths):
        raise FormatError(f"statistics hold at most {MAX_PATHS} paths, each to another node")
    for path in paths:
        _check_hex("node id", path.peer, 32)
    rates = [statistics.up, statistics.down, *(rate for path in paths for rate in (path.sent, path.received))]
    # Not-a-number fails every comparison.
    fine = all(0 <= rate <= MAX_MBITS for rate in rates)
    if not (fine and all(0 <= path.rtt <= MAX_RTT_SECONDS and 0 <= path.loss <= 1 for path in paths)):
        raise FormatError(
            f"a figure of the statistics is out of bounds: rates are 0 to {MAX_MBITS:.0f} Mbit/s, round trips up to"
            f" {MAX_RTT_SECONDS:.0f} s, losses 0 to 1"
        )


def printable_line(text: str) -> str:
    """Returns the text as one printable line of at most `MAX_NOTE` characters, so that no lease is refused for its
    text."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_NOTE])


def check_note(note: str) -> None:
    """Raise `FormatError` unless this is one printable line of at most `MAX_NOTE` characters."""
    if len(note) > MAX_NOTE or not note.isprintable():
        raise FormatError(f"a note is at most {MAX_NOTE} printable characters")


def check_claim(claim: RunClaim) -> None:
    """Raise `FormatError` unless every field of a claim is well-formed. Does not check the signature."""
    _check_hex("node id", claim.node, 32)
    _check_hex("run", claim.run, 32)
    _check_hex("public key", claim.key, 64)
    _check_hex("signature", claim.signature, 128)
    if not 0 <= claim.epoch < MAX_COUNT:
        raise FormatError(f"epoch {claim.epoch} is not between 0 and 2^53")


def _check_hex(what: str, text: str, digits: int) -> None:
    if not is_hex(text, digits):
        raise FormatError(f"a {what} is {digits} lower-case hex digits")
