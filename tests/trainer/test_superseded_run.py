"""A run that goes on from another run's versions, also after a crash at any point."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from trainer_parts import KEY, RUN, Arrays

from p2psync.errors import UsageError
from p2psync.store.packs import Store
from p2psync.trainer.run_state import RunState
from p2psync.trainer.versions.builder import LocalVersionBuilder

NEXT = "0" * 11 + "9" + "b" * 20


class RunInStore:
    """A version builder of a run over a store at a path."""

    def __init__(self, root: Path, run: str, epoch: int) -> None:
        self.store = Store(root / "packs")
        try:
            self.builder = LocalVersionBuilder(self.store, root / "snapshot", KEY, run, epoch)
        except BaseException:
            self.store.close()
            raise

    def close(self) -> None:
        self.builder.close()
        self.store.close()


def make(
    root: Path, source: Arrays, run: str = RUN, epoch: int = 1, *, versions: int = 0, anchor: bool = False
) -> RunInStore:
    """Open a builder, and have it make versions or an anchor."""
    made = RunInStore(root, run, epoch)
    if anchor:
        made.builder.make_anchor()
    for _ in range(versions):
        assert made.builder.make(source.step()) is not None
    return made


def test_a_superseding_run_begins_with_an_anchor_of_the_old_runs_newest_version(tmp_path: Path) -> None:
    source = Arrays(one=3000)
    make(tmp_path, source, versions=3).close()
    later = make(tmp_path, source, NEXT, 2, anchor=True)
    begun = later.builder.position
    assert begun is not None and (begun.run, begun.epoch, begun.version) == (NEXT, 2, 2)
    assert begun.digest == source.digest
    made = later.builder.make(source.step())
    assert made is not None
    m = made.pack.manifest
    assert (m.run, m.epoch, m.base, m.version, m.base_digest) == (NEXT, 2, 2, 3, begun.digest)
    assert later.builder.position == made.position and made.position.digest == source.digest
    later.close()


@pytest.mark.parametrize("lost", ["nothing", "snapshot", "packs before"])
@pytest.mark.parametrize(("anchor", "versions"), [(False, 0), (True, 0), (True, 2)])
def test_a_superseding_run_survives_a_crash_at_any_point(
    tmp_path: Path, lost: str, anchor: bool, versions: int
) -> None:
    """anchor, versions: how far the new run got. lost: which part of the store is gone."""
    source = Arrays(one=3000)
    make(tmp_path, source, versions=3).close()
    make(tmp_path, source, NEXT, 2, anchor=anchor, versions=versions).close()
    if lost == "snapshot":
        shutil.rmtree(tmp_path / "snapshot")
    if lost == "packs before" and anchor:
        store = Store(tmp_path / "packs")
        for pack in store.packs():
            if pack.manifest.run == RUN:
                store.remove(pack.signed.id)
        store.close()
    again = make(tmp_path, source, NEXT, 3)
    position = again.builder.position
    assert position is not None
    assert (position.run, position.version, position.digest) == (NEXT, 2 + versions, source.digest)
    again.builder.make(source.step())
    assert again.builder.position.digest == source.digest and again.builder.position.version == 3 + versions
    again.close()


def test_a_snapshot_of_the_run_before_is_brought_up_though_its_epoch_is_higher(tmp_path: Path) -> None:
    """Epochs of two runs are not compared: the process ended between a delta of the new run and its snapshot."""
    source = Arrays(one=3000)
    make(tmp_path, source, epoch=9, versions=3).close()
    shutil.copytree(tmp_path / "snapshot", tmp_path / "before")
    make(tmp_path, source, NEXT, 1, anchor=True, versions=1).close()
    shutil.rmtree(tmp_path / "snapshot")
    (tmp_path / "before").rename(tmp_path / "snapshot")
    again = make(tmp_path, source, NEXT, 2)
    assert again.builder.position is not None and again.builder.position.digest == source.digest
    again.close()


def test_a_store_that_lost_its_versions_goes_on_from_the_bits_that_were_published_last(tmp_path: Path) -> None:
    source = Arrays(one=3000)
    make(tmp_path, source, versions=1).close()
    shutil.rmtree(tmp_path / "packs")
    again = make(tmp_path, source, NEXT)
    assert again.builder.begins_from_another_run
    assert again.builder.position is not None and again.builder.position.digest == source.digest
    assert again.builder.make_anchor().position.run == NEXT
    again.close()


def test_superseding_happens_once_at_any_clock() -> None:
    state = RunState(RUN, 4, "ab" * 16)
    newer = "0" * 11 + "5"
    done = state.superseding(newer, 3, bytes(10))
    assert newer < done.run[:12] and (done.epoch, done.node) == (4, state.node)
    assert done.superseding(newer, 99, bytes(10)) is done
    assert state.superseding("0" * 12, 99, bytes(10)) is state, "it is newer already"
    own = state.superseding(RUN[:12], 0, bytes(10))
    assert own.run > RUN, "a store that is older than what was published from it may supersede its own run"
    with pytest.raises(UsageError):
        state.superseding("f" * 12, 0, bytes(10))
