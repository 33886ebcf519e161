"""Brings an emulated network up, for as long as a `with` block lasts or until it is stopped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import namespaces, runs
from p2psync.topology.emulator.layout import make_layout
from p2psync.topology.emulator.messages import RouterConfig
from p2psync.topology.emulator.network import EmulatedNetwork
from p2psync.topology.model import Topology

#: Seconds that a router may take to remove its network before the caller removes it.
_STOP_WAIT_SECONDS = 15.0


class Emulator(EmulatedNetwork):
    """A network of this process: `with Emulator(topology) as network: …`. It is removed when the process ends, however
    that happens.

    congestion: the hosts' TCP congestion control; None: the kernel's default. seed: of the losses. Raises
    `P2PSyncError` where networks cannot be emulated.
    """

    def __init__(self, topology: Topology, *, congestion: str | None = None, seed: int = 0, **config: Any) -> None:
        self._config = RouterConfig(make_layout(topology), congestion=congestion or "", seed=seed, **config)
        self._router: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Emulator:
        self._router, state = _start(self._config)
        super().__init__(state)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills all processes in the network, and removes it. A second call does nothing."""
        router, self._router = self._router, None
        if router is None:
            return
        assert router.stdin
        assert router.stdout
        router.stdin.close()
        router.stdout.close()
        try:
            router.wait(_STOP_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            router.kill()
            router.wait()
        if runs.folder_of(self.state.run).exists():
            runs.clear(self.state.run)


def bring_up(topology: Topology, file: Path, *, congestion: str | None = None, seed: int = 0) -> EmulatedNetwork:
    """Brings up a network that stays until it is stopped, and is found again by its topology file. Raises
    `P2PSyncError`."""
    if runs.find(file) is not None:
        raise P2PSyncError(f"{file} is up already: p2psync wan down {file}")
    config = RouterConfig(make_layout(topology), str(file.resolve()), congestion or "", seed, detached=True)
    router, state = _start(config)
    for stream in (router.stdin, router.stdout):
        if stream:
            stream.close()
    return EmulatedNetwork(state)


def take_down(network: EmulatedNetwork) -> None:
    """Stops a network and waits until it is removed. Raises `P2PSyncError`."""
    network.stop()
    folder, deadline = runs.folder_of(network.state.run), time.monotonic() + _STOP_WAIT_SECONDS
    while folder.exists():
        if time.monotonic() > deadline:
            raise P2PSyncError(f"the router, process {network.state.router}, does not end: kill it, and try again")
        time.sleep(0.01)


def _start(config: RouterConfig) -> tuple[subprocess.Popen[bytes], runs.EmulatedRun]:
    reason = namespaces.missing()
    if reason is not None:
        raise P2PSyncError(reason)
    router = subprocess.Popen(
        [sys.executable, "-m", "p2psync.topology.emulator.router"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if config.detached else None,
        # Ctrl-C reaches the network's user only, who decides about the network.
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert router.stdin
    assert router.stdout
    with suppress(BrokenPipeError):
        router.stdin.write(msgspec.json.encode(config) + b"\n")
        router.stdin.flush()
    answer = router.stdout.readline()
    if answer.startswith(b"{"):
        return router, msgspec.json.decode(answer, type=runs.EmulatedRun)
    router.stdin.close()
    router.stdout.close()
    router.wait()
    raise P2PSyncError(
        answer[1:].decode().strip()
        or "the emulator's router ended at its start: is the installation of `p2psync` complete?"
    )


def why_not() -> str | None:
    """Returns why no network can be emulated here, in one line; None if one can (tested by making a namespace)."""
    reason = namespaces.missing()
    if reason is not None or shutil.which("ip") is None:
        return reason
    try:
        probe = f"p2w-probe-{os.getpid()}"
        namespaces.add([probe])
        namespaces.remove([probe])
    except P2PSyncError as error:
        return f"this machine does not allow network namespaces ({error})"
    return None
