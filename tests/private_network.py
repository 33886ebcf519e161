"""A network namespace of a test's own: the families and addresses that it asks for, and nothing else.

It belongs to one thread and to the threads, processes and sockets that it starts, and is gone with them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

#: For tests that make one.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root: run the tests with sudo")

#: `ip` commands. By themselves both loopback addresses are there.
NO_IPV4 = "addr del 127.0.0.1/8 dev lo"
NO_IPV6 = "addr del ::1/128 dev lo"
#: A link that drops all packets to `SILENT_V4` and `SILENT_V6`: connections there are neither accepted nor refused.
SILENT_V4, SILENT_V6 = "198.51.100.7", "2001:db8::7"
OWN_V4, OWN_V6 = "198.51.100.1", "2001:db8::1"
LINK = (
    "link add v0 type veth peer name v1",
    "link set v0 up",
    "link set v1 up",
    f"addr add {OWN_V4}/24 dev v0",
    f"-6 addr add {OWN_V6}/64 dev v0 nodad",
)
SILENCE = tuple(f"neigh add {silent} lladdr 02:00:00:00:00:09 dev v0" for silent in (SILENT_V4, SILENT_V6))


def _wait_for_carrier() -> None:
    """Wait until the kernel has noticed that both ends of the link are up: before, it has no route over it."""
    deadline = time.monotonic() + 20
    while _answer("-o", "addr", "show", "tentative") or "state UP" not in _answer("-o", "link", "show", "v0"):
        assert time.monotonic() < deadline, "the link does not come up"
        time.sleep(0.005)


def _answer(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout.strip()


def inside(call: Callable[[], T], commands: Sequence[str] = ()) -> T:
    """Returns the result of `call` in a network namespace, after these `ip` commands. Raises the errors of `call`."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            if _libc.unshare(_CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            for command in ("link set lo up", *commands):
                subprocess.run(["ip", *command.split()], check=True, capture_output=True)
            if "link set v0 up" in commands:
                _wait_for_carrier()
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
