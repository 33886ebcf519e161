"""The messages of the demonstration's processes to their parent: one JSON line on stdout for each event."""

from __future__ import annotations

import hashlib
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from p2psync.observe.events import Committed, Published


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The trainer's hub serves at `hub_url`; its public key in hex."""

    hub_url: str
    key: str


class Learned(msgspec.Struct, frozen=True, tag=True):
    """A batch of rollouts was learned from: it gives `version`. reward: mean over the batch, in 0..1.

    re_leased: work items leased again so far, since their holders were gone. sample: one answer, for people.
    """

    version: int
    reward: float
    rollouts: int
    oldest: int
    re_leased: int
    refused: int
    sample: str


class Leased(msgspec.Struct, frozen=True, tag=True):
    """An actor holds work items that it has not answered yet."""

    items: int


class Answered(msgspec.Struct, frozen=True, tag=True):
    """An actor handed in a result made under `version`."""

    version: int
    verdict: str
    tokens: int
    seconds: float


class Final(msgspec.Struct, frozen=True, tag=True):
    """The end of a process: SHA-256 over all weights it holds, and which version they are."""

    version: int
    sha256: str
    memory_bytes: int


Line = Ready | Learned | Leased | Answered | Final | Published | Committed

if TYPE_CHECKING:
    from torch import nn

_LOCK = threading.Lock()
_DECODER = msgspec.json.Decoder(Line)


def tell(line: Line) -> None:
    """Print a line; safe from any thread."""
    with _LOCK:
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
        sys.stdout.flush()


def read(text: str) -> Line:
    """A line as it was told. Raises `msgspec.MsgspecError`."""
    line: Line = _DECODER.decode(text)
    return line


def weights_sha256(module: nn.Module) -> str:
    """SHA-256 over the bytes of all weights, in order of their names: independent of p2psync's own digest."""
    from p2psync.engines.module.live_tensors import host_units  # the parent, which reads lines, loads no torch
    from p2psync.engines.module.table import module_rows

    hasher = hashlib.sha256()
    for spec, tensor in module_rows(module).items():
        hasher.update(spec.name.encode())
        hasher.update(host_units(tensor).tobytes())
    return hasher.hexdigest()


def peak_memory() -> int:
    """Bytes this process held at most (VmHWM); 0 where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - a kernel file
            found = next((line for line in status if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    except OSError:
        return 0
    return int(found.split()[1]) * 1024
