"""When the paths that carry a long transfer begin anew, one after the other. Pure.

Theory of operation. BBR stops a connection for a fifth of a second once the least round trip that it saw is ten seconds
old, to see whether that is still right. Where all connections of a transfer began together all stop together: whatever
takes ten seconds takes 10.2, the uplink stands idle, and so do all who wait for what it brings. A path that begins anew
keeps its window, and the kernel's own record of the least round trip, and is not stopped for ten seconds more. So paths
on which something always waits begin anew before that, a few at a time, while the others carry on. As a path begins, it
tries for nearly three times its rate, which is known here, and so it is held to that meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

#: Seconds after its last beginning from which on a path may begin anew, and by which it should have.
FROM, BY = 6.0, 9.0
#: What a path is held to as it does, of the best that came through it of late; how much of that is left at each look.
HELD, FADES = 1.05, 0.98
#: For how long: so many round trips, and at least so many seconds. It takes BBR three to see that it finds no more.
TRIPS, LEAST = 6.0, 0.5


class MinRttRefresh:
    """The paths of one node. Seconds, and bytes a second."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        self._best: dict[str, float] = {}
        #: Those that are held: until when, and to what.
        self._held: dict[str, tuple[float, float]] = {}

    def begun(self, names: Iterable[str], now: float) -> None:
        """These paths have begun anew."""
        self._begun.update((name, now) for name in names)

    def due(self, came: Mapping[str, float], round_trips: Mapping[str, float], seconds: float, now: float) -> list[str]:
        """Those that should begin anew now, and are held from now on.

        came: bytes a second that came through since the last look, `seconds` ago, on each path on which something
        waited all the time. round_trips: of these, in seconds.
        """
        for name, rate in came.items():
            self._best[name] = max(rate, FADES * self._best.get(name, 0.0))
            # Of one that began long ago nobody knows when it will be stopped.
            self._begun.setdefault(name, now)
        many = math.ceil(len(came) * seconds / (BY - FROM))
        old = sorted((at, name) for name, at in self._begun.items() if name in came and now - at >= FROM)
        names = [name for _, name in old[:many]]
        for name in names:
            self._held[name] = now + max(LEAST, TRIPS * round_trips[name]), HELD * self._best[name]
        self.begun(names, now)
        return names

    def limits(self, now: float) -> dict[str, float]:
        """What paths that have just begun anew are held to."""
        self._held = {name: held for name, held in self._held.items() if now < held[0]}
        return {name: rate for name, (_, rate) in self._held.items()}

    def keep(self, names: Iterable[str]) -> None:
        """Forget all others."""
        known = set(names)
        self._begun = {name: at for name, at in self._begun.items() if name in known}
        self._best = {name: rate for name, rate in self._best.items() if name in known}
        self._held = {name: held for name, held in self._held.items() if name in known}
