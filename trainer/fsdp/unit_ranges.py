"""Sets of units of tensors, as ranges: the units that a rank holds, owns or lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

#: Units [start, stop) of one row.
UnitSpan: TypeAlias = tuple[int, int]


class UnitRanges:
    """Units of the rows of a table, as disjoint spans in rising order. Immutable."""

    def __init__(self, spans: Mapping[int, Iterable[UnitSpan]] | None = None) -> None:
        """spans: of each row, in any order; they may overlap or be empty."""
        self._spans: dict[int, tuple[UnitSpan, ...]] = {}
        for row, given in sorted((spans or {}).items()):
            merged = tuple(_merged(given))
            if merged:
                self._spans[row] = merged

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int, int]]) -> UnitRanges:
        """Returns the set of these (row, start, stop), given in any order."""
        spans: dict[int, list[UnitSpan]] = {}
        for row, start, stop in ranges:
            spans.setdefault(row, []).append((start, stop))
        return cls(spans)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yields (row, start, stop), in rising order."""
        for row, spans in self._spans.items():
            for start, stop in spans:
                yield row, start, stop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnitRanges) and self._spans == other._spans

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __or__(self, other: UnitRanges) -> UnitRanges:
        """Returns the units in either set."""
        return UnitRanges.of([*self, *other])

    def __sub__(self, other: UnitRanges) -> UnitRanges:
        """Returns the units in this set and not in the other."""
        return UnitRanges({row: _without(spans, other.row(row)) for row, spans in self._spans.items()})

    def __and__(self, other: UnitRanges) -> UnitRanges:
        """Returns the units in both sets."""
        return UnitRanges({row: list(_common(spans, other.row(row))) for row, spans in self._spans.items()})

    def row(self, row: int) -> tuple[UnitSpan, ...]:
        """Returns the spans of one row."""
        return self._spans.get(row, ())

    def within(self, row: int, start: int, stop: int) -> Iterator[UnitSpan]:
        """Yields the parts of [start, stop) of a row that are in this set."""
        return _common(self.row(row), ((start, stop),))

    def units(self, row: int, start: int, stop: int) -> int:
        """Returns how many units of [start, stop) of a row are in this set."""
        return sum(end - begin for begin, end in self.within(row, start, stop))


def _merged(spans: Iterable[UnitSpan]) -> Iterator[UnitSpan]:
    """Yields the spans disjoint and rising, without empty ones; those that touch become one."""
    last: UnitSpan | None = None
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], stop)
        else:
            if last is not None:
                yield last
            last = start, stop
    if last is not None:
        yield last


def _common(one: Iterable[UnitSpan], two: tuple[UnitSpan, ...]) -> Iterator[UnitSpan]:
    for start, stop in one:
        for begin, end in two:
            if max(start, begin) < min(stop, end):
                yield max(start, begin), min(stop, end)


def _without(spans: Iterable[UnitSpan], gone: tuple[UnitSpan, ...]) -> list[UnitSpan]:
    left: list[UnitSpan] = []
    for start, stop in spans:
        for begin, end in gone:
            if begin < stop and end > start:
                left.append((start, begin))
                start = max(start, end)
        left.append((start, stop))
    return left
