"""Sets of stretches of tensors: which units a rank holds, owns or lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

#: Units [start, stop) of one row.
Span: TypeAlias = tuple[int, int]


class Stretches:
    """Units of the rows of a table, as disjoint spans in rising order. Immutable."""

    def __init__(self, spans: Mapping[int, Iterable[Span]] | None = None) -> None:
        """spans: of each row, in any order; they may overlap or be empty."""
        self._spans: dict[int, tuple[Span, ...]] = {}
        for row, given in sorted((spans or {}).items()):
            merged = tuple(_merged(given))
            if merged:
                self._spans[row] = merged

    @classmethod
    def of(cls, places: Iterable[tuple[int, int, int]]) -> Stretches:
        """Of (row, start, stop), in any order."""
        spans: dict[int, list[Span]] = {}
        for row, start, stop in places:
            spans.setdefault(row, []).append((start, stop))
        return cls(spans)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(row, start, stop), in rising order."""
        for row, spans in self._spans.items():
            for start, stop in spans:
                yield row, start, stop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stretches) and self._spans == other._spans

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __or__(self, other: Stretches) -> Stretches:
        """What is in either."""
        return Stretches.of([*self, *other])

    def __sub__(self, other: Stretches) -> Stretches:
        """What is in this one alone."""
        return Stretches({row: _without(spans, other.row(row)) for row, spans in self._spans.items()})

    def __and__(self, other: Stretches) -> Stretches:
        """What is in both."""
        return Stretches({row: list(_common(spans, other.row(row))) for row, spans in self._spans.items()})

    def row(self, row: int) -> tuple[Span, ...]:
        """The spans of one row."""
        return self._spans.get(row, ())

    def within(self, row: int, start: int, stop: int) -> Iterator[Span]:
        """The parts of [start, stop) of a row that are in this set."""
        return _common(self.row(row), ((start, stop),))

    def units(self, row: int, start: int, stop: int) -> int:
        """How many units of [start, stop) of a row are in this set."""
        return sum(end - begin for begin, end in self.within(row, start, stop))


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Disjoint, rising, without empty ones; those that touch become one."""
    last: Span | None = None
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], stop)
        else:
            if last is not None:
                yield last
            last = start, stop
    if last is not None:
        yield last


def _common(one: Iterable[Span], two: tuple[Span, ...]) -> Iterator[Span]:
    for start, stop in one:
        for begin, end in two:
            if max(start, begin) < min(stop, end):
                yield max(start, begin), min(stop, end)


def _without(spans: Iterable[Span], gone: tuple[Span, ...]) -> list[Span]:
    left: list[Span] = []
    for start, stop in spans:
        for begin, end in gone:
            if begin < stop and end > start:
                left.append((start, begin))
                start = max(start, end)
        left.append((start, stop))
    return left
