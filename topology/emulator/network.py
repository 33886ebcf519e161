"""Controls an emulated network: runs commands in its hosts, changes and cuts its links, reads its counters."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

import msgspec

from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import namespaces, runs
from p2psync.topology.emulator.layout import LinkStage, RouterLayout
from p2psync.topology.emulator.messages import Counters, ReadCounters, StageChange, StageChanges, StopRouter


class EmulatedNetwork:
    """A network that is up. Every method raises `P2PSyncError` once it is not, and for unknown names."""

    def __init__(self, state: runs.EmulatedRun) -> None:
        self.state = state

    @property
    def layout(self) -> RouterLayout:
        """Its hosts and links, as they were when it came up."""
        return self.state.layout

    @property
    def hosts(self) -> list[str]:
        """The names of its hosts, in the order of the topology."""
        return [host for host, _ in self.layout.hosts]

    def address(self, host: str) -> str:
        """A host's IPv4 address, to be reached from the other hosts."""
        return self.layout.address(host)

    def namespace(self, host: str) -> str:
        """The name of a host's namespace, as `ip netns` shows it."""
        return self.state.namespace(host)

    def inside(self, host: str) -> AbstractContextManager[None]:
        """Moves the calling thread into a host's network for the `with` block; sockets made in it stay there."""
        return namespaces.inside(self.namespace(host))

    def environment(self, host: str) -> dict[str, str]:
        """Returns the environment variables that a host's commands get in addition."""
        layout = self.layout
        return {
            "WAN_HOST": host,
            "WAN_REGION": layout.hosts[layout.number(host)][1],
            "WAN_ADDRESS": layout.address(host),
            "WAN_TRAINER": layout.address(layout.trainer),
        }

    def run(
        self, host: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a command in a host's network. options: those of `subprocess.Popen`. Raises `OSError` like it."""
        whole = {**(os.environ if env is None else env), **self.environment(host)}

        def start() -> subprocess.Popen[Any]:
            namespaces.enter(self.namespace(host))
            return subprocess.Popen(argv, env=whole, **options)

        # A child starts in the network of its parent's thread: as soon as it exists, it can be found there and killed.
        # The main thread, which stands for the whole process, stays outside.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(start).result()

    def kill(self, host: str) -> None:
        """Kills (-9) all processes of a host, and waits until they are gone."""
        namespaces.kill([self.namespace(host)])

    def set_link(
        self,
        a: str,
        b: str,
        *,
        rate: float | None = None,
        delay_ms: float | None = None,
        loss: float | None = None,
        buffer_ms: float | None = None,
        one_way: bool = False,
    ) -> None:
        """Changes the link between two regions, or only its direction from a to b. rate: Mbit/s."""
        _check(rate, delay_ms, loss, buffer_ms)
        stages = self.layout.between(a, b, one_way)
        self._change(StageChange(s.name, rate, delay_ms, loss, buffer_ms) for s in stages)

    def set_host(
        self,
        host: str,
        *,
        up: float | None = None,
        down: float | None = None,
        delay_ms: float | None = None,
        loss: float | None = None,
    ) -> None:
        """Changes a host's own links. up, down: Mbit/s. delay_ms, loss: of each of the two."""
        for rate in (up, down):
            _check(rate, delay_ms, loss, None)
        uplink, downlink = self.layout.of_host(host)
        self._change([StageChange(uplink.name, up, delay_ms, loss), StageChange(downlink.name, down, delay_ms, loss)])

    def cut(self, a: str, b: str | None = None, *, one_way: bool = False) -> None:
        """Blocks all packets: between two regions; or to and from a host; or into and out of a region."""
        self._change(StageChange(stage.name, cut=True) for stage in self._stages(a, b, one_way))

    def partition(self, regions: Iterable[str]) -> None:
        """Cuts all links between these regions and the rest."""
        ours = list(regions)
        rest = {region for region in self.layout.regions if region not in ours}
        self._change(
            StageChange(stage.name, cut=True) for region in ours for stage in self.layout.of_region(region, rest)
        )

    def restore(self, a: str | None = None, b: str | None = None) -> None:
        """Resets links to the topology's figures and reconnects them: those that `cut` would cut, or all."""
        stages = self.layout.stages if a is None else self._stages(a, b, False)
        self._change(StageChange(s.name, s.rate, s.delay_ms, s.loss, s.buffer_ms, cut=False) for s in stages)

    def counters(self) -> Counters:
        """Returns the counters of every link since the network came up."""
        return msgspec.json.decode(self._ask(ReadCounters()), type=Counters)

    def stop(self) -> None:
        """Ends the network: kills its processes, and removes it."""
        # The router ends without a reply.
        with suppress(P2PSyncError):
            runs.ask(self.state.run, StopRouter())

    def _stages(self, a: str, b: str | None, one_way: bool) -> Sequence[LinkStage]:
        if b is not None:
            return self.layout.between(a, b, one_way)
        return self.layout.of_region(a) if a in self.layout.regions else self.layout.of_host(a)

    def _change(self, changes: Iterable[StageChange]) -> None:
        self._ask(StageChanges(list(changes)))

    def _ask(self, request: StageChanges | ReadCounters) -> bytes:
        return runs.ask(self.state.run, request)


def _check(rate: float | None, delay_ms: float | None, loss: float | None, buffer_ms: float | None) -> None:
    if rate is not None and rate <= 0:
        raise P2PSyncError(f"a rate of {rate:g} Mbit/s: to let nothing through, cut the link")
    if (delay_ms or 0) < 0 or not 0 <= (loss or 0) < 1 or (buffer_ms is not None and buffer_ms <= 0):
        raise P2PSyncError("a link has a delay from 0, a loss from 0 to below 1, and a buffer above 0")
