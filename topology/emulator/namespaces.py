"""Network namespaces and their TUN devices: creates, enters and removes them, and finds their processes.

Everything here needs root. Names are those of `ip netns`, so that its tools work on them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from p2psync.errors import P2PSyncError

NETNS_DIRECTORY = Path("/run/netns")
#: The TUN device's name in every namespace.
DEVICE = "wan0"
_TUN = Path("/dev/net/tun")

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CSUM, _TSO4, _TSO_ECN, _USO4, _USO6 = 0x01, 0x02, 0x08, 0x20, 0x40
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8913, 0x8914, 0x8943
_IFF_UP = 1
#: Length of the device's queue, in super-packets: the router reads far sooner, and a drop here would belong to no link.
_DEVICE_QUEUE_PACKETS = 2000
#: Seconds for killed processes to end, before a namespace is removed.
_KILL_WAIT_SECONDS = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """Returns why no network can be emulated here, in one line; None if no obstacle is known."""
    if os.geteuid() != 0:
        return "emulating a network makes namespaces and TUN devices, and needs root: run it with sudo"
    if shutil.which("ip") is None:
        return "emulating a network needs `ip`: install iproute2"
    if not _TUN.exists():
        return f"emulating a network needs {_TUN}: load the kernel module tun (modprobe tun)"
    return None


def add(names: Iterable[str]) -> None:
    """Creates namespaces. Raises `P2PSyncError`."""
    _ip_batch(f"netns add {name}" for name in names)


def remove(names: Iterable[str]) -> None:
    """Kills the processes in namespaces and removes those that exist. Raises `P2PSyncError`."""
    there = [name for name in names if (NETNS_DIRECTORY / name).exists()]
    kill(there)
    _ip_batch(f"netns del {name}" for name in there)


def existing(prefix: str) -> list[str]:
    """Returns the names of namespaces with this prefix."""
    return sorted(path.name for path in NETNS_DIRECTORY.glob(f"{prefix}*")) if NETNS_DIRECTORY.is_dir() else []


def _ip_batch(lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if not text:
        return
    done = subprocess.run(["ip", "-force", "-batch", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise P2PSyncError(f"ip netns: {done.stderr.strip().splitlines()[0] if done.stderr.strip() else 'it failed'}")


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Moves this thread into a namespace for the `with` block: sockets made in it stay there. Raises `P2PSyncError`."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(name)
        try:
            yield
        finally:
            _enter(own)
    finally:
        os.close(own)


def enter(name: str) -> None:
    """Moves this thread into a namespace for good. Raises `P2PSyncError`."""
    try:
        there = os.open(NETNS_DIRECTORY / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise P2PSyncError(f"the namespace {name} is gone: bring the network up again") from None
    try:
        _enter(there)
    finally:
        os.close(there)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise P2PSyncError(f"entering a network namespace: {os.strerror(ctypes.get_errno())}")


def open_tun(address: str, mask: str) -> int:
    """Opens a TUN device with an address, up, in this thread's namespace. Raises `P2PSyncError`.

    The descriptor is non-blocking; packets have a virtio_net_hdr, and arrive as super-packets of up to 64 KiB.
    """
    try:
        tun = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
        offload = _CSUM | _TSO4 | _TSO_ECN
        with suppress(OSError):
            fcntl.ioctl(tun, _TUNSETOFFLOAD, offload)
            # Kernels before 6.2 cannot pass UDP super-packets.
            fcntl.ioctl(tun, _TUNSETOFFLOAD, offload | _USO4 | _USO6)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, mask)):
                packed = struct.pack("16sHH4s8x", DEVICE.encode(), socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(control, request, packed)
            fcntl.ioctl(control, _SIOCSIFTXQLEN, struct.pack("16si20x", DEVICE.encode(), _DEVICE_QUEUE_PACKETS))
            for device in ("lo", DEVICE):
                flags = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", device.encode(), 0))
                up = struct.unpack("16sH22x", flags)[1] | _IFF_UP
                fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device.encode(), up))
    except OSError as error:
        raise P2PSyncError(f"making a TUN device: {error.strerror}; it needs root and the kernel module tun") from None
    return tun


def set_kernel(values: dict[str, str]) -> None:
    """Sets sysctls below /proc/sys/net/ in this thread's namespace. Raises `P2PSyncError`."""
    for name, value in values.items():
        try:
            (Path("/proc/sys/net") / name).write_text(value)
        except OSError as error:
            raise P2PSyncError(f"net/{name} = {value}: {error.strerror}; this kernel does not offer it") from None


_CHOICE = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def set_namespace_congestion(names: Iterable[str], control: str) -> None:
    """Sets the TCP congestion control of namespaces. Raises `P2PSyncError` where the kernel lacks it or refuses.

    Namespaces may use only what the machine allows to unprivileged users: this adds it for the moment.
    """
    text = None
    try:
        allowed = _ALLOWED.read_text()
        if control not in allowed.split():
            _ALLOWED.write_text(f"{allowed.strip()} {control}")
            text = allowed
        for name in names:
            with inside(name):
                _CHOICE.write_text(control)
    except OSError as error:
        offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
        raise P2PSyncError(
            f"the congestion control {control!r} cannot be used here ({error.strerror}); "
            f"the kernel has {', '.join(offered)}; others may be modules: modprobe tcp_{control}"
        ) from None
    finally:
        if text is not None:
            _ALLOWED.write_text(text)


def processes(names: Iterable[str]) -> list[int]:
    """Returns the processes in namespaces."""
    wanted = set()
    for name in names:
        with suppress(OSError):
            wanted.add((NETNS_DIRECTORY / name).stat().st_ino)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "ns" / "net").stat().st_ino in wanted:
                    found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def kill(names: list[str]) -> None:
    """Kills (-9) every process in namespaces, and waits until they are gone. Raises `P2PSyncError`."""
    deadline = time.monotonic() + _KILL_WAIT_SECONDS
    while names and (pids := [pid for pid in processes(names) if not _is_dead(pid)]):
        if time.monotonic() > deadline:
            raise P2PSyncError(f"processes {pids} do not die; the network stays until they have")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _is_dead(pid: int) -> bool:
    """Returns whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
