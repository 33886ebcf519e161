"""The path of fewest bytes to a version, compared with brute force."""

from __future__ import annotations

import random

from p2psync.membership.records import Announcement
from p2psync.protocol.lineage import VersionKey, newest_announcement, resolve, target_key


def announce(base: VersionKey | None, version: VersionKey, cost: int, epoch: int = 1) -> Announcement:
    """An announced manifest that leads from one version to another."""
    return Announcement(
        id=f"{base}-{version}-{cost}-{epoch}",
        version=version[0],
        base=None if base is None else base[0],
        epoch=epoch,
        digest=version[1],
        base_digest="" if base is None else base[1],
        payload_bytes=cost,
        manifest_bytes=1,
    )


def cheapest(lineage: list[Announcement], start: VersionKey | None, target: VersionKey) -> tuple[int, int] | None:
    """Bytes and number of manifests of the best path, by trying every path."""
    if start == target:
        return (0, 0)
    best: tuple[int, int] | None = None
    stack: list[tuple[VersionKey, int, int]] = [] if start is None else [(start, 0, 0)]
    stack += [(target_key(a), a.payload_bytes, 1) for a in lineage if a.base is None]
    while stack:
        version, cost, steps = stack.pop()
        if version == target:
            best = min(best or (cost, steps), (cost, steps))
            continue
        for a in lineage:
            if a.base is not None and (a.base, a.base_digest) == version:
                stack.append((target_key(a), cost + a.payload_bytes, steps + 1))
    return best


def test_resolve_finds_the_path_of_fewest_bytes() -> None:
    rng = random.Random(4)
    found = 0
    for _ in range(2000):
        versions: list[VersionKey] = [(v, fork) for v in range(5) for fork in ("x", "y")]
        lineage = [announce(None, rng.choice(versions), rng.randint(1, 60)) for _ in range(rng.randint(0, 2))]
        for _ in range(rng.randint(0, 10)):
            a, b = sorted(rng.sample(versions, 2))
            if a[0] < b[0]:
                lineage.append(announce(a, b, rng.randint(1, 20)))
        rng.shuffle(lineage)
        start = rng.choice([None, *versions])
        target = rng.choice(versions)
        path = resolve(lineage, start, target)
        expected = cheapest(lineage, start, target)
        if path is None:
            assert expected is None
            continue
        found += 1
        assert expected == (sum(a.payload_bytes for a in path), len(path))
        version = start
        for i, a in enumerate(path):
            assert a.base is not None or i == 0
            if a.base is not None:
                assert (a.base, a.base_digest) == version
            version = target_key(a)
        assert version == target
    assert found > 300


def test_resolve_to_the_current_version_is_empty() -> None:
    assert resolve([], (3, "d"), (3, "d")) == []


def test_resolve_distinguishes_forks_of_one_number() -> None:
    lineage = [announce((1, "a"), (2, "b"), 1)]
    assert resolve(lineage, (1, "z"), (2, "b")) is None
    assert resolve(lineage, (1, "a"), (2, "z")) is None


def test_resolve_prefers_fewer_manifests_at_equal_bytes() -> None:
    lineage = [announce((0, "a"), (1, "b"), 5), announce((1, "b"), (2, "c"), 5), announce((0, "a"), (2, "c"), 10)]
    assert resolve(lineage, (0, "a"), (2, "c")) == [lineage[2]]


def test_resolve_finds_a_long_chain() -> None:
    lineage = [announce(None, (0, "d"), 1000)] + [announce((v, "d"), (v + 1, "d"), 1) for v in range(500)]
    path = resolve(lineage, None, (500, "d"))
    assert path is not None and len(path) == 501


def test_newest_announcement_goes_by_epoch_version_and_payload() -> None:
    old, new = announce(None, (9, "a"), 1, epoch=1), announce(None, (3, "b"), 50, epoch=2)
    cheap = announce((2, "x"), (3, "b"), 5, epoch=2)
    assert newest_announcement([]) is None
    assert newest_announcement([new, old, cheap]) == cheap
