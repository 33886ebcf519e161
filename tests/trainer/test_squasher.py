"""Squashes made of a trainer's own deltas, `fast` and `tight` mixed: exact, checked, and never in the way."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from crash_parts import run_in_child
from trainer_parts import KEY, RUN, Arrays, Bench, spec

from p2psync.delta.algebra import apply_with_digest
from p2psync.delta.container import decode_chunk
from p2psync.delta.tensors import Row, TensorSpec, Units
from p2psync.errors import DigestMismatchError, FormatError, P2PSyncError, StoreError
from p2psync.store.encoding import Encoding, rows_between
from p2psync.store.pack import Pack
from p2psync.trainer.squash import squasher as module
from p2psync.trainer.squash.planner import SquashPlan, SquashPlanner
from p2psync.trainer.squash.squasher import BuiltSquash, Squasher, SquashPreempted
from p2psync.trainer.versions.builder import announcement_of

Version = dict[TensorSpec, Units]


class Sink(list[bytes]):
    """Chunks in memory."""


class Publishing(Bench):
    """A bench whose versions change much the same units each time, as steps of training do."""

    def __init__(self, place: Path, **shapes: int) -> None:
        super().__init__(place)
        self.source = Arrays(**(shapes or {"a": 300_000, "b": 700}))
        self.hot = {name: self.source.rng.random(bits.size) < 0.02 for name, bits in self.source.bits.items()}
        self.versions: list[Version] = []

    def publish(self, profile: str = "fast") -> Pack:
        """The next version, half of whose hot units move up or down."""
        rng = self.source.rng
        for name, bits in self.source.bits.items() if self.versions else ():
            where = self.hot[name] & (rng.random(bits.size) < 0.5)
            bits[where] += rng.choice(np.array([1, 0xFFFF], np.uint16), int(where.sum()))
        return self.keep(profile)

    def keep(self, profile: str) -> Pack:
        """Publish the source as it is."""
        made = self.builder.make(self.source, profile=profile)
        assert made is not None
        self.versions.append({name: bits.copy() for name, bits in self.source.bits.items()})
        return made.pack

    def plan(self, base: int, head: int) -> SquashPlan:
        """The squash from one version to another."""
        packs = {p.manifest.version: p for p in self.store.packs() if p.manifest.base == p.manifest.version - 1}
        chain = [packs[version] for version in range(base + 1, head + 1)]
        return SquashPlan(tuple(announcement_of(p.signed, p.manifest) for p in chain), 0.0)

    def squash(self, base: int, head: int, least_bytes: int = 0, profile: str = "fast") -> BuiltSquash | None:
        """Make it."""
        bits = self.builder.snapshot.units if profile == "tight" else None
        return self.squasher(least_bytes).make(self.plan(base, head), bits)

    def squasher(self, least_bytes: int = 0) -> Squasher:
        """What makes it."""
        return Squasher(self.store, self.builder.delta_records, KEY, SquashPlanner(least_bytes))


@pytest.fixture
def bench(tmp_path: Path) -> Publishing:
    return Publishing(tmp_path)


def chunks_of(old: Version, new: Version, profile: str = "fast") -> list[bytes]:
    """The chunks of the delta that extraction makes between two versions."""
    sink = Sink()
    rows = rows_between(sorted(old), sorted(new))
    encoding = Encoding(sink, rows, profile=profile)
    for index, row in enumerate(rows):
        encoding.take(index, old.get(row.spec), new.get(row.spec))
    encoding.finish()
    return sink


def read(pack: Pack) -> list[bytes]:
    found = [pack.read(index) for index in range(pack.manifest.chunks)]
    assert all(data is not None for data in found)
    return [data for data in found if data is not None]


@pytest.mark.parametrize("profile", ["fast", "tight"])
@pytest.mark.parametrize("profiles", ["ffff", "tttt", "tftf"])
def test_a_squash_is_the_delta_between_its_ends(bench: Publishing, profiles: str, profile: str) -> None:
    bench.publish()
    kinds = {"f": "fast", "t": "tight"}
    for short in profiles:
        assert bench.publish(kinds[short]).manifest.profile == kinds[short]
    made = bench.squash(1, 4, profile=profile)
    assert made is not None
    m = made.pack.manifest
    assert read(made.pack) == chunks_of(bench.versions[1], bench.versions[4], profile)
    assert m.profile == profile
    assert (m.base, m.version, m.run, m.epoch) == (1, 4, RUN, 1)
    assert (m.base_digest, m.digest) == (bytes.fromhex(bench.plan(1, 2).chain[0].base_digest), bench.source.digest)
    assert made.chain_bytes > m.payload_bytes == sum(m.sizes)
    assert bench.store.get(made.pack.signed.id) is made.pack


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_tensors_that_come_and_go_are_squashed_too(bench: Publishing, profile: str) -> None:
    bench.publish()
    bench.publish("tight")
    bench.source.add("new", 500)
    bench.hot[spec("new", 500)] = np.ones(500, np.bool_)
    bench.keep("tight")
    bench.publish("tight")
    del bench.source.bits[spec("b", 700)]
    bench.keep("tight")
    made = bench.squash(0, 4, profile=profile)
    assert made is not None and read(made.pack) == chunks_of(bench.versions[0], bench.versions[4], profile)


@pytest.mark.parametrize("other", [0, 2])
def test_a_squash_from_wrong_head_bits_is_refused(bench: Publishing, other: int) -> None:
    bench.publish()
    for _ in range(3):
        bench.publish("tight")
    bits = bench.versions[other]
    with pytest.raises(P2PSyncError):
        bench.squasher().make(bench.plan(0, 3), lambda name: bits[name])
    assert len(bench.store.packs()) == 4 and not list((bench.place / "packs").glob("draft-*"))


def test_a_waiting_publish_preempts_a_squash(bench: Publishing) -> None:
    bench.publish()
    for _ in range(3):
        bench.publish("tight")
    asked = iter([False, True])
    with pytest.raises(SquashPreempted):
        bench.squasher().make(bench.plan(0, 3), bench.builder.snapshot.units, lambda: next(asked))
    assert len(bench.store.packs()) == 4 and not list((bench.place / "packs").glob("draft-*"))
    bench.publish("tight")


def test_tight_deltas_are_recorded_as_they_are_published_and_records_go_with_their_packs(bench: Publishing) -> None:
    records = bench.place / "steps"
    bench.publish()
    packs = [bench.publish(profile) for profile in ("tight", "fast", "tight")]
    assert {path.name for path in records.iterdir()} == {packs[0].path.name, packs[2].path.name}
    bench.store.remove(packs[0].signed.id)
    bench.publish()
    assert {path.name for path in records.iterdir()} == {packs[2].path.name}


def test_a_restart_finds_the_records_and_clears_away_what_was_half_written(bench: Publishing) -> None:
    bench.publish()
    for _ in range(3):
        bench.publish("tight")
    (bench.place / "steps" / ".half.1.tmp").write_bytes(b"x")
    bench.again()
    assert not (bench.place / "steps" / ".half.1.tmp").exists()
    made = bench.squash(0, 3)
    assert made is not None and read(made.pack) == chunks_of(bench.versions[0], bench.versions[3])


@pytest.mark.parametrize("what", ["gone", "damaged", "of another version"])
def test_without_a_sound_record_of_a_tight_delta_there_is_no_squash_across_it(bench: Publishing, what: str) -> None:
    bench.publish()
    packs = [bench.publish("tight") for _ in range(3)]
    records = [bench.place / "steps" / pack.path.name for pack in packs]
    if what == "gone":
        records[1].unlink()
    elif what == "damaged":
        data = bytearray(records[1].read_bytes())
        data[100] ^= 1
        records[1].write_bytes(data)
    else:
        shutil.copy(records[0], records[1])
    before = len(bench.store.packs())
    try:
        assert bench.squash(0, 3) is None
    except FormatError as error:
        assert what == "damaged" and "damaged" in str(error)
    assert len(bench.store.packs()) == before
    assert not list((bench.place / "packs").glob("draft-*"))


def test_a_squash_that_saves_too_little_is_not_kept(bench: Publishing) -> None:
    bench.publish()
    for _ in range(3):
        bench.publish()
    assert bench.squash(0, 3, least_bytes=1 << 30) is None
    assert len(bench.store.packs()) == 4 and not list((bench.place / "packs").glob("draft-*"))


def test_a_wrongly_encoded_squash_is_never_signed(bench: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.publish()
    for _ in range(3):
        bench.publish()

    def wrong(data: bytes, rows: Sequence[Row], block_units: int, base: object) -> object:
        blocks = decode_chunk(data, rows, block_units)
        blocks[-1].steps[-1] += 1
        return blocks

    monkeypatch.setattr(module, "decode_chunk", wrong)
    with pytest.raises(DigestMismatchError, match="other steps"):
        bench.squash(0, 3)
    assert len(bench.store.packs()) == 4


def test_a_stopped_squash_leaves_no_files(bench: Publishing) -> None:
    bench.publish()
    for _ in range(3):
        bench.publish()
    squasher = bench.squasher()
    squasher.stop()
    with pytest.raises(StoreError, match="stopped"):
        squasher.make(bench.plan(0, 3))
    assert len(bench.store.packs()) == 4 and not list((bench.place / "packs").glob("draft-*"))


def test_a_version_may_be_published_while_a_squash_is_made(bench: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.publish()
    for _ in range(3):
        bench.publish("tight")
    original = module.squashed

    def meanwhile(chain: object) -> object:
        found = original(chain)  # type: ignore[arg-type]
        bench.publish("tight")
        return found

    monkeypatch.setattr(module, "squashed", meanwhile)
    made = bench.squash(0, 3)
    assert made is not None and read(made.pack) == chunks_of(bench.versions[0], bench.versions[3])
    bench.holds(bench.source, 4)


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_killed_anywhere_in_a_squash_the_trainer_goes_on(tmp_path: Path, profile: str) -> None:
    bench = Publishing(tmp_path / "whole")
    bench.publish()
    for published in ("tight", "fast", "tight"):
        bench.publish(published)
    bench.builder.snapshot.close()
    bench.store.close()

    def work(place: Path) -> Callable[[Callable[[str], None]], None]:
        def squash(event: Callable[[str], None]) -> None:
            bench.place = place
            bench.open()
            assert bench.squash(0, 3, profile=profile) is not None
            event("made")

        return squash

    finished = 0
    for limit in itertools.count():
        place = tmp_path / str(limit)
        shutil.copytree(tmp_path / "whole", place)
        if run_in_child(work(place), limit) is not None:
            break  # it came to its end before that event
        bench.place = place
        bench.open()
        bench.holds(bench.source, 3)
        squashes = [p for p in bench.store.packs() if p.manifest.base == 0 and p.manifest.version == 3]
        finished += len(squashes)
        assert all(read(p) == chunks_of(bench.versions[0], bench.versions[3], profile) for p in squashes)
        if not squashes:
            assert bench.squash(0, 3, profile=profile) is not None
        bench.builder.snapshot.close()
        bench.store.close()
        shutil.rmtree(place)
    assert limit > 8
    assert 0 < finished < limit


def test_the_snapshot_is_rebuilt_through_a_squash(bench: Publishing) -> None:
    bench.publish()
    for _ in range(4):
        bench.publish("tight")
    assert bench.squash(0, 3) is not None
    shutil.rmtree(bench.place / "snapshot")
    bench.again()
    bench.holds(bench.source, 4)


def test_a_chain_of_tight_deltas_is_applied_to_the_bits_it_was_made_from(bench: Publishing) -> None:
    bench.publish()
    packs = [bench.publish("tight") for _ in range(3)]
    units = {name: bits.copy() for name, bits in bench.versions[0].items()}
    for pack in packs:
        rows = pack.manifest.rows()
        for data in read(pack):
            for block in decode_chunk(data, rows, pack.manifest.block_units, lambda i, rows=rows: units[rows[i].spec]):  # type: ignore[misc]
                apply_with_digest(rows[block.row].spec, units[rows[block.row].spec], block)
    for name, bits in bench.versions[3].items():
        np.testing.assert_array_equal(units[name], bits)
