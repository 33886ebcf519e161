"""SIGKILL at any moment, and the same command again: the swarm gets to the newest version, bit for bit."""

from __future__ import annotations

import random

from daemon_parts import Swarm
from soak import MOMENTS, Soak


def test_killed_at_each_moment_the_swarm_converges_again(swarm: Swarm) -> None:
    soak = Soak(swarm, random.Random(3))
    soak.begin()
    for _ in soak.rounds(len(MOMENTS)):
        pass
    assert soak.kills == len(MOMENTS), "each of them once"
    assert sorted(soak.told) == list(range(len(soak.told))), "no version is missing"
