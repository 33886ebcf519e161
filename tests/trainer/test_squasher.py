"""Squashes of a trainer's own deltas, `fast` and `tight` mixed: exact, checked, and never holding up a publish."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from crash_parts import run_in_child
from trainer_parts import KEY, RUN, Arrays, StoreWithBuilder, spec

from p2psync.delta.algebra import apply_with_digest
from p2psync.delta.container import decode_chunk
from p2psync.delta.tensors import TableRow, TensorSpec, Units
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


class SquashableStore(StoreWithBuilder):
    """A store whose versions change much the same units each time, as steps of training do."""

    def __init__(self, root: Path, **shapes: int) -> None:
        super().__init__(root)
        self.source = Arrays(**(shapes or {"a": 300_000, "b": 700}))
        self.hot = {name: self.source.rng.random(bits.size) < 0.02 for name, bits in self.source.bits.items()}
        self.versions: list[Version] = []

    def publish(self, profile: str = "fast") -> Pack:
        """Make the next version, in which half of the hot units move up or down."""
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
        """Returns the plan of the squash from one version to another."""
        packs = {p.manifest.version: p for p in self.store.packs() if p.manifest.base == p.manifest.version - 1}
        chain = [packs[version] for version in range(base + 1, head + 1)]
        return SquashPlan(tuple(announcement_of(p.signed, p.manifest) for p in chain), 0.0)

    def squash(self, base: int, head: int, min_saved_bytes: int = 0, profile: str = "fast") -> BuiltSquash | None:
        """Make the squash from one version to another."""
        bits = self.builder.snapshot.units if profile == "tight" else None
        return self.squasher(min_saved_bytes).make(self.plan(base, head), bits)

    def squasher(self, min_saved_bytes: int = 0) -> Squasher:
        """Returns a squasher of the store."""
        return Squasher(self.store, self.builder.delta_records, KEY, SquashPlanner(min_saved_bytes))


@pytest.fixture
def trainer(tmp_path: Path) -> SquashableStore:
    return SquashableStore(tmp_path)


def chunks_of(old: Version, new: Version, profile: str = "fast") -> list[bytes]:
    """Returns the chunks of the delta that extraction makes between two versions."""
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
def test_a_squash_is_the_delta_between_its_ends(trainer: SquashableStore, profiles: str, profile: str) -> None:
    trainer.publish()
    kinds = {"f": "fast", "t": "tight"}
    for short in profiles:
        assert trainer.publish(kinds[short]).manifest.profile == kinds[short]
    made = trainer.squash(1, 4, profile=profile)
    assert made is not None
    m = made.pack.manifest
    assert read(made.pack) == chunks_of(trainer.versions[1], trainer.versions[4], profile)
    assert m.profile == profile
    assert (m.base, m.version, m.run, m.epoch) == (1, 4, RUN, 1)
    assert (m.base_digest, m.digest) == (bytes.fromhex(trainer.plan(1, 2).chain[0].base_digest), trainer.source.digest)
    assert made.chain_bytes > m.payload_bytes == sum(m.sizes)
    assert trainer.store.get(made.pack.signed.id) is made.pack


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_tensors_that_come_and_go_are_squashed_too(trainer: SquashableStore, profile: str) -> None:
    trainer.publish()
    trainer.publish("tight")
    trainer.source.add("new", 500)
    trainer.hot[spec("new", 500)] = np.ones(500, np.bool_)
    trainer.keep("tight")
    trainer.publish("tight")
    del trainer.source.bits[spec("b", 700)]
    trainer.keep("tight")
    made = trainer.squash(0, 4, profile=profile)
    assert made is not None and read(made.pack) == chunks_of(trainer.versions[0], trainer.versions[4], profile)


@pytest.mark.parametrize("other", [0, 2])
def test_a_squash_from_wrong_head_bits_is_refused(trainer: SquashableStore, other: int) -> None:
    trainer.publish()
    for _ in range(3):
        trainer.publish("tight")
    bits = trainer.versions[other]
    with pytest.raises(P2PSyncError):
        trainer.squasher().make(trainer.plan(0, 3), lambda name: bits[name])
    assert len(trainer.store.packs()) == 4 and not list((trainer.root / "packs").glob("draft-*"))


def test_a_waiting_publish_preempts_a_squash(trainer: SquashableStore) -> None:
    trainer.publish()
    for _ in range(3):
        trainer.publish("tight")
    asked = iter([False, True])
    with pytest.raises(SquashPreempted):
        trainer.squasher().make(trainer.plan(0, 3), trainer.builder.snapshot.units, lambda: next(asked))
    assert len(trainer.store.packs()) == 4 and not list((trainer.root / "packs").glob("draft-*"))
    trainer.publish("tight")


def test_tight_deltas_are_recorded_as_they_are_published_and_records_go_with_their_packs(
    trainer: SquashableStore,
) -> None:
    records = trainer.root / "steps"
    trainer.publish()
    packs = [trainer.publish(profile) for profile in ("tight", "fast", "tight")]
    assert {path.name for path in records.iterdir()} == {packs[0].path.name, packs[2].path.name}
    trainer.store.remove(packs[0].signed.id)
    trainer.publish()
    assert {path.name for path in records.iterdir()} == {packs[2].path.name}


def test_a_restart_finds_the_records_and_removes_half_written_ones(trainer: SquashableStore) -> None:
    trainer.publish()
    for _ in range(3):
        trainer.publish("tight")
    (trainer.root / "steps" / ".half.1.tmp").write_bytes(b"x")
    trainer.again()
    assert not (trainer.root / "steps" / ".half.1.tmp").exists()
    made = trainer.squash(0, 3)
    assert made is not None and read(made.pack) == chunks_of(trainer.versions[0], trainer.versions[3])


@pytest.mark.parametrize("what", ["gone", "damaged", "of another version"])
def test_without_a_sound_record_of_a_tight_delta_there_is_no_squash_across_it(
    trainer: SquashableStore, what: str
) -> None:
    trainer.publish()
    packs = [trainer.publish("tight") for _ in range(3)]
    records = [trainer.root / "steps" / pack.path.name for pack in packs]
    if what == "gone":
        records[1].unlink()
    elif what == "damaged":
        data = bytearray(records[1].read_bytes())
        data[100] ^= 1
        records[1].write_bytes(data)
    else:
        shutil.copy(records[0], records[1])
    before = len(trainer.store.packs())
    try:
        assert trainer.squash(0, 3) is None
    except FormatError as error:
        assert what == "damaged" and "damaged" in str(error)
    assert len(trainer.store.packs()) == before
    assert not list((trainer.root / "packs").glob("draft-*"))


def test_a_squash_that_saves_too_little_is_not_kept(trainer: SquashableStore) -> None:
    trainer.publish()
    for _ in range(3):
        trainer.publish()
    assert trainer.squash(0, 3, min_saved_bytes=1 << 30) is None
    assert len(trainer.store.packs()) == 4 and not list((trainer.root / "packs").glob("draft-*"))


def test_a_wrongly_encoded_squash_is_never_signed(trainer: SquashableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.publish()
    for _ in range(3):
        trainer.publish()

    def wrong(data: bytes, rows: Sequence[TableRow], block_units: int, base: object) -> object:
        blocks = decode_chunk(data, rows, block_units)
        blocks[-1].steps[-1] += 1
        return blocks

    monkeypatch.setattr(module, "decode_chunk", wrong)
    with pytest.raises(DigestMismatchError, match="other steps"):
        trainer.squash(0, 3)
    assert len(trainer.store.packs()) == 4


def test_a_stopped_squash_leaves_no_files(trainer: SquashableStore) -> None:
    trainer.publish()
    for _ in range(3):
        trainer.publish()
    squasher = trainer.squasher()
    squasher.stop()
    with pytest.raises(StoreError, match="stopped"):
        squasher.make(trainer.plan(0, 3))
    assert len(trainer.store.packs()) == 4 and not list((trainer.root / "packs").glob("draft-*"))


def test_a_version_may_be_published_while_a_squash_is_made(
    trainer: SquashableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.publish()
    for _ in range(3):
        trainer.publish("tight")
    original = module.compose_chain

    def meanwhile(chain: object) -> object:
        found = original(chain)  # type: ignore[arg-type]
        trainer.publish("tight")
        return found

    monkeypatch.setattr(module, "compose_chain", meanwhile)
    made = trainer.squash(0, 3)
    assert made is not None and read(made.pack) == chunks_of(trainer.versions[0], trainer.versions[3])
    trainer.holds(trainer.source, 4)


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_killed_anywhere_in_a_squash_the_trainer_goes_on(tmp_path: Path, profile: str) -> None:
    trainer = SquashableStore(tmp_path / "whole")
    trainer.publish()
    for published in ("tight", "fast", "tight"):
        trainer.publish(published)
    trainer.builder.snapshot.close()
    trainer.store.close()

    def work(root: Path) -> Callable[[Callable[[str], None]], None]:
        def squash(event: Callable[[str], None]) -> None:
            trainer.root = root
            trainer.open()
            assert trainer.squash(0, 3, profile=profile) is not None
            event("made")

        return squash

    finished = 0
    for limit in itertools.count():
        root = tmp_path / str(limit)
        shutil.copytree(tmp_path / "whole", root)
        if run_in_child(work(root), limit) is not None:
            break  # it came to its end before that event
        trainer.root = root
        trainer.open()
        trainer.holds(trainer.source, 3)
        squashes = [p for p in trainer.store.packs() if p.manifest.base == 0 and p.manifest.version == 3]
        finished += len(squashes)
        assert all(read(p) == chunks_of(trainer.versions[0], trainer.versions[3], profile) for p in squashes)
        if not squashes:
            assert trainer.squash(0, 3, profile=profile) is not None
        trainer.builder.snapshot.close()
        trainer.store.close()
        shutil.rmtree(root)
    assert limit > 8
    assert 0 < finished < limit


def test_the_snapshot_is_rebuilt_through_a_squash(trainer: SquashableStore) -> None:
    trainer.publish()
    for _ in range(4):
        trainer.publish("tight")
    assert trainer.squash(0, 3) is not None
    shutil.rmtree(trainer.root / "snapshot")
    trainer.again()
    trainer.holds(trainer.source, 4)


def test_a_chain_of_tight_deltas_is_applied_to_the_bits_it_was_made_from(trainer: SquashableStore) -> None:
    trainer.publish()
    packs = [trainer.publish("tight") for _ in range(3)]
    units = {name: bits.copy() for name, bits in trainer.versions[0].items()}
    for pack in packs:
        rows = pack.manifest.rows()
        for data in read(pack):
            for block in decode_chunk(data, rows, pack.manifest.block_units, lambda i, rows=rows: units[rows[i].spec]):  # type: ignore[misc]
                apply_with_digest(rows[block.row].spec, units[rows[block.row].spec], block)
    for name, bits in trainer.versions[3].items():
        np.testing.assert_array_equal(units[name], bits)
