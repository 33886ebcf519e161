"""The checks that `p2psync doctor` makes of the network: TCP, ports, limits, and the needs of an emulated WAN."""

from __future__ import annotations

import resource
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from p2psync.cli.finding import Finding
from p2psync.cli.output import size
from p2psync.net import tcp

IPV4 = Path("/proc/sys/net/ipv4")
#: The hub's port and the swarm's.
PORTS = (7070, 7071)
#: Bytes that one stream has under way at 1 Gbit/s over 100 ms. The kernel counts its own overhead too: about as much
#: again.
_PATH_BYTES = 12_500_000
_WANTED_BYTES = 2 * _PATH_BYTES
_WANTED_FILES = 4096
_SECONDS = 10


def findings() -> Iterator[Finding]:
    """Returns the findings about the network."""
    yield congestion(IPV4)
    yield buffers(IPV4, "tcp_rmem", "received")
    yield buffers(IPV4, "tcp_wmem", "sent")
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE))
    for port, whose in zip(PORTS, ("hub", "swarm"), strict=True):
        yield free_port(port, whose)
    yield namespaces()
    yield netem()


def congestion(ipv4: Path, usable: Callable[[str], bool] = tcp.offers) -> Finding:
    """BBR, which keeps its rate where packets are lost now and then. usable: what this user may have."""
    try:
        current = (ipv4 / "tcp_congestion_control").read_text().strip()
        available = (ipv4 / "tcp_available_congestion_control").read_text().split()
    except OSError:
        return Finding("congestion", "could be better", "what the kernel uses is not known", "mount /proc")
    text = f"{current} in use; {', '.join(available)} to be had"
    if "bbr" in available and usable("bbr"):
        return Finding("congestion", "ok", f"{text}; connections to peers use bbr unless told otherwise")
    if "bbr" in available:
        mend = "add bbr to net.ipv4.tcp_allowed_congestion_control: it keeps its rate where packets are lost"
        return Finding("congestion", "could be better", text, mend)
    return Finding("congestion", "could be better", text, "modprobe tcp_bbr, as root")


def buffers(ipv4: Path, name: str, way: str) -> Finding:
    """Checks whether one stream fills 1 Gbit/s over 100 ms."""
    label = f"{name} maximum"
    try:
        low, usual, most = (int(word) for word in (ipv4 / name).read_text().split())
    except (OSError, ValueError):
        return Finding(label, "could be better", "not known", "mount /proc")
    rate = min(1e3, most / _WANTED_BYTES * 1e3)
    text = f"{size(most)}: one stream over 100 ms is {way} at up to {rate:.0f} Mbit/s"
    if most >= _WANTED_BYTES:
        return Finding(label, "ok", text)
    return Finding(label, "could be better", text, f"sysctl -w net.ipv4.{name}='{low} {usual} {max(usual, 32 << 20)}'")


def open_files(limits: tuple[int, int]) -> Finding:
    """Sockets and files that one process may hold open."""
    soft, hard = limits
    endless = soft == resource.RLIM_INFINITY
    text = "no limit" if endless else f"{soft} open files in a process"
    if endless or soft >= _WANTED_FILES:
        return Finding("open files", "ok", text)
    raisable = hard == resource.RLIM_INFINITY or hard >= _WANTED_FILES
    mend = f"ulimit -n {_WANTED_FILES}" if raisable else f"raise nofile to {_WANTED_FILES} in /etc/security/limits.conf"
    return Finding("open files", "could be better", text, mend)


def free_port(port: int, whose: str) -> Finding:
    """Checks whether the port that a daemon listens on, unless told otherwise, is free."""
    name = f"port {port}"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
            trial.listen(1)
        except OSError as error:
            option = "--hub-port" if whose == "hub" else "--port"
            mend = f"end what listens there (ss -ltnp 'sport = {port}'), or give {option}"
            return Finding(name, "could be better", f"the {whose}'s: {error.strerror}", mend)
    return Finding(name, "ok", f"the {whose}'s: free")


def namespaces() -> Finding:
    """Network namespaces, which an emulated WAN is made of."""
    name, use = "namespaces", "only to emulate a network on this machine"
    problem = _try(["unshare", "-n", "true"])
    if problem is None:
        return Finding(name, "ok", "network namespaces can be made")
    return Finding(name, "missing", f"{use}: {problem}", "run as root, with util-linux installed")


def netem() -> Finding:
    """netem, which delays packets in the kernel."""
    script = "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"
    problem = _try(["unshare", "-n", "sh", "-c", script])
    if problem is None:
        return Finding("netem", "ok", "the kernel can delay packets")
    text = f"only to delay packets in an emulated network: {problem}"
    return Finding("netem", "missing", text, "modprobe sch_netem, as root, with iproute2 installed")


def _try(command: list[str]) -> str | None:
    """Runs a command. Returns None if it succeeds, else its output in one line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
