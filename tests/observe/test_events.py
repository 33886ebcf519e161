"""The lines of events: figures that add up, over any number of steps."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psync.observe import events
from p2psync.observe.events import Committed, Event, Published, Trouble, Warned

UNITS = st.integers(1, 1 << 40)


@st.composite
def deltas(draw: st.DrawFn, least: int = 1) -> list[tuple[int, int]]:
    """(changed, total) of some deltas, as manifests may have them."""
    totals = draw(st.lists(UNITS, min_size=least, max_size=6))
    return [(draw(st.integers(0, total)), total) for total in totals]


def committed(**figures: object) -> Committed:
    """A commit of version 9."""
    plain: dict[str, object] = {
        "version": 9, "digest": "d" * 32, "changed": 1, "total": 100, "fetched_bytes": 3_000_000, "seconds": 1.5,
        "pause_seconds": 0.002, "stage_seconds": 0.1, "at": 0.0, "since": 8, "payload_bytes": 3_000_000,
    }  # fmt: skip
    return Committed(**(plain | figures))  # type: ignore[arg-type]


def numbers(line: str, unit: str) -> list[float]:
    return [float(found) for found in re.findall(rf"([0-9.]+) {unit}", line)]


@given(path=deltas(), anchored=st.booleans())
def test_a_share_is_a_percentage_of_the_deltas_units(path: list[tuple[int, int]], anchored: bool) -> None:
    changed, total = (sum(part) for part in zip(*path, strict=True))
    since = None if anchored else 9 - len(path)
    event = committed(changed=changed, total=total, steps=len(path) + anchored, since=since)
    (percent,) = numbers(event.line(), "%")
    assert 0 <= percent <= 100
    assert percent == pytest.approx(100 * changed / total, abs=0.006)
    assert ("whole, and" in event.line()) == anchored
    if len(path) > 1:
        assert f"{len(path)} deltas of {percent:.2f} % changed each on average" in event.line()


@given(useful=st.integers(0, 10**12), wasted=st.integers(0, 10**12), payload=st.integers(0, 10**12))
def test_bytes_fetched_beyond_the_path_are_accounted_for(useful: int, wasted: int, payload: int) -> None:
    event = committed(fetched_bytes=useful + wasted, wasted_bytes=wasted, payload_bytes=payload)
    fetched, *surplus = numbers(event.line(), "MB")
    assert fetched - sum(surplus) <= payload / 1e6 + 0.2, "each figure is rounded to 0.1 MB, or left out below half"
    assert sum(surplus) <= fetched + 0.11


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({}, "(1.00 % changed, 3.0 MB fetched, 1.50 s"),
        ({"since": 5}, "(1.00 % changed since version 5, "),
        ({"steps": 2, "since": 7, "total": 200}, "(2 deltas of 0.50 % changed each on average since version 7, "),
        ({"since": None}, "(whole, 3.0 MB"),
        ({"since": None, "steps": 2}, "(whole, and a delta of 1.00 % changed, "),
        ({"since": None, "steps": 3}, "(whole, and 2 deltas of 1.00 % changed each on average, "),
        ({"total": 0, "changed": 0}, "(empty, "),
        ({"fetched_bytes": 3_200_000, "wasted_bytes": 200_000}, "3.2 MB fetched, of it 0.2 MB came twice or too late,"),
        ({"fetched_bytes": 4_000_000}, "4.0 MB fetched, of it 1.0 MB of other versions,"),
        ({"fetched_bytes": 1_000_000}, "(1.00 % changed, 1.0 MB fetched, 1.50 s"),
    ],
)
def test_a_commits_line_names_its_path(figures: dict[str, object], message: str) -> None:
    assert message in committed(**figures).line()


def test_a_version_without_payload_has_no_ratio() -> None:
    event = Published(1, "d" * 32, False, 0, 0, 0, 0, 0, 0.1, 0.0)
    assert "inf" not in event.line() and "smaller" not in event.line()


def test_an_anchor_is_named_by_its_size_and_the_whole_and_has_no_ratio() -> None:
    line = Published(0, "d" * 32, True, 0, 0, 28_400_000, 33_600_000, 513, 1.0, 0.0).line()
    assert "(anchor, 28.40 MB, whole, of 33.60 MB, 513 chunks" in line and "smaller" not in line


def test_every_event_has_a_docstring_and_a_severity_of_its_class() -> None:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    assert len(kinds) > 15
    for kind in kinds:
        assert kind.__doc__ and kind.severity == ("warning" if issubclass(kind, Warned) else "info")
    assert Trouble("disk full").severity == "warning"
