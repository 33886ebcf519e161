"""A lease is renewed whatever else its renewal holds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membership_parts import fresh, make_core, node

from p2psync.errors import FormatError
from p2psync.membership.checks import MAX_PATHS, check_rate, check_running, check_statistics
from p2psync.membership.records import Join, NodeStatistics, PathStatistics, Renew
from p2psync.membership.renewal import MAX_REFUSED, parse_renewal

LEASE = "a" * 32
TTL = 10.0

#: Any JSON value, with null and numbers beyond every float in place of infinities and not-a-number.
scalars = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=40)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner), max_leaves=8
)
nodes = st.integers(0, 1 << 128).map(lambda number: f"{number:032x}") | st.text(max_size=40)
figures = st.floats() | st.floats(0, 1)
typed_paths = st.builds(PathStatistics, nodes, figures, figures, figures, figures, st.booleans(), figures)
paths = typed_paths | anything
statistics = anything | st.tuples(figures | anything, figures | anything, st.lists(paths, max_size=12) | anything)
renewals = st.fixed_dictionaries(
    {},
    optional={
        "version": anything,
        "digest": anything | st.just("ab" * 16),
        "fetch_rate": anything,
        "statistics": statistics,
        "another": anything,
    },
)


def renewed(body: bytes, trouble: FormatError | None = None) -> tuple[str, list[NodeStatistics], int | None]:
    """Renews a lease of 10 s at second 9 with this body; returns the refused fields and the hub's state afterwards."""
    core = make_core(ttl=TTL)
    core.join(Join(info=node(1)), lease=LEASE, now=0.0)
    core.join(Join(info=node(2)), lease=fresh(), now=0.0)
    granted = core.renew(parse_renewal(body, trouble), now=TTL - 1)
    assert core.expire(2 * TTL - 1.5) and len(core) == 1, "it lasts from the renewal, and the other lease ends"
    member = core.view().members[0]
    assert member.info == node(1), "the node's description is unchanged"
    check_running(member.version, member.digest)
    check_rate(member.fetch_rate)
    assert len(granted.refused) <= MAX_REFUSED
    return granted.refused, list(core.statistics().values()), member.version


@given(extras=renewals)
def test_a_lease_is_renewed_by_any_renewal_with_its_id(extras: dict[str, object]) -> None:
    _, reported, _ = renewed(msgspec.json.encode({"lease": LEASE} | extras))
    for known in reported:
        check_statistics(known)
        assert len(known.paths) <= MAX_PATHS


@given(body=st.binary(max_size=200), cut=st.integers(0, 200))
def test_a_renewal_damaged_after_its_lease_renews_it(body: bytes, cut: int) -> None:
    whole = msgspec.json.encode(Renew(lease=LEASE, version=3, digest="ab" * 16, statistics=NodeStatistics(up=3.0)))
    first = msgspec.json.encode({"lease": LEASE})[:-1]
    for damaged in (first + body, whole[: len(first) + cut] + body, whole[: len(first) + cut]):
        renewed(damaged)
        assert "late" in renewed(damaged, FormatError("late"))[0]


@given(
    typed=st.builds(NodeStatistics, figures, figures, st.lists(typed_paths, max_size=12)), version=st.integers(-5, 5)
)
def test_no_field_of_a_typed_renewal_costs_its_lease(typed: NodeStatistics, version: int) -> None:
    core = make_core(ttl=TTL)
    core.join(Join(info=node(1)), lease=LEASE, now=0.0)
    core.renew(Renew(lease=LEASE, version=version, statistics=typed), now=TTL - 1)
    assert core.expire(2 * TTL - 1.5) == []


@pytest.mark.parametrize("count", [MAX_PATHS, MAX_PATHS + 1, 1000, 5000])
def test_paths_beyond_the_hubs_bound_are_dropped(count: int) -> None:
    reported = NodeStatistics(up=3.0, paths=[PathStatistics(f"{number:032x}", sent=1.0) for number in range(count)])
    refused, known, _ = renewed(msgspec.json.encode(Renew(lease=LEASE, version=3, statistics=reported)))
    assert known == [NodeStatistics(up=3.0, paths=reported.paths[:MAX_PATHS])]
    assert bool(refused) is (count > MAX_PATHS)


def test_an_impossible_version_keeps_the_earlier_one() -> None:
    core = make_core(ttl=TTL)
    core.join(Join(info=node(1), version=4, digest="ab" * 16), lease=LEASE, now=0.0)
    for body in ({"version": -1}, {"version": "five", "digest": "cd" * 16}, {"version": 5, "digest": None}):
        refused = core.renew(parse_renewal(msgspec.json.encode({"lease": LEASE} | body)), now=1.0).refused
        assert refused
    (member,) = core.view().members
    assert (member.version, member.digest) == (4, "ab" * 16)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"lease":3}', b'{"version":3,"lease":"a"', b'{"lease":"\\u0061"']
)
def test_a_renewal_without_a_lease_is_refused(body: bytes) -> None:
    with pytest.raises(FormatError):
        parse_renewal(body)
