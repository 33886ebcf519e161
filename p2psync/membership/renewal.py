"""Parses renewals: the lease is renewed in any case, and each reported figure is accepted or dropped on its own.

Pure. A body that is damaged, late or too large still names its lease, because every client writes the lease first. Each
dropped part leaves a line for the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec

from p2psync.errors import FormatError
from p2psync.membership.checks import MAX_PATHS, check_rate, check_running, check_statistics, printable_line
from p2psync.membership.records import NodeStatistics, PathStatistics, Renew

#: Characters of the line that names dropped figures; equal lines are written once.
MAX_REFUSED = 400
#: The lease at the start of a JSON body: a string without escapes, of up to 128 characters, more than any hub grants.
_LEASE_FIRST = re.compile(rb'\s*\{\s*"lease"\s*:\s*"([ !#-\[\]-~]{1,128})"')
_DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

#: The live version (None: none yet), its digest, run and epoch.
Running: TypeAlias = tuple[int | None, str, str, int]
T = TypeVar("T")
_VERSION: msgspec.json.Decoder[int | None] = msgspec.json.Decoder(int | None)
_LIST: msgspec.json.Decoder[list[msgspec.Raw] | None] = msgspec.json.Decoder(list[msgspec.Raw] | None)
_TEXT, _WHOLE, _FIGURE = msgspec.json.Decoder(str), msgspec.json.Decoder(int), msgspec.json.Decoder(float)
_PATH = msgspec.json.Decoder(PathStatistics)


@dataclass(frozen=True, slots=True)
class ParsedRenewal:
    """The accepted parts of a renewal. None: not reported or dropped, so the last value stays.

    running: the live version with its digest, run and epoch. waits: see `MemberAge`. rejected: see `Member`. refused: a
    line for each dropped part.
    """

    lease: str
    running: Running | None = None
    waits: str = ""
    rejected: str = ""
    fetch_rate: int | None = None
    statistics: NodeStatistics | None = None
    refused: tuple[str, ...] = ()

    @property
    def refusal(self) -> str:
        """Returns one line that names the dropped figures, for the reply; "" if none was dropped."""
        return "; ".join(dict.fromkeys(self.refused))[:MAX_REFUSED]


class _Loose(msgspec.Struct):
    """A renewal whose fields, except the lease, are decoded one by one."""

    lease: str
    version: msgspec.Raw = msgspec.Raw(b"null")
    digest: msgspec.Raw = msgspec.Raw(b'""')
    run: msgspec.Raw = msgspec.Raw(b'""')
    epoch: msgspec.Raw = msgspec.Raw(b"0")
    waits: msgspec.Raw = msgspec.Raw(b'""')
    rejected: msgspec.Raw = msgspec.Raw(b'""')
    fetch_rate: msgspec.Raw = msgspec.Raw(b"0")
    statistics: msgspec.Raw = msgspec.Raw(b"null")


def check_renewal(renewal: Renew) -> ParsedRenewal:
    """Returns the parts of a decoded renewal that are within their bounds."""
    refused: list[str] = []
    running = _running((renewal.version, renewal.digest, renewal.run, renewal.epoch), refused)
    rate = _rate(renewal.fetch_rate, refused)
    statistics = renewal.statistics
    if statistics is not None and not _fits(statistics, []):
        statistics = _plausible_statistics(statistics.up, statistics.down, statistics.paths, refused)
    rejected = _digest(renewal.rejected, refused)
    return ParsedRenewal(
        renewal.lease, running, printable_line(renewal.waits), rejected, rate, statistics, tuple(refused)
    )


def parse_renewal(body: bytes, trouble: FormatError | None = None) -> ParsedRenewal:
    """Parses a renewal in JSON. trouble: if `body` is only the start of the request's body, the reason for it.

    Raises `trouble` or another `FormatError` only if the body does not name its lease.
    """
    if trouble is None:
        try:
            return check_renewal(msgspec.json.decode(body, type=Renew))
        except _DECODING_ERRORS:
            pass  # some field is malformed: decode field by field
        try:
            return _parse_fields(msgspec.json.decode(body, type=_Loose))
        except _DECODING_ERRORS as error:
            trouble = FormatError(f"the renewal is malformed: {error}")
    lease = _LEASE_FIRST.match(body)
    if lease is None:
        raise trouble
    return ParsedRenewal(lease[1].decode(), refused=(f"everything but the lease: {trouble}",))


def _parse_fields(loose: _Loose) -> ParsedRenewal:
    refused: list[str] = []
    version, digest = _decode_field(loose.version, _VERSION, refused), _decode_field(loose.digest, _TEXT, refused)
    run, epoch = _decode_field(loose.run, _TEXT, refused), _decode_field(loose.epoch, _WHOLE, refused)
    running = None
    if version is not None and digest is not None and run is not None and epoch is not None:
        running = _running((version[0], digest[0], run[0], epoch[0]), refused)
    waits = _decode_field(loose.waits, _TEXT, refused) or ("",)
    rate = _decode_field(loose.fetch_rate, _WHOLE, refused)
    fetch_rate = None if rate is None else _rate(rate[0], refused)
    rejected = _digest((_decode_field(loose.rejected, _TEXT, refused) or ("",))[0], refused)
    statistics = _parse_statistics(loose.statistics, refused)
    return ParsedRenewal(
        loose.lease, running, printable_line(waits[0]), rejected, fetch_rate, statistics, tuple(refused)
    )


def _parse_statistics(raw: msgspec.Raw, refused: list[str]) -> NodeStatistics | None:
    figures = _decode_field(raw, _LIST, refused)
    if figures is None or figures[0] is None:
        return None
    up, down, paths = (*figures[0], *map(msgspec.Raw, (b"0", b"0", b"[]")[len(figures[0]) :]))[:3]
    sums = [_decode_field(figure, _FIGURE, refused) or (0.0,) for figure in (up, down)]
    reported = _decode_field(paths, _LIST, refused)
    found = (_decode_field(path, _PATH, refused) for path in (reported and reported[0]) or [])
    return _plausible_statistics(sums[0][0], sums[1][0], (path[0] for path in found if path is not None), refused)


def _plausible_statistics(
    up: float, down: float, paths: Iterable[PathStatistics], refused: list[str]
) -> NodeStatistics | None:
    """The figures that can be ones, None without any; of paths the first `MAX_PATHS`, each to another node."""
    kept: dict[str, PathStatistics] = {}
    over = 0
    for path in paths:
        if path.peer in kept or len(kept) >= MAX_PATHS:
            over += 1
        elif _fits(NodeStatistics(paths=[path]), refused):
            kept[path.peer] = path
    if over:
        refused.append(f"{over} paths: at most {MAX_PATHS} are taken, each to another node")
    up = up if _fits(NodeStatistics(up=up), refused) else 0.0
    down = down if _fits(NodeStatistics(down=down), refused) else 0.0
    taken = NodeStatistics(up, down, list(kept.values()))
    return taken if taken != NodeStatistics() else None


def _fits(statistics: NodeStatistics, refused: list[str]) -> bool:
    try:
        check_statistics(statistics)
    except FormatError as error:
        refused.append(str(error))
        return False
    return True


def _running(reported: Running, refused: list[str]) -> Running | None:
    try:
        check_running(*reported)
    except FormatError as error:
        refused.append(str(error))
        return None
    return reported


def _digest(digest: str, refused: list[str]) -> str:
    try:
        check_running(None, digest)
    except FormatError as error:
        refused.append(str(error))
        return ""
    return digest


def _rate(rate: int, refused: list[str]) -> int | None:
    try:
        check_rate(rate)
    except FormatError as error:
        refused.append(str(error))
        return None
    return rate


def _decode_field(raw: msgspec.Raw, decoder: msgspec.json.Decoder[T], refused: list[str]) -> tuple[T] | None:
    """Decodes one field into a tuple of one; None, with a line in `refused`, if it is malformed."""
    try:
        return (decoder.decode(raw),)
    except _DECODING_ERRORS as error:
        refused.append(f"a field of the renewal is malformed: {error}")
        return None
