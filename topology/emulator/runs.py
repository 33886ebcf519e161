"""The emulated networks of this machine, and the remains of killed ones.

Every network has a folder with a lock that its router holds while it lives. A folder whose lock is free is that of a
killed run; its namespaces, known by their prefix, can be removed. Nothing else is ever touched.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import namespaces
from p2psync.topology.emulator.layout import RouterLayout

PLACE = Path("/run/p2psync-wan")
_PREFIX = "p2w-"
_MAX_ANSWER_BYTES = 1 << 20
#: Attempts to get a reply from a live router.
_ASK_TIMES = 5


class EmulatedRun(msgspec.Struct, frozen=True):
    """A router's report once its network is up. file: the topology's, if `wan up` made the network."""

    run: str
    file: str
    router: int
    realtime: bool
    layout: RouterLayout

    def namespace(self, host: str) -> str:
        """Returns the name of a host's namespace. Raises `P2PSyncError` for an unknown host."""
        self.layout.number(host)
        return f"{prefix_of(self.run)}{host}"


def prefix_of(run: str) -> str:
    """Returns the common prefix of a run's namespaces."""
    return f"{_PREFIX}{run}-"


def folder_of(run: str) -> Path:
    """Returns the folder of a run's lock, state and control socket."""
    return PLACE / run


def claim() -> tuple[str, int]:
    """Returns a new run and its lock, held until the descriptor is closed or the process ends. Raises
    `P2PSyncError`."""
    with all_runs():
        run = secrets.token_hex(4)
        folder_of(run).mkdir(mode=0o700)
        lock = os.open(folder_of(run) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return run, lock


def sweep() -> list[str]:
    """Removes the remains of killed runs; returns their names. Raises `P2PSyncError`."""
    with all_runs():
        dead = [path.name for path in PLACE.iterdir() if path.is_dir() and not is_alive(path.name)]
        for run in dead:
            clear(run)
        return dead


def clear(run: str) -> None:
    """Removes a run's processes, namespaces and folder. Raises `P2PSyncError`."""
    namespaces.remove(namespaces.existing(prefix_of(run)))
    shutil.rmtree(folder_of(run), ignore_errors=True)


def living() -> list[EmulatedRun]:
    """Returns the networks that are up."""
    found = []
    for path in sorted(PLACE.glob("*/state.json")):
        with suppress(OSError, msgspec.MsgspecError):
            if is_alive(path.parent.name):
                found.append(msgspec.json.decode(path.read_bytes(), type=EmulatedRun))
    return found


def find(file: Path) -> EmulatedRun | None:
    """Returns the network that `wan up` made from a file, None if it is not up."""
    return next((state for state in living() if state.file == str(file.resolve())), None)


def ask(run: str, request: object) -> bytes:
    """Sends a request to a run's router; returns its reply. Raises `P2PSyncError` if the router is gone or refuses.

    The router does not wait: a client that connects and is then not scheduled for a while sends its request again.
    """
    for _ in range(_ASK_TIMES):
        answer = _ask(run, request)
        if answer or not is_alive(run):
            break
    if not answer:
        raise network_gone()
    if answer.startswith(b"!"):
        raise P2PSyncError(answer[1:].decode())
    return answer


def _ask(run: str, request: object) -> bytes:
    """Returns the reply; empty if there was none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(10)
            control.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MAX_ANSWER_BYTES)
            control.connect(str(folder_of(run) / "control"))
            control.send(msgspec.json.encode(request))
            return control.recv(_MAX_ANSWER_BYTES)
    except OSError:
        return b""


def network_gone() -> P2PSyncError:
    """Returns the error to raise when a network's router is gone."""
    return P2PSyncError("the emulated network has died: bring it up again")


def is_alive(run: str) -> bool:
    """Returns whether a run's router is alive."""
    try:
        lock = os.open(folder_of(run) / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


@contextmanager
def all_runs() -> Iterator[None]:
    """Holds the lock of all runs: none begins or is swept by another process meanwhile. Raises `P2PSyncError`."""
    try:
        PLACE.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(PLACE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise P2PSyncError(f"{PLACE}: {error.strerror}; emulating a network needs root") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
