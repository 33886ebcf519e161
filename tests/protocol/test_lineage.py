"""The way to a version: fewest bytes, against brute force."""

from __future__ import annotations

import random

from p2psync.membership.records import Announcement
from p2psync.protocol.lineage import VersionKey, newest_announcement, resolve, target_key


def step(base: VersionKey | None, place: VersionKey, cost: int, epoch: int = 1) -> Announcement:
    """A manifest that leads from one place to another."""
    return Announcement(
        id=f"{base}-{place}-{cost}-{epoch}",
        version=place[0],
        base=None if base is None else base[0],
        epoch=epoch,
        digest=place[1],
        base_digest="" if base is None else base[1],
        payload_bytes=cost,
        manifest_bytes=1,
    )


def cheapest(lineage: list[Announcement], start: VersionKey | None, target: VersionKey) -> tuple[int, int] | None:
    """Bytes and manifests of the best way, by trying every way there is."""
    if start == target:
        return (0, 0)
    best: tuple[int, int] | None = None
    stack: list[tuple[VersionKey, int, int]] = [] if start is None else [(start, 0, 0)]
    stack += [(target_key(a), a.payload_bytes, 1) for a in lineage if a.base is None]
    while stack:
        place, cost, steps = stack.pop()
        if place == target:
            best = min(best or (cost, steps), (cost, steps))
            continue
        for a in lineage:
            if a.base is not None and (a.base, a.base_digest) == place:
                stack.append((target_key(a), cost + a.payload_bytes, steps + 1))
    return best


def test_resolve_finds_the_path_of_fewest_bytes() -> None:
    rng = random.Random(4)
    found = 0
    for _ in range(2000):
        places: list[VersionKey] = [(v, fork) for v in range(5) for fork in ("x", "y")]
        lineage = [step(None, rng.choice(places), rng.randint(1, 60)) for _ in range(rng.randint(0, 2))]
        for _ in range(rng.randint(0, 10)):
            a, b = sorted(rng.sample(places, 2))
            if a[0] < b[0]:
                lineage.append(step(a, b, rng.randint(1, 20)))
        rng.shuffle(lineage)
        start = rng.choice([None, *places])
        target = rng.choice(places)
        path = resolve(lineage, start, target)
        expected = cheapest(lineage, start, target)
        if path is None:
            assert expected is None
            continue
        found += 1
        assert expected == (sum(a.payload_bytes for a in path), len(path))
        place = start
        for i, a in enumerate(path):
            assert a.base is not None or i == 0
            if a.base is not None:
                assert (a.base, a.base_digest) == place
            place = target_key(a)
        assert place == target
    assert found > 300


def test_resolve_to_the_current_version_is_empty() -> None:
    assert resolve([], (3, "d"), (3, "d")) == []


def test_resolve_tells_forks_of_one_number_apart() -> None:
    lineage = [step((1, "a"), (2, "b"), 1)]
    assert resolve(lineage, (1, "z"), (2, "b")) is None
    assert resolve(lineage, (1, "a"), (2, "z")) is None


def test_resolve_prefers_fewer_manifests_at_equal_bytes() -> None:
    lineage = [step((0, "a"), (1, "b"), 5), step((1, "b"), (2, "c"), 5), step((0, "a"), (2, "c"), 10)]
    assert resolve(lineage, (0, "a"), (2, "c")) == [lineage[2]]


def test_resolve_finds_a_long_chain() -> None:
    lineage = [step(None, (0, "d"), 1000)] + [step((v, "d"), (v + 1, "d"), 1) for v in range(500)]
    path = resolve(lineage, None, (500, "d"))
    assert path is not None and len(path) == 501


def test_newest_announcement_goes_by_epoch_version_and_payload() -> None:
    old, new = step(None, (9, "a"), 1, epoch=1), step(None, (3, "b"), 50, epoch=2)
    cheap = step((2, "x"), (3, "b"), 5, epoch=2)
    assert newest_announcement([]) is None
    assert newest_announcement([new, old, cheap]) == cheap
