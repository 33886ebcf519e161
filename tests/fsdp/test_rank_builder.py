"""Ranks build together the versions that one process builds, for any tensors and any sharding."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from fsdp_parts import KEY, same_chunks, same_manifest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ThreadedRanks, Trained

from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.errors import DigestMismatchError, P2PSyncError, RanksError, StoreError
from p2psync.store import segments
from p2psync.store.packs import Store
from p2psync.trainer.fsdp.orders import agree_on_version
from p2psync.trainer.fsdp.rank_builder import RankBuilder
from p2psync.trainer.versions.builder import LocalVersionBuilder

RUN = "0" * 11 + "1" + "a" * 20
#: Several segments of either grid, with block bounds inside shards and shard bounds inside blocks.
SHAPES = [("a", "BF16", (301, 4099)), ("b", "BF16", (7,)), ("c", "F32", (257, 1025)), ("d", "BF16", (1,))]
SHAPES += [("e", "U8", (3, 2)), ("f", "BF16", (703, 3000)), ("g", "BF16", (0, 5))]


def specs(shapes: list[tuple[str, str, tuple[int, ...]]]) -> list[TensorSpec]:
    return [TensorSpec(int(TensorKind.TENSOR), *shape) for shape in shapes]


@settings(max_examples=8, deadline=None)
@given(
    ranks=st.integers(1, 5),
    profile=st.sampled_from(["fast", "tight"]),
    shares=st.lists(st.sampled_from([0.0005, 0.02, 0.6, 1.0]), min_size=2, max_size=2),
    seed=st.integers(0, 99),
)
def test_any_sharding_builds_the_bytes_of_one_process(ranks: int, profile: str, shares: list[float], seed: int) -> None:
    trained = Trained(specs(SHAPES), ranks, seed)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MIN_SEGMENT_BYTES", 1 << 20)
        one_store = Store(Path(place) / "one" / "packs")
        one = LocalVersionBuilder(one_store, Path(place) / "one" / "snapshot", KEY, RUN, 1)
        threaded = ThreadedRanks(Path(place), trained)
        parts = threaded.first(RUN)
        made = one.make(trained, profile=profile)
        for share in [*shares, 0.0]:
            assert made is not None
            same_manifest(parts[0].manifest, made.pack.manifest)
            same_chunks(parts, made.pack)
            trained.step(share)
            parts, made = threaded.delta(profile), one.make(trained, profile=profile)
        assert (parts, made) == ([], None)  # nothing had changed any more
        anchor = one.make_anchor()
        parts = threaded.anchor(anchor.position)
        same_manifest(parts[0].manifest, anchor.pack.manifest)
        same_chunks(parts, anchor.pack)
        threaded.close()
        one.close()
        one_store.close()


@pytest.fixture
def threaded(tmp_path: Path) -> ThreadedRanks:
    made = ThreadedRanks(tmp_path, Trained(specs([("a", "BF16", (3001, 4099)), ("b", "BF16", (9,))]), 3))
    made.first(RUN)
    made.trained.step(0.01)
    return made


def ids(threaded: ThreadedRanks) -> list[set[bytes]]:
    return [{pack.signed.id for pack in store.packs()} for store in threaded.stores]


def agreed(threaded: ThreadedRanks) -> list[tuple[int | None, int]]:
    """Returns the agreement of ranks at a start: the version of the snapshots, and the newest number."""
    found = threaded.everywhere(lambda m: agree_on_version(m.ranks, m.store, m.snapshot, RUN))
    assert not any(isinstance(one, Exception) for one in found)
    return [(None if one[0] is None else one[0].version, one[1]) for one in found]  # type: ignore[index]


def again(threaded: ThreadedRanks) -> None:
    """Close and open all ranks, as a restart does."""
    threaded.close()
    threaded.open()


def fail_at(threaded: ThreadedRanks, rank: int, where: str, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Makes one rank fail at a step."""
    rank_builder = threaded.rank_builders[rank]
    target = {
        "draft": rank_builder.store,
        "begin_change": rank_builder.snapshot,
        "end_change": rank_builder.snapshot,
    }.get(where, rank_builder)

    def fail(*_: object) -> None:
        if isinstance(error, RanksError):
            rank_builder.ranks.hang_up()  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(target, where, fail)


@pytest.mark.parametrize("where", ["draft", "_encode", "_advance"])
def test_a_failure_at_one_rank_fails_all_ranks_and_can_be_retried(
    threaded: ThreadedRanks, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(threaded)
    with monkeypatch.context() as patch:
        fail_at(threaded, 1, where, patch, StoreError("the disk is full"))
        outcomes = threaded.everywhere(
            lambda m: m.delta(threaded.part(m.ranks.rank), _base(m), profile="tight", epoch=1)
        )
    assert [str(outcome) for outcome in outcomes] == [f"{who}the disk is full" for who in ("rank 1: ", "", "rank 1: ")]
    assert ids(threaded) == before
    assert not list(threaded.place.glob("*/packs/draft-*"))
    if where == "_advance":  # copies may be half way: the next version is written out whole
        assert agreed(threaded) == [(None, 1)] * 3
        assert {pack.manifest.kind for pack in threaded.first(RUN, 2)} == {"anchor"}
    else:
        assert {pack.manifest.version for pack in threaded.delta("tight")} == {1}


@pytest.mark.parametrize("where", ["draft", "_gather_reports", "_seal", "begin_change", "_advance", "end_change"])
def test_a_rank_lost_at_any_step_leaves_no_version(
    threaded: ThreadedRanks, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(threaded)
    with monkeypatch.context() as patch:
        fail_at(threaded, 2, where, patch, RanksError("gone"))
        outcomes = threaded.everywhere(
            lambda m: m.delta(threaded.part(m.ranks.rank), _base(m), profile="fast", epoch=1)
        )
    assert all(isinstance(outcome, P2PSyncError) for outcome in outcomes)
    again(threaded)
    found = agreed(threaded)
    assert len(set(found)) == 1
    if found[0][0] is None:
        assert ids(threaded) == [set()] * 3
        newest = found[0][1]
        assert newest in (0, 1)  # the number of a version that was never announced may come again
        assert {pack.manifest.kind for pack in threaded.first(RUN, newest + 1)} == {"anchor"}
    else:
        assert (ids(threaded), found[0]) == (before, (0, 0))
        assert {pack.manifest.version for pack in threaded.delta("fast")} == {1}


def _base(rank_builder: RankBuilder):  # type: ignore[no-untyped-def]
    assert rank_builder.snapshot.position is not None
    return rank_builder.snapshot.position


def test_a_restart_goes_on_with_deltas(threaded: ThreadedRanks) -> None:
    threaded.delta("tight")
    held = ids(threaded)
    again(threaded)
    assert agreed(threaded) == [(1, 1)] * 3
    assert ids(threaded) == held
    threaded.trained.step(0.01)
    assert {(pack.manifest.base, pack.manifest.version) for pack in threaded.delta("tight")} == {(1, 2)}


def test_a_lost_store_makes_the_next_version_an_anchor(threaded: ThreadedRanks) -> None:
    threaded.delta("tight")
    threaded.close()
    (threaded.place / "1" / "copy" / "state").unlink()
    threaded.open()
    assert agreed(threaded) == [(None, 1)] * 3
    assert ids(threaded) == [set()] * 3


@pytest.mark.parametrize("owned", [True, False])
def test_a_bit_flipped_in_a_rank_snapshot_is_never_announced(threaded: ThreadedRanks, owned: bool) -> None:
    """The flipped unit changes: the result of its holder, or its owner, disagrees with the others."""
    layout, row = threaded.layout, 0
    theirs = layout.delta.unit_ranges(layout.delta_owners, 1)
    place = next(iter(theirs - layout.held[1] if owned else layout.held[1] - theirs))
    threaded.rank_builders[1].snapshot.units(layout.specs[row])[place[1]] ^= 4
    threaded.trained.bits[layout.specs[row]][place[1]] += 1
    outcomes = threaded.everywhere(lambda m: m.delta(threaded.part(m.ranks.rank), _base(m), profile="tight", epoch=1))
    assert {type(outcome) for outcome in outcomes} == {DigestMismatchError}
    assert agreed(threaded)[0][0] is None
    parts = threaded.first(RUN, 2)
    assert parts[0].manifest.version == 2


def test_no_rank_touches_units_that_it_neither_holds_nor_owns(threaded: ThreadedRanks) -> None:
    threaded.delta("tight")
    for rank, rank_builder in enumerate(threaded.rank_builders):
        kept = threaded.layout.kept(rank)
        for row, spec in enumerate(threaded.layout.specs):
            bits = rank_builder.snapshot.units(spec).copy()
            for start, stop in kept.row(row):
                bits[start:stop] = 0
            assert not bits.any()
        blocks = (threaded.place / str(rank) / "copy" / "bits").stat().st_blocks * 512
        wanted = sum((stop - start) * threaded.layout.specs[row].width for row, start, stop in kept)
        assert wanted <= blocks <= wanted + (64 << 10)
        assert np.count_nonzero(bits) == 0
