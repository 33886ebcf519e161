"""A store keeps chunks by their manifest, and never returns a byte that is not the manifest's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from disk_parts import needs_root, small_disk
from store_parts import make_pack

from p2psync.errors import StoreError
from p2psync.store.packs import Store

SIZES = [1000, 1, 4096, 70_000]


def test_pack_round_trips_a_chunk(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path / "store") as store:
        pack = store.add(signed, manifest)
        assert pack.read(2) is None
        pack.write(2, chunks[2])
        assert pack.read(2) == chunks[2]
        assert pack.view(2) == chunks[2]
        assert (list(pack.have), pack.count, pack.complete) == ([0, 0, 1, 0], 1, False)


class Syncs:
    """Records durable writes, in order: names, each with whether the pack had `done` by then."""

    def __init__(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, bool]] = []
        self._store = store.resolve()
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self._watch)

    def _watch(self, file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").resolve()
        self.seen.append((str(path.relative_to(self._store)), any(self._store.glob("*/done"))))
        self._sync(file)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the kernel does not tell which file is made durable")
def test_new_pack_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        syncs = Syncs(tmp_path, monkeypatch)
        pack = store.add(signed, manifest)
        for index, chunk in enumerate(chunks):
            pack.write(index, chunk)
        assert syncs.seen == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the kernel does not tell which file is made durable")
def test_seal_makes_pack_and_name_durable_before_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        pack = store.add(signed, manifest)
        for index, chunk in enumerate(chunks):
            pack.write(index, chunk)
        syncs = Syncs(tmp_path, monkeypatch)
        pack.seal()
        name = signed.id.hex()
        before = {what for what, done in syncs.seen if not done}
        assert before == {f"{name}/payload", f"{name}/manifest", name, "."}
        assert [what for what, done in syncs.seen if done] == [f"{name}/done", name]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the kernel does not tell which file is made durable")
def test_sealed_draft_is_durable_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        draft = store.draft()
        for chunk in chunks:
            draft.append(chunk)
        syncs = Syncs(tmp_path, monkeypatch)
        draft.seal(signed, manifest)
        at = "draft-0.new"
        assert [what for what, done in syncs.seen if not done] == [f"{at}/payload", f"{at}/manifest"]
        assert [what for what, done in syncs.seen if done] == [f"{at}/done", at, "."]


def test_pack_with_an_empty_manifest_is_forgotten(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        store.add(signed, manifest).write(0, chunks[0])
    (tmp_path / signed.id.hex() / "manifest").write_bytes(b"")
    with Store(tmp_path) as store:
        assert store.packs() == []
        pack = store.add(signed, manifest)
        pack.write(0, chunks[0])
        assert pack.read(0) == chunks[0]


def test_add_returns_the_existing_pack(tmp_path: Path) -> None:
    signed, manifest, _ = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        assert store.add(signed, manifest) is store.add(signed, manifest)
        assert store.get(signed.id) is store.packs()[0]
        assert store.get(bytes(32)) is None


def test_sealed_pack_survives_a_restart(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        pack = store.add(signed, manifest)
        for index, chunk in enumerate(chunks):
            pack.write(index, chunk)
        pack.seal()
    with Store(tmp_path) as store:
        pack = store.packs()[0]
        assert pack.sealed
        assert (pack.id, pack.signed, pack.manifest) == (signed.id, signed, manifest)
        assert [pack.read(i) for i in range(4)] == chunks


def test_unsealed_pack_holds_its_verified_chunks_after_a_restart(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        pack = store.add(signed, manifest)
        for index in (0, 1, 3):
            pack.write(index, chunks[index])
    _damage(tmp_path / signed.id.hex() / "payload", 0)
    with Store(tmp_path) as store:
        assert list(store.packs()[0].have) == [0, 1, 0, 1]


def test_a_pack_cannot_be_sealed_before_it_is_complete(tmp_path: Path) -> None:
    signed, manifest, _ = make_pack(1, SIZES)
    with Store(tmp_path) as store, pytest.raises(StoreError, match="4 chunks are missing"):
        store.add(signed, manifest).seal()


@pytest.mark.parametrize("way", ["read", "view"])
def test_a_damaged_chunk_of_a_sealed_pack_is_dropped_at_its_first_read(tmp_path: Path, way: str) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        pack = store.add(signed, manifest)
        for index, chunk in enumerate(chunks):
            pack.write(index, chunk)
        pack.seal()
    _damage(tmp_path / signed.id.hex() / "payload", SIZES[0] + SIZES[1] + 7)
    with Store(tmp_path) as store:
        pack = store.packs()[0]
        assert getattr(pack, way)(2) is None
        assert list(pack.have) == [1, 1, 0, 1]
        assert not pack.sealed
        pack.write(2, chunks[2])
        pack.seal()
        assert pack.read(2) == chunks[2]


def test_short_payload_is_extended_and_verified_again(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        pack = store.add(signed, manifest)
        for index, chunk in enumerate(chunks):
            pack.write(index, chunk)
        pack.seal()
    os.truncate(tmp_path / signed.id.hex() / "payload", 1500)
    with Store(tmp_path) as store:
        assert list(store.packs()[0].have) == [1, 1, 0, 0]


def test_a_manifest_of_no_chunks_is_complete_at_once(tmp_path: Path) -> None:
    signed, manifest, _ = make_pack(1, [])
    with Store(tmp_path) as store:
        pack = store.add(signed, manifest)
        assert pack.complete
        pack.seal()


def test_a_view_outlives_its_pack(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        pack = store.add(signed, manifest)
        pack.write(3, chunks[3])
        view = pack.view(3)
        store.remove(signed.id)
        assert view == chunks[3]
        assert store.get(signed.id) is None
        assert store.bytes_used == 0
    assert not (tmp_path / signed.id.hex()).exists()


def test_a_chunk_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store, pytest.raises(StoreError, match="has 1000 bytes"):
        store.add(signed, manifest).write(0, chunks[1])


def test_a_second_process_is_refused_while_the_store_is_in_use(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(StoreError, match="in use by another process"):
        Store(tmp_path)
    Store(tmp_path).close()


def test_store_leaves_foreign_files_alone(tmp_path: Path) -> None:
    signed, manifest, _ = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        store.add(signed, manifest)
    theirs = [tmp_path / "notes.txt", tmp_path / signed.id.hex() / "notes.txt"]
    (tmp_path / "x.new").mkdir()
    for path in theirs:
        path.write_text("keep me")
    with Store(tmp_path) as store:
        assert len(store.packs()) == 1
        store.remove(signed.id)
    with Store(tmp_path):
        pass
    assert theirs[0].read_text() == "keep me"
    assert [path.read_text() for path in tmp_path.glob("*/notes.txt")] == ["keep me"]
    assert (tmp_path / "x.new").is_dir()


def test_store_removes_unfinished_packs_when_opened(tmp_path: Path) -> None:
    for name in ("ab" * 32 + ".new", "draft-3.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "payload").write_bytes(b"half")
    with Store(tmp_path) as store:
        assert store.packs() == []
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_pack_whose_manifest_is_damaged_is_forgotten(tmp_path: Path) -> None:
    signed, manifest, _ = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        store.add(signed, manifest)
    _damage(tmp_path / signed.id.hex() / "manifest", 100)
    with Store(tmp_path) as store:
        assert store.packs() == []
        assert store.add(signed, manifest).count == 0


def test_a_draft_becomes_a_sealed_pack_when_it_is_signed(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        draft = store.draft()
        for chunk in chunks:
            draft.append(chunk)
        assert store.packs() == []
        pack = draft.seal(signed, manifest)
        assert pack.sealed
        assert [pack.read(i) for i in range(4)] == chunks
    with Store(tmp_path) as store:
        assert store.packs()[0].sealed


def test_an_abandoned_draft_leaves_nothing(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        draft = store.draft()
        draft.append(b"x")
        draft.abandon()
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@needs_root
@pytest.mark.root
def test_add_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    small, large = make_pack(1, [1 << 18]), make_pack(2, [1 << 20] * 4)
    with small_disk(tmp_path / "disk", 1 << 20) as disk, Store(disk / "store") as store:
        store.add(small[0], small[1]).write(0, small[2][0])
        with pytest.raises(StoreError, match=r"disk/store.*: \d+ bytes are missing for 4194304") as caught:
            store.add(large[0], large[1])
        assert "\n" not in str(caught.value)
        assert [pack.manifest.version for pack in store.packs()] == [1]
        assert sorted(path.name for path in (disk / "store").iterdir()) == sorted([small[0].id.hex(), "lock"])
        assert store.packs()[0].read(0) == small[2][0]


@needs_root
@pytest.mark.root
def test_a_draft_on_a_full_disk_can_be_abandoned(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk, Store(disk / "store") as store:
        draft = store.draft()
        with pytest.raises(StoreError, match="disk is full"):
            draft.append(bytes(2 << 20))
        draft.abandon()
        assert [path.name for path in (disk / "store").iterdir()] == ["lock"]


def _damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


@pytest.mark.parametrize("part", [[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
def test_partial_pack_holds_its_chunks_and_reserves_no_more(tmp_path: Path, part: list[int]) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        draft = store.draft()
        for mine, chunk in zip(part, chunks, strict=True):
            if mine:
                draft.append(chunk)
        draft.seal(signed, manifest, bytes(part))
    for _ in range(2):
        with Store(tmp_path) as store:
            pack = store.packs()[0]
            assert (pack.sealed, pack.complete, list(pack.have), pack.count) == (True, True, part, sum(part))
            wanted = [chunk if mine else None for mine, chunk in zip(part, chunks, strict=True)]
            assert [pack.read(i) for i in range(4)] == wanted
            assert [pack.view(i) for i in range(4)] == wanted
            wanted_bytes = sum(size for size, mine in zip(SIZES, part, strict=True) if mine)
            assert (pack.path / "payload").stat().st_size == wanted_bytes
            for index, mine in enumerate(part):
                if not mine:
                    with pytest.raises(StoreError, match="not of the part"):
                        pack.write(index, chunks[index])
        (tmp_path / signed.id.hex() / "done").unlink()  # then the content tells which chunks there are
        with Store(tmp_path) as store:
            pack = store.packs()[0]
            assert (pack.sealed, list(pack.have)) == (False, part)
            pack.seal()


def test_seal_refuses_a_part_that_was_not_drafted(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    with Store(tmp_path) as store:
        draft = store.draft()
        draft.append(chunks[1])
        with pytest.raises(StoreError):
            draft.seal(signed, manifest, bytes([0, 0, 1, 0]))
        draft.abandon()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]
