"""Socket options and counters of a TCP connection, as the Linux kernel offers them; other systems offer none.

A node chooses congestion control for each connection, not for the machine: BBR keeps its rate where packets are lost
now and then, and needs no privilege once the module is loaded.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from p2psync.errors import UsageError
from p2psync.setting_names import named
from p2psync.swarm.control.config import MIN_NOTSENT_BYTES, NEAR_RTT_SECONDS

#: Choices of `--congestion` that are no algorithm's name.
AUTO_CONGESTION = "auto"
#: The names that AUTO_CONGESTION tries, in order.
PREFERRED = ("bbr", "cubic")
#: The congestion control that AUTO_CONGESTION takes towards near peers: see `NEAR_RTT_SECONDS`.
NEAR_CONGESTION = "cubic"

_TCP_INFO = getattr(socket, "TCP_INFO", None)
_TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", None)
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
#: Offsets in the kernel's struct tcp_info, which only ever grows at its end; 216 bytes since 4.19.
_INFO_BYTES = 216
_MSS_SACKED = struct.Struct("<I8xI")
_ACKED_RECEIVED = struct.Struct("<QQ")
_U32 = struct.Struct("<I")
_WINDOW_LIMITED = struct.Struct("<Q")
_SO_MEMINFO = 55
_MEMORY = struct.Struct("<I32x")
#: Payload's share of the memory that packets take in the kernel, about.
_QUEUED_SHARE = 0.8
_SENT_RESENT = struct.Struct("<QQ")
_RTT_WINDOW = struct.Struct("<I8xI")
_CA_STATE, _CA_RECOVERY, _AWAY_FACTOR, _STOPPED_WINDOW = 1, 3, 4, 4
_FLIGHT = struct.Struct("<4I")
#: Linux: the bytes that a socket sends a second at most, in 32 bits; all ones is no limit. The least limit that is set:
#: a packet keeps the departure time that the limit gave it, whatever limit follows.
_SO_MAX_PACING_RATE = 47
_LEAST_LIMIT, _NO_LIMIT = 64 << 10, 0xFFFFFFFF
#: Linux: bytes that were given to the kernel and not sent yet.
_SIOCOUTQNSD = 0x894B


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """A connection's counters: bytes, and seconds. delivered: acknowledged bytes, selectively or in order.

    received: bytes that came, those behind holes estimated. resent: retransmitted bytes. waits: unsent or lost bytes
    awaiting (re)transmission. rtt: the least of the last minutes, 0: none yet. delay: by how much round trips exceed it
    now. receiver_limited: time in which the peer's receive window was full.
    """

    delivered: int
    received: int
    sent: int
    resent: int
    waits: int
    rtt: float
    receiver_limited: float
    delay: float = 0.0


def tcp_info(sock: Any) -> TcpInfo | None:
    """Returns the counters of a connected socket; None where the kernel offers none."""
    if _TCP_INFO is None:
        return None
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    except (OSError, ValueError):
        return None
    return parse_info(data, _queued(sock))


def _queued(sock: Any) -> int:
    """Returns about how many received bytes stand behind a hole in the sequence."""
    try:
        memory = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMORY.size)
        unread = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))[0]
    except (OSError, ValueError):
        return 0
    return max(0, int(_QUEUED_SHARE * _MEMORY.unpack(memory)[0]) - int(unread)) if len(memory) == _MEMORY.size else 0


def parse_info(data: bytes, queued: int = 0) -> TcpInfo | None:
    """Parses the kernel's struct tcp_info; None if it is an older, shorter one. queued: received bytes behind holes."""
    if len(data) < _INFO_BYTES:
        return None
    mss, sacked = _MSS_SACKED.unpack_from(data, 16)
    acked, received = _ACKED_RECEIVED.unpack_from(data, 120)
    (rtt,) = _U32.unpack_from(data, 148)
    (window,) = _WINDOW_LIMITED.unpack_from(data, 176)
    sent, resent = _SENT_RESENT.unpack_from(data, 200)
    # Before the first round trip the kernel says all ones.
    seconds = rtt / 1e6 if rtt != 0xFFFFFFFF else 0.0
    delay = max(0.0, _RTT_WINDOW.unpack_from(data, 68)[0] / 1e6 - seconds) if seconds else 0.0
    return TcpInfo(
        acked + sacked * mss, received + queued, sent, resent, _waits(data, mss), seconds, window / 1e6, delay
    )


def _waits(data: bytes, mss: int) -> int:
    """Returns the unsent and the lost bytes that await (re)transmission.

    After a cut of the link, seconds pass in which the connection retransmits lost bytes only.
    """
    _, _, lost, resent = _FLIGHT.unpack_from(data, 24)
    return int(_U32.unpack_from(data, 144)[0] + max(0, lost - resent) * mss)


def unsent(sock: Any) -> int:
    """Returns the bytes in the kernel that the connection has not sent yet; 0 where the kernel does not tell."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), _SIOCOUTQNSD, bytes(4)))[0])
    except (OSError, ValueError):
        return 0


def queue_and_window_rate(sock: Any) -> tuple[int, float]:
    """Returns the bytes in the kernel that await (re)transmission, and the bytes a second that the congestion window
    allows; 0 where the kernel does not tell, or knows no round trip yet.
    """
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES) if _TCP_INFO is not None else b""
    except (OSError, ValueError):
        return 0, 0.0
    if len(data) < _INFO_BYTES:
        return 0, 0.0
    mss = _MSS_SACKED.unpack_from(data, 16)[0]
    rtt, window = _RTT_WINDOW.unpack_from(data, 68)
    return _waits(data, mss), window * mss * 1e6 / rtt if rtt else 0.0


@dataclass(frozen=True, slots=True)
class Congestion:
    """Names of congestion controls; "": the kernel's default. near: towards peers within `NEAR_RTT_SECONDS`."""

    far: str = ""
    near: str = ""


#: The kernel's default everywhere.
KERNELS = Congestion()


def choose_congestion(choice: str) -> Congestion:
    """Returns the algorithms for a choice: a name, `AUTO_CONGESTION`, or "" for the kernel's default.

    Raises `UsageError` for a name that this machine does not offer to this user.
    """
    if choice == AUTO_CONGESTION:
        far = next((name for name in PREFERRED if offers(name)), "")
        return Congestion(far, NEAR_CONGESTION if offers(NEAR_CONGESTION) else far)
    if choice and not offers(choice):
        raise UsageError(
            f"{named('congestion')} {choice} is not offered here: {AUTO_CONGESTION}, or one that `p2psync doctor` lists"
        )
    return Congestion(choice, choice)


def offers(name: str) -> bool:
    """Returns whether this user may have this congestion control."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        return set_congestion(trial, name)


def set_congestion(sock: Any, name: str) -> bool:
    """Sets a socket's congestion control; connections that a listening socket accepts begin with it. Returns whether
    the kernel took it.
    """
    if _TCP_CONGESTION is None or not name:
        return False
    try:
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, name.encode())
    except OSError:
        return False
    return True


def congestion_of(sock: Any) -> str:
    """Returns the congestion control that a socket uses; "" where it is not known."""
    if _TCP_CONGESTION is None:
        return ""
    with suppress(OSError):
        name: bytes = sock.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, 16)
        return name.split(b"\0")[0].decode()
    return ""


def tune(sock: Any, congestion: Congestion) -> None:
    """Sets the options of a connection for messages and chunks side by side. The kernel tunes its buffers."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The handshake has timed one round trip. A socket that leaves BBR keeps BBR's pacing, so BBR never comes first.
    info = tcp_info(sock)
    name = congestion.near if info is not None and 0 < info.rtt <= NEAR_RTT_SECONDS else congestion.far
    if name and congestion_of(sock) != name:
        set_congestion(sock, name)
    set_notsent_lowat(sock, MIN_NOTSENT_BYTES)


def is_away_from_window(data: bytes) -> bool:
    """Returns whether a connection has less than its window in flight for a moment, by the kernel's tcp_info.

    A congestion control that is set just then adopts the temporarily small window as its full one: on a path of 150 ms
    it needs a second to regain its rate. BBR stops for 0.2 s, with a window of four packets, to measure a round trip. A
    connection in recovery may have less than a quarter of its window in flight; BBR at its rate has half of it.
    """
    if len(data) < _INFO_BYTES:
        return False
    (window,) = _U32.unpack_from(data, 80)
    if window <= _STOPPED_WINDOW:
        return True
    if data[_CA_STATE] < _CA_RECOVERY:
        return False
    unacked, sacked, lost, resent = _FLIGHT.unpack_from(data, 24)
    return bool(_AWAY_FACTOR * (unacked - sacked - lost + resent) < window)


def can_restart(sock: Any) -> bool:
    """Returns whether `restart` costs no window just now: see `is_away_from_window`."""
    if _TCP_INFO is None:
        return True
    try:
        return not is_away_from_window(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES))
    except (OSError, ValueError):
        return True


def restart(sock: Any) -> bool:
    """Makes BBR forget its model of a path and start as on a new connection. Returns False without BBR."""
    # BBR starts over when it replaces another one; every kernel has reno, which keeps the window.
    if congestion_of(sock) != PREFERRED[0] or not set_congestion(sock, "reno"):
        return False
    return set_congestion(sock, PREFERRED[0])


def dup(sock: Any) -> socket.socket | None:
    """Returns a duplicate of a transport's socket for the same connection, which the caller closes; None if the process
    has no file descriptor left.

    A transport creates a socket object for each call, which takes longer than the call.
    """
    try:
        return socket.socket(sock.family, sock.type, sock.proto, os.dup(sock.fileno()))
    except OSError:
        return None


def disable_idle_restart(sock: Any | None) -> None:
    """Switches a far connection to BBR, which keeps its window when idle.

    Cubic resets an idle connection's window to the initial one, or keeps a smaller one that losses left: 30 KB
    then take four round trips.
    """
    info = tcp_info(sock) if sock is not None else None
    if info is not None and info.rtt > NEAR_RTT_SECONDS and congestion_of(sock) not in ("", PREFERRED[0]):
        set_congestion(sock, PREFERRED[0])


def set_notsent_lowat(sock: Any, nbytes: int) -> None:
    """Sets how many unsent bytes the kernel holds before the socket counts as full (TCP_NOTSENT_LOWAT)."""
    if _TCP_NOTSENT_LOWAT is not None:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, nbytes)


def set_rcvlowat(sock: Any, nbytes: int) -> None:
    """Sets how many bytes must have come before the socket is readable (SO_RCVLOWAT); fewer are readable at the end
    of the stream."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


def set_max_pacing_rate(sock: Any, rate: float) -> None:
    """Makes a socket send at most `rate` bytes a second; 0: no limit. Does nothing where the kernel cannot."""
    if _TCP_INFO is not None:
        with suppress(OSError):
            limit = min(_NO_LIMIT, max(_LEAST_LIMIT, int(rate))) if rate else _NO_LIMIT
            sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("I", limit))


def max_pacing_rate(sock: Any) -> int:
    """Returns the limit that `set_max_pacing_rate` has set, in bytes a second; 0: no limit, or it is not known."""
    if _TCP_INFO is None:
        return 0
    try:
        limit: int = sock.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE)
    except OSError:
        return 0
    return limit if 0 < limit < _NO_LIMIT else 0
