"""The router process of one emulated network, configured on standard input.

    python -m p2psync.topology.emulator.router

It creates the namespaces, holds their TUN devices, forwards packets until it is stopped, standard input ends or a
signal arrives, and then removes everything that it created. If it is killed, namespaces without devices remain; the
next network that comes up or goes down removes them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import numpy as np

from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import layout, loop, messages, namespaces, plane, runs

_PR_SET_TIMERSLACK = 29
#: Real-time priority above all user processes: a packet's time must not depend on other load.
_PRIORITY = 50
#: Seconds for a connected client to send its request; packets do not wait for a slow one.
_CLIENT_WAIT_SECONDS = 0.05
_MAX_REQUEST_BYTES = 1 << 20
_KERNEL = {
    "ipv6/conf/all/disable_ipv6": "1",
    # A long path at a high rate needs large windows, and no run may inherit metrics of an earlier one.
    "ipv4/tcp_rmem": "4096 131072 67108864",
    "ipv4/tcp_wmem": "4096 65536 67108864",
    "ipv4/tcp_no_metrics_save": "1",
    "ipv4/tcp_min_tso_segs": "8",
}


class Router:
    """A network that is up, and its control socket."""

    def __init__(self, config: messages.RouterConfig, run: str) -> None:
        self._config, self._run = config, run
        self._numbers = {stage.name: i for i, stage in enumerate(config.layout.stages)}
        self._buffer_ms = [stage.buffer_ms for stage in config.layout.stages]
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        leash = -1 if config.detached else sys.stdin.fileno()
        self._plane = self._make_plane([self._listener.fileno(), leash, self._wake])
        # The first call compiles the loop, or loads it from the cache; it returns at once.
        os.write(waker, b"\0")
        loop.forward(self._plane, 3, 0)
        os.read(self._wake, 1)

    def _make_plane(self, watched: list[int]) -> plane.Plane:
        spread = self._config.layout
        tuns = [self._make_host(number, name) for number, (name, _) in enumerate(spread.hosts)]
        regions = [spread.regions.index(region) for _, region in spread.hosts]
        links = np.array(spread.link_of, np.int64).reshape(len(spread.regions), -1)
        barred = np.zeros((len(tuns), len(tuns)), np.uint8)
        barred[tuple(np.array(spread.barred, np.int64).reshape(-1, 2).T)] = 1
        quantum = self._config.quantum_us * 1000
        made = plane.make_plane(regions, links, barred, len(spread.stages), tuns, watched, quantum)
        # Not 0, a fixed point of xorshift.
        made.stages["random"] = np.random.default_rng(self._config.seed).integers(1, 2**63, len(spread.stages))
        for number, stage in enumerate(spread.stages):
            loop.retune(made, number, 8000 / stage.rate, int(stage.delay_ms * 1e6), stage.loss)
            made.stages[number]["buffer"] = _buffer(made.stages[number], stage.buffer_ms)
        return made

    def _make_host(self, number: int, name: str) -> int:
        with namespaces.inside(f"{runs.prefix_of(self._run)}{name}"):
            namespaces.set_kernel(_KERNEL)
            return namespaces.open_tun(layout.host_address(number), layout.MASK)

    def listen(self) -> None:
        """Opens the control socket."""
        self._listener.bind(str(runs.folder_of(self._run) / "control"))
        self._listener.listen(64)

    def serve(self) -> None:
        """Forwards packets and answers requests until the network must stop."""
        while True:
            which = loop.forward(self._plane, 3, self._config.tick_us * 1000)
            if which == 0:
                if self._answer():
                    return
            elif which > 0:
                return

    def _answer(self) -> bool:
        """Answers one client; returns whether it asked to stop."""
        with suppress(OSError):
            client, _ = self._listener.accept()
            with client:
                client.settimeout(_CLIENT_WAIT_SECONDS)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
                try:
                    request = msgspec.json.decode(client.recv(_MAX_REQUEST_BYTES), type=messages.RouterRequest)
                    if isinstance(request, messages.StopRouter):
                        return True
                    client.send(self._do(request))
                except (P2PSyncError, msgspec.MsgspecError) as error:
                    client.send(f"!{error}".encode())
        return False

    def _do(self, request: messages.StageChanges | messages.ReadCounters) -> bytes:
        if isinstance(request, messages.ReadCounters):
            return msgspec.json.encode(self._counters())
        for change in request.changes:
            self._change(change)
        return b"{}"

    def _change(self, change: messages.StageChange) -> None:
        number = self._numbers.get(change.stage, -1)
        if number < 0:
            raise P2PSyncError(f"there is no link named {change.stage!r}")
        stage = self._plane.stages[number]
        rate = float(stage["ns_per_byte"]) if change.rate is None else 8000 / change.rate
        delay = int(stage["delay"]) if change.delay_ms is None else int(change.delay_ms * 1e6)
        loss = float(stage["loss"]) if change.loss is None else change.loss
        loop.retune(self._plane, number, rate, delay, loss)
        if change.buffer_ms is not None:
            self._buffer_ms[number] = change.buffer_ms
        stage["buffer"] = _buffer(stage, self._buffer_ms[number])
        if change.cut is not None:
            stage["cut"] = int(change.cut)

    def _counters(self) -> messages.Counters:
        state, late = self._plane.state, np.cumsum(self._plane.late)
        fields = messages.Counter.__struct_fields__
        links = {
            stage.name: messages.Counter(*(int(row[field]) for field in fields))
            for stage, row in zip(self._config.layout.stages, self._plane.stages, strict=True)
        }

        def late_ms(share: float) -> float:
            return float(np.searchsorted(late, share * late[-1])) * plane.LATE_BUCKET / 1e6 if late[-1] else 0.0

        return messages.Counters(
            links=links,
            unroutable=int(state[plane.UNROUTABLE]),
            barred=int(state[plane.BARRED]),
            refused=int(state[plane.REFUSED]),
            no_memory=int(state[plane.NO_MEMORY]),
            delivered=int(state[plane.DELIVERED]),
            wakeups=int(state[plane.WAKEUPS]),
            late_ms_p50=late_ms(0.5),
            late_ms_p99=late_ms(0.99),
            late_ms_max=late_ms(1.0),
            cpu_seconds=time.process_time(),
        )


def _buffer(stage: Any, milliseconds: float) -> int:
    """Returns a stage's buffer in nanoseconds."""
    return int(max(milliseconds * 1e6, layout.MIN_BUFFER_BYTES * stage["ns_per_byte"]))


def _request_realtime() -> bool:
    """Requests timers without slack and real-time priority; returns whether the latter was granted."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        return False
    return True


@contextmanager
def _network(config: messages.RouterConfig) -> Iterator[str]:
    """Creates the namespaces of a new run, and removes them afterwards."""
    # Namespaces and files that cannot be removed now do not matter here.
    with suppress(P2PSyncError):
        runs.sweep()
    run, lock = runs.claim()
    try:
        names = [f"{runs.prefix_of(run)}{host}" for host, _ in config.layout.hosts]
        namespaces.add(names)
        if config.congestion:
            with runs.all_runs():
                namespaces.set_namespace_congestion(names, config.congestion)
        yield run
    finally:
        runs.clear(run)
        os.close(lock)


def main() -> None:
    """Reads the configuration, reports the outcome on standard output, serves."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    config = msgspec.json.decode(_first_line(), type=messages.RouterConfig)
    try:
        with _network(config) as run:
            router = Router(config, run)
            state = runs.EmulatedRun(run, config.file, os.getpid(), _request_realtime(), config.layout)
            router.listen()
            (runs.folder_of(run) / "state.json").write_bytes(msgspec.json.encode(state))
            print(msgspec.json.encode(state).decode(), flush=True)
            gc.collect()
            gc.freeze()
            gc.disable()
            router.serve()
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except P2PSyncError as error:
        print(f"!{error}", flush=True)
        sys.exit(1)


def _first_line() -> bytes:
    """Reads up to the end of the line and not a byte further, because the loop polls standard input."""
    line = bytearray()
    while not line.endswith(b"\n"):
        select.select([0], [], [])
        part = os.read(0, 1 << 20)
        if not part:
            sys.exit(1)
        line += part
    return bytes(line)


if __name__ == "__main__":
    main()
