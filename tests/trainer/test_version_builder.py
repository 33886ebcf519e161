"""Building versions, also with a crash or an error in the middle."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trainer_parts import RUN, Arrays, StoreWithBuilder, spec

from p2psync.errors import StoreError
from p2psync.store.packs import Store
from p2psync.trainer.versions import snapshot as snapshots
from p2psync.trainer.versions.builder import LocalVersionBuilder

#: Where a snapshot may be interrupted; whether its tensors change, so that it is laid out anew.
POINTS = [
    ("_apply", False),
    ("check_outcome", False),
    ("_save", False),
    ("_apply", True),
    ("check_outcome", True),
    ("_save", True),
    ("_create", True),
]


class Crash(BaseException):
    """Raised as if the process ended here."""


@pytest.fixture
def trainer(tmp_path: Path) -> StoreWithBuilder:
    return StoreWithBuilder(tmp_path)


def test_versions_count_from_0_and_the_snapshot_follows(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=100_000, b=7, empty=0)
    for version in range(3):
        made = trainer.builder.make(source)
        assert made is not None
        assert (made.position.version, made.pack.manifest.base) == (version, version - 1 if version else None)
        trainer.holds(source, version)
        source.step()


def test_the_same_bits_make_no_version(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    assert trainer.builder.make(source) is None
    assert len(trainer.store.packs()) == 1


def test_tensors_may_come_go_and_change_their_shape(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000, b=500, c=1)
    trainer.builder.make(source)
    del source.bits[spec("b", 500)]
    source.add("b", 600)
    source.add("d", 3)
    del source.bits[spec("c", 1)]
    trainer.builder.make(source.step())
    trainer.holds(source, 1)
    trainer.again()
    trainer.holds(source, 1)
    trainer.builder.make(source.step())
    trainer.holds(source, 2)
    assert len(list((trainer.root / "snapshot").glob("bits-*"))) == 1


def test_a_restart_goes_on_where_it_was(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    trainer.builder.make(source.step())
    trainer.again()
    trainer.holds(source, 1)
    assert trainer.builder.make(source) is None


def owner_of(point: str) -> object:
    """Returns the owner of a step of a snapshot's change: the class, or its module."""
    return snapshots if hasattr(snapshots, point) else snapshots.Snapshot


@pytest.mark.parametrize(("point", "structural"), POINTS)
def test_a_crash_while_the_snapshot_changes_loses_no_durable_version(
    trainer: StoreWithBuilder, monkeypatch: pytest.MonkeyPatch, point: str, structural: bool
) -> None:
    source = Arrays(a=1000, b=10)
    trainer.builder.make(source)
    source.step()
    if structural:
        source.add("c", 50)
        del source.bits[spec("b", 10)]
    original: Callable[..., object] = getattr(owner_of(point), point)

    def crash(self: snapshots.Snapshot, *args: object) -> object:
        original(self, *args)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(owner_of(point), point, crash)
        # A crash leaves no time to give up the version.
        patch.setattr(Store, "remove", lambda self, id: None)
        with pytest.raises(Crash):
            trainer.builder.make(source)
    trainer.again()
    trainer.holds(source, 1)
    trainer.builder.make(source.step())
    trainer.holds(source, 2)


@pytest.mark.parametrize(("point", "structural"), POINTS)
def test_an_error_while_the_snapshot_changes_keeps_the_version_before(
    trainer: StoreWithBuilder, monkeypatch: pytest.MonkeyPatch, point: str, structural: bool
) -> None:
    source = Arrays(a=1000, b=10)
    trainer.builder.make(source)
    source.step()
    if structural:
        source.add("c", 50)
        del source.bits[spec("b", 10)]

    def refuse(self: snapshots.Snapshot, *args: object) -> object:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(owner_of(point), point, refuse)
        for _ in range(2):
            with pytest.raises(StoreError):
                trainer.builder.make(source)
    assert [pack.manifest.version for pack in trainer.store.packs()] == [0]
    made = trainer.builder.make(source)
    assert made is not None and made.position.version == 1
    trainer.holds(source, 1)


def test_a_source_that_changed_while_it_was_read_is_dropped(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    with pytest.raises(StoreError, match="changed while it was read"):
        trainer.builder.make(source.step(), settled=lambda: False)
    assert not list((trainer.root / "packs").glob("*.new"))
    assert trainer.builder.make(source) is not None


def test_giving_up_and_stopping_end_a_build_soon(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000, b=1000)
    with pytest.raises(StoreError, match="stopped"):
        trainer.builder.make(source, given_up=lambda: True)
    trainer.builder.stop()
    with pytest.raises(StoreError, match="stopped"):
        trainer.builder.make(source)
    assert trainer.builder.position is None


def test_a_lost_snapshot_is_rebuilt(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    trainer.builder.make(source.step())
    shutil.rmtree(trainer.root / "snapshot")
    trainer.again()
    trainer.holds(source, 1)


def test_an_anchor_decodes_to_its_version(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000, b=3)
    trainer.builder.make(source)
    made = trainer.builder.make(source.step())
    assert made is not None
    anchor = trainer.builder.make_anchor()
    assert anchor.position == made.position
    assert anchor.pack.manifest.base is None and anchor.pack.manifest.digest == source.digest


def test_a_damaged_snapshot_is_rebuilt_before_signing(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    trainer.builder.make(source.step())
    trainer.builder.snapshot.units(spec("a", 1000))[500] ^= 4
    assert trainer.builder.make_anchor().pack.manifest.digest == source.digest
    trainer.holds(source, 1)
    assert len(trainer.told) == 1 and "rebuilding the published bits" in trainer.told[0]


def test_an_anchor_of_nothing_is_an_error(trainer: StoreWithBuilder) -> None:
    with pytest.raises(StoreError, match="no version"):
        trainer.builder.make_anchor()


def test_a_store_of_another_key_is_refused(trainer: StoreWithBuilder) -> None:
    trainer.builder.make(Arrays(a=10))
    untrusted = Ed25519PrivateKey.from_private_bytes(bytes(32))
    with pytest.raises(StoreError, match="were signed with"):
        LocalVersionBuilder(trainer.store, trainer.root / "snapshot", untrusted, RUN)


def test_lost_versions_are_reported_and_their_numbers_never_reused(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=10)
    trainer.builder.make(source)
    trainer.store.remove(trainer.store.packs()[0].signed.id)
    trainer.again()
    assert "lost its versions" in trainer.told[-1]
    made = trainer.builder.make(source)  # the same bits, which nobody can get any more
    assert made is not None
    assert (made.position.version, made.pack.manifest.base) == (1, None)


def test_a_damaged_newest_pack_does_not_roll_the_snapshot_back(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    made = trainer.builder.make(source.step())
    assert made is not None
    payload = made.pack.path / "payload"
    trainer.builder.snapshot.close()
    trainer.store.close()
    (made.pack.path / "done").unlink()
    payload.write_bytes(bytes(payload.stat().st_size))
    trainer.open()
    trainer.holds(source, 1)
    again = trainer.builder.make(source.step())
    assert again is not None and again.position.version == 2


def test_the_bits_of_an_odd_dtype_are_kept(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=100)
    source.bits[spec("nan", 4)] = np.array([0x7FC1, 0xFFC1, 0x8000, 0x0000], np.uint16)
    trainer.builder.make(source)
    source.bits[spec("nan", 4)] = np.array([0x7FC2, 0xFFC1, 0x0000, 0x8000], np.uint16)
    trainer.builder.make(source)
    trainer.holds(source, 1)
