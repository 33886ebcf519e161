"""How many connections to a peer are dialled, and which are closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from p2psync.protocol.messages import MAX_STREAMS
from p2psync.swarm.control.config import CLOSE_IDLE_SECONDS, DIAL_PAUSE_SECONDS
from p2psync.swarm.control.stream_count import StreamCount


@dataclass(eq=False)
class Line:
    """Stands for a connection that was idle for so long (seconds)."""

    quiet: float

    def idle(self, seconds: float) -> bool:
        return self.quiet >= seconds


def test_missing_connections_that_are_not_under_way_are_dialled() -> None:
    assert StreamCount().to_dial(5, 2, 1, 0.0) == 2
    assert StreamCount().to_dial(3, 2, 1, 0.0) == 0
    assert StreamCount().to_dial(MAX_STREAMS + 9, 0, 0, 0.0) == MAX_STREAMS
    assert StreamCount().to_dial(0, 0, 0, 0.0) == 1


def test_failed_dials_are_repeated_only_after_a_pause() -> None:
    count = StreamCount()
    assert count.to_dial(3, 1, 0, 0.0) == 2
    assert count.to_dial(3, 1, 0, DIAL_PAUSE_SECONDS - 0.1) == 0
    assert count.to_dial(3, 1, 0, DIAL_PAUSE_SECONDS) == 2


def test_idle_connections_beyond_the_number_are_closed_and_the_first_ones_stay() -> None:
    idle, busy = Line(CLOSE_IDLE_SECONDS), Line(0.0)
    lines = [Line(CLOSE_IDLE_SECONDS), idle, busy, Line(CLOSE_IDLE_SECONDS)]
    assert StreamCount.to_close(1, cast(Any, lines)) == [idle, lines[3]]
    assert StreamCount.to_close(4, cast(Any, lines)) == []
