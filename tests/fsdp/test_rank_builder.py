"""What ranks make together is what one process makes, whatever the tensors and however they are cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from fsdp_parts import KEY, same_chunks, same_manifest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ShardedBench, Trained

from p2psync.delta.tensors import Kind, TensorSpec
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
    return [TensorSpec(int(Kind.TENSOR), *shape) for shape in shapes]


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
        bench = ShardedBench(Path(place), trained)
        parts = bench.first(RUN)
        made = one.make(trained, profile=profile)
        for share in [*shares, 0.0]:
            assert made is not None
            same_manifest(parts[0].manifest, made.pack.manifest)
            same_chunks(parts, made.pack)
            trained.step(share)
            parts, made = bench.delta(profile), one.make(trained, profile=profile)
        assert (parts, made) == ([], None)  # nothing had changed any more
        anchor = one.make_anchor()
        parts = bench.anchor(anchor.position)
        same_manifest(parts[0].manifest, anchor.pack.manifest)
        same_chunks(parts, anchor.pack)
        bench.close()
        one.close()
        one_store.close()


@pytest.fixture
def bench(tmp_path: Path) -> ShardedBench:
    made = ShardedBench(tmp_path, Trained(specs([("a", "BF16", (3001, 4099)), ("b", "BF16", (9,))]), 3))
    made.first(RUN)
    made.trained.step(0.01)
    return made


def ids(bench: ShardedBench) -> list[set[bytes]]:
    return [{pack.signed.id for pack in store.packs()} for store in bench.stores]


def agreed(bench: ShardedBench) -> list[tuple[int | None, int]]:
    """What ranks agree on at a start: the version of the copies, and the newest number."""
    found = bench.everywhere(lambda m: agree_on_version(m.ranks, m.store, m.snapshot, RUN))
    assert not any(isinstance(one, Exception) for one in found)
    return [(None if one[0] is None else one[0].version, one[1]) for one in found]  # type: ignore[index]


def again(bench: ShardedBench) -> None:
    """What a restart of all ranks does."""
    bench.close()
    bench.open()


def fail_at(bench: ShardedBench, rank: int, where: str, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Have one rank fail at a step."""
    rank_builder = bench.rank_builders[rank]
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
    bench: ShardedBench, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(bench)
    with monkeypatch.context() as patch:
        fail_at(bench, 1, where, patch, StoreError("the disk is full"))
        outcomes = bench.everywhere(lambda m: m.delta(bench.part(m.ranks.rank), _base(m), profile="tight", epoch=1))
    assert [str(outcome) for outcome in outcomes] == [f"{who}the disk is full" for who in ("rank 1: ", "", "rank 1: ")]
    assert ids(bench) == before
    assert not list(bench.place.glob("*/packs/draft-*"))
    if where == "_advance":  # copies may be half way: the next version is written out whole
        assert agreed(bench) == [(None, 1)] * 3
        assert {pack.manifest.kind for pack in bench.first(RUN, 2)} == {"anchor"}
    else:
        assert {pack.manifest.version for pack in bench.delta("tight")} == {1}


@pytest.mark.parametrize("where", ["draft", "_gather_reports", "_seal", "begin_change", "_advance", "end_change"])
def test_a_rank_lost_at_any_step_leaves_no_version(
    bench: ShardedBench, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(bench)
    with monkeypatch.context() as patch:
        fail_at(bench, 2, where, patch, RanksError("gone"))
        outcomes = bench.everywhere(lambda m: m.delta(bench.part(m.ranks.rank), _base(m), profile="fast", epoch=1))
    assert all(isinstance(outcome, P2PSyncError) for outcome in outcomes)
    again(bench)
    found = agreed(bench)
    assert len(set(found)) == 1
    if found[0][0] is None:
        assert ids(bench) == [set()] * 3
        newest = found[0][1]
        assert newest in (0, 1)  # of what was never announced the number may come again
        assert {pack.manifest.kind for pack in bench.first(RUN, newest + 1)} == {"anchor"}
    else:
        assert (ids(bench), found[0]) == (before, (0, 0))
        assert {pack.manifest.version for pack in bench.delta("fast")} == {1}


def _base(rank_builder: RankBuilder):  # type: ignore[no-untyped-def]
    assert rank_builder.snapshot.position is not None
    return rank_builder.snapshot.position


def test_a_restart_goes_on_with_deltas(bench: ShardedBench) -> None:
    bench.delta("tight")
    held = ids(bench)
    again(bench)
    assert agreed(bench) == [(1, 1)] * 3
    assert ids(bench) == held
    bench.trained.step(0.01)
    assert {(pack.manifest.base, pack.manifest.version) for pack in bench.delta("tight")} == {(1, 2)}


def test_a_lost_store_makes_the_next_version_an_anchor(bench: ShardedBench) -> None:
    bench.delta("tight")
    bench.close()
    (bench.place / "1" / "copy" / "state").unlink()
    bench.open()
    assert agreed(bench) == [(None, 1)] * 3
    assert ids(bench) == [set()] * 3


@pytest.mark.parametrize("owned", [True, False])
def test_a_bit_flipped_in_a_rank_snapshot_is_never_announced(bench: ShardedBench, owned: bool) -> None:
    """Where a rank holds or owns what changes: what it finds, or decodes, is not what the others say."""
    layout, row = bench.layout, 0
    theirs = layout.delta.unit_ranges(layout.delta_owners, 1)
    place = next(iter(theirs - layout.held[1] if owned else layout.held[1] - theirs))
    bench.rank_builders[1].snapshot.units(layout.specs[row])[place[1]] ^= 4
    bench.trained.bits[layout.specs[row]][place[1]] += 1
    outcomes = bench.everywhere(lambda m: m.delta(bench.part(m.ranks.rank), _base(m), profile="tight", epoch=1))
    assert {type(outcome) for outcome in outcomes} == {DigestMismatchError}
    assert agreed(bench)[0][0] is None
    parts = bench.first(RUN, 2)
    assert parts[0].manifest.version == 2


def test_no_rank_touches_units_that_it_neither_holds_nor_owns(bench: ShardedBench) -> None:
    bench.delta("tight")
    for rank, rank_builder in enumerate(bench.rank_builders):
        kept = bench.layout.kept(rank)
        for row, spec in enumerate(bench.layout.specs):
            bits = rank_builder.snapshot.units(spec).copy()
            for start, stop in kept.row(row):
                bits[start:stop] = 0
            assert not bits.any()
        blocks = (bench.place / str(rank) / "copy" / "bits").stat().st_blocks * 512
        wanted = sum((stop - start) * bench.layout.specs[row].width for row, start, stop in kept)
        assert wanted <= blocks <= wanted + (64 << 10)
        assert np.count_nonzero(bits) == 0
