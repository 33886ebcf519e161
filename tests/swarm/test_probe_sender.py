"""A probe sender restarts and paces connections before it fills them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from p2psync.swarm.control.connections import Connections
from p2psync.swarm.control.probe_sender import ProbeSender


@dataclass(eq=False)
class Line:
    """Stands for a connection that takes nothing yet."""

    peer: str = "a"
    begun: int = 0
    backlog: int = 1 << 30
    written: int = 0
    left: int = 0

    def restart(self) -> None:
        self.begun += 1

    def set_pacing_limit(self, rate: float) -> None:
        pass


class Table:
    """Stands for the connections of a node."""

    def __init__(self, *lines: Line) -> None:
        self.lines = list(lines)

    def streams(self, peer: str) -> list[Line]:
        return [line for line in self.lines if line.peer == peer]


@pytest.mark.parametrize(("rate", "begun"), [(0.0, [1, 1, 0]), (1e6, [0, 0, 0])])
async def test_only_what_is_to_show_all_that_a_path_gives_begins_as_on_a_new_connection(
    rate: float, begun: list[int]
) -> None:
    lines = [Line(), Line(), Line()]
    pumps = ProbeSender(cast(Connections, Table(*lines)), 2, lambda peer, sent: None, asyncio.get_running_loop())
    pumps.start("a", 1 << 20, asyncio.get_running_loop().time() + 60, rate)
    assert [line.begun for line in lines] == begun
    pumps.close()
