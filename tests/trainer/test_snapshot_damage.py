"""Bits of the trainer's snapshot flip: no undecodable version is signed, and the trainer rebuilds the snapshot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_parts import KEY, RUN, Arrays, StoreWithBuilder, spec

from p2psync.delta.algebra import apply_block
from p2psync.delta.container import decode_chunk
from p2psync.delta.digest import MODULUS, digest_bytes, digest_units
from p2psync.delta.kernels.block_sums import ScanSums
from p2psync.delta.tensors import TensorKind, TensorSpec, Units
from p2psync.errors import DigestMismatchError
from p2psync.observe.events import Event
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.versions.builder import LocalVersionBuilder, announcement_of
from p2psync.trainer.versions.scrubber import SnapshotScrubber
from p2psync.trainer.versions.snapshot import Snapshot

#: Units of more than one block, so that the last one is short.
MANY = (1 << 20) + 12_345


@pytest.fixture
def trainer(tmp_path: Path) -> StoreWithBuilder:
    return StoreWithBuilder(tmp_path)


def decoded(store: Store) -> dict[TensorSpec, Units]:
    """Returns the weights of an actor that starts from nothing: the newest anchor and all deltas from it.

    Checks that each has the digest that its manifest signs."""
    packs = [pack for pack in store.packs() if pack.sealed]
    anchor = max((pack for pack in packs if pack.manifest.base is None), key=lambda pack: pack.manifest.version)
    live = {row.spec: np.zeros(row.spec.count, row.spec.unit) for row in anchor.manifest.rows()}
    run(anchor, live)
    at = anchor.manifest.version
    while (delta := next((pack for pack in packs if pack.manifest.base == at), None)) is not None:
        run(delta, live)
        at = delta.manifest.version
    return live


def run(pack: Pack, live: dict[TensorSpec, Units]) -> None:
    """Apply one manifest as an actor does."""
    manifest = pack.manifest
    rows = manifest.rows()
    for index in range(manifest.chunks):
        data = pack.read(index)
        assert data is not None
        for block in decode_chunk(data, rows, manifest.block_units, lambda row: live[rows[row].spec]):
            apply_block(live[rows[block.row].spec], block)
    assert digest_bytes(sum(digest_units(s, u) for s, u in live.items()) % MODULUS) == manifest.digest


def everyone_gets(trainer: StoreWithBuilder, source: Arrays) -> None:
    live = decoded(trainer.store)
    for name, bits in source.bits.items():
        np.testing.assert_array_equal(live[name], bits)


def flip(trainer: StoreWithBuilder, name: TensorSpec, unit: int, bit: int) -> None:
    """Flip a bit of the snapshot in memory."""
    units = trainer.builder.snapshot.units(name)
    units[unit] ^= np.array(1 << bit, units.dtype)


@pytest.mark.parametrize("profile", ["fast", "tight"])
@pytest.mark.parametrize("changes", [True, False])
def test_a_flipped_bit_is_found_before_the_next_version_is_signed(
    trainer: StoreWithBuilder, profile: str, changes: bool
) -> None:
    """The flipped unit is found whether or not the training changes it too."""
    source = Arrays(a=MANY, b=7)
    trainer.builder.make(source)
    flip(trainer, spec("a", MANY), MANY - 1, 9)
    source.step()
    source.bits[spec("a", MANY)][MANY - 1] += changes
    made = trainer.builder.make(source, profile=profile)
    assert made is not None and (made.position.version, made.position.digest) == (1, source.digest)
    trainer.holds(source, 1)
    everyone_gets(trainer, source)
    assert trainer.told == ["the snapshot is damaged in block 1 of a: rebuilding the published bits from the store"]


@settings(max_examples=25)
@given(
    where=st.lists(st.tuples(st.integers(0, 29_999), st.integers(0, 63)), min_size=1, max_size=3),
    dtype=st.sampled_from(["U8", "BF16", "F32", "F64"]),
)
def test_no_flips_of_any_dtype_reach_a_version(
    tmp_path_factory: pytest.TempPathFactory, where: object, dtype: str
) -> None:
    assert isinstance(where, list)
    trainer = StoreWithBuilder(tmp_path_factory.mktemp("bench"))
    try:
        odd = TensorSpec(int(TensorKind.TENSOR), "odd", dtype, (30_000,))
        source = Arrays(a=10)
        source.bits[odd] = source.rng.integers(0, 256, 30_000 * odd.width, np.uint8).view(odd.unit)
        trainer.builder.make(source)
        for unit, bit in where:
            flip(trainer, odd, unit, bit % (8 * odd.width))
        trainer.builder.make(source.step())
        trainer.holds(source, 1)
        everyone_gets(trainer, source)
    finally:
        trainer.store.close()


def test_a_bit_flipped_on_disk_is_found_at_the_start(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    trainer.builder.make(source.step())
    trainer.builder.snapshot.close()
    bits = next((trainer.root / "snapshot").glob("bits-*"))
    damaged = bytearray(bits.read_bytes())
    damaged[100] ^= 1
    bits.write_bytes(damaged)
    trainer.again()
    trainer.holds(source, 1)


@pytest.mark.parametrize("state", [b"", b"\xc1 no state"])
def test_a_broken_state_file_rebuilds_the_snapshot(trainer: StoreWithBuilder, state: bytes) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    trainer.builder.make(source.step())
    (trainer.root / "snapshot" / "state").write_bytes(state)
    trainer.again()
    trainer.holds(source, 1)


def undecodable(trainer: StoreWithBuilder, source: Arrays, monkeypatch: pytest.MonkeyPatch, versions: int) -> None:
    """Returns versions as a trainer signs them that trusts its snapshot, one bit of which has flipped."""
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "check", lambda self, spec, scan: None)
        flip(trainer, spec("a", 1000), 500, 3)
        for _ in range(versions):
            source.bits[spec("a", 1000)][500] += 1
            trainer.builder.make(source.step())


def test_undecodable_versions_are_dropped_and_the_next_one_is_an_anchor(
    trainer: StoreWithBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Arrays(a=1000, b=3)
    trainer.builder.make(source)
    good = source.digest
    undecodable(trainer, source, monkeypatch, 6)
    with pytest.raises(AssertionError):
        decoded(trainer.store)
    trainer.again()
    bits = next((trainer.root / "snapshot").glob("bits-*"))
    bits.write_bytes(bytes(bits.stat().st_size))
    trainer.again()
    position = trainer.builder.position
    assert position is not None and (position.version, position.digest) == (0, good)
    assert [pack.manifest.version for pack in trainer.store.packs()] == [0]
    made = trainer.builder.make(source)
    assert made is not None
    assert (made.position.version, made.pack.manifest.base, made.position.digest) == (7, None, source.digest)
    everyone_gets(trainer, source)
    trainer.builder.make(source.step())
    everyone_gets(trainer, source)
    assert any("version 7 is written out whole" in line for line in trainer.told)


def test_a_store_without_a_path_goes_on_with_an_anchor(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    trainer.builder.make(source.step())
    for pack in trainer.store.packs():
        payload = pack.path / "payload"
        payload.write_bytes(bytes(payload.stat().st_size))
    trainer.builder.snapshot.close()
    (trainer.root / "snapshot" / "state").unlink()
    trainer.again()
    assert trainer.builder.position is None
    made = trainer.builder.make(source)
    assert made is not None and (made.position.version, made.pack.manifest.base) == (2, None)
    everyone_gets(trainer, source)


def test_an_anchor_that_does_not_decode_to_its_bits_is_not_announced(
    trainer: StoreWithBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Arrays(a=100_000)
    trainer.builder.make(source)
    original = Pack.read

    def rotten(self: Pack, index: int) -> bytes | None:
        data = original(self, index)
        return data[:-1] + bytes([data[-1] ^ 1]) if data is not None and self.manifest.version == 1 else data

    trainer.builder.make(source.step())
    with monkeypatch.context() as patch:
        patch.setattr(Pack, "read", rotten)
        with pytest.raises(Exception, match=r".") as raised:
            trainer.builder.make_anchor()
    assert raised.value is not None
    assert [pack.manifest.base for pack in trainer.store.packs()] == [None, 0]
    trainer.builder.make_anchor()
    trainer.holds(source, 1)


def test_a_scan_that_misses_a_change_is_found(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=5000)
    trainer.builder.make(source)
    scan = ScanSums(spec("a", 5000))
    record = trainer.builder.snapshot
    assert isinstance(record, Snapshot)
    from p2psync.delta.extract import Extraction

    old = record.units(spec("a", 5000))
    new = old.copy()
    new[77] += 3
    Extraction(0, old, new).block_with_digest(spec("a", 5000), 0, 5000, scan.address)
    record.check(spec("a", 5000), scan)
    scan._rows[0, 4, 0] -= 3
    with pytest.raises(DigestMismatchError, match="missed a change"):
        record.check(spec("a", 5000), scan)


async def test_the_scrub_finds_a_flipped_bit_while_nothing_is_published(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=MANY, b=7)
    trainer.builder.make(source)
    flip(trainer, spec("a", MANY), 3, 0)
    rounds = 0
    mended: list[bool] = []
    events: list[Event] = []

    async def sleep(seconds: float) -> None:
        nonlocal rounds
        rounds += seconds >= 30
        if rounds == 2:
            raise asyncio.CancelledError

    scrubber = SnapshotScrubber(trainer.builder, asyncio.Lock(), lambda: mended.append(True), events.append)
    with pytest.raises(asyncio.CancelledError):
        await scrubber.run(sleep)
    trainer.holds(source, 0)
    assert mended == [True] and not events
    assert trainer.told == ["the snapshot is damaged in block 0 of a: rebuilding the published bits from the store"]


def test_the_scrub_agrees_with_every_version_as_it_comes(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=MANY, b=7)
    for version in range(3):
        trainer.builder.make(source, profile="tight")
        for _ in range(version + 1):
            trainer.builder.scrub()
        source.step()
    while trainer.builder.scrub():
        pass
    assert not trainer.told


def test_a_snapshot_that_loses_writes_raises_an_error_about_the_disk(
    trainer: StoreWithBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Arrays(a=1000)
    trainer.builder.make(source)
    assert LocalVersionBuilder(trainer.store, trainer.root / "other", KEY, RUN).position == trainer.builder.position
    assert announcement_of(trainer.store.packs()[0].signed, trainer.store.packs()[0].manifest).version == 0
