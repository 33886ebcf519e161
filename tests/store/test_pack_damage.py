"""Damage to a pack by others: no wrong byte is returned, and the pack can be added again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from file_damages import FILE_DAMAGES, foreign_files_untouched
from store_parts import make_pack

from p2psync.store.pack import Pack
from p2psync.store.packs import Store

SIZES = [10_000, 20_000, 5_000]


def sealed(store: Store) -> tuple[Pack, list[bytes]]:
    signed, manifest, chunks = make_pack(1, SIZES)
    pack = store.add(signed, manifest)
    for index, chunk in enumerate(chunks):
        pack.write(index, chunk)
    pack.seal()
    return pack, chunks


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("way", ["read", "view"])
def test_payload_cut_while_open_gives_its_remaining_chunks(tmp_path: Path, way: str, mapped: bool) -> None:
    with Store(tmp_path) as store:
        pack, chunks = sealed(store)
        if mapped:
            assert pack.view(2) == chunks[2]
        os.truncate(pack.path / "payload", 12_000)
        given = [getattr(pack, way)(index) for index in range(3)]
        assert given == [chunks[0], None, None]
        assert (list(pack.have), pack.complete, pack.sealed) == ([1, 0, 0], False, False)
        for index in (1, 2):
            pack.write(index, chunks[index])
        pack.seal()
        assert [getattr(pack, way)(index) for index in range(3)] == chunks


@pytest.mark.parametrize("way", ["read", "view"])
def test_chunk_overwritten_after_its_check_is_not_returned(tmp_path: Path, way: str) -> None:
    with Store(tmp_path) as store:
        pack, chunks = sealed(store)
        assert [getattr(pack, way)(index) for index in range(3)] == chunks
        with (pack.path / "payload").open("r+b") as file:
            file.seek(15_000)
            file.write(b"somebody's")
        os.utime(pack.path / "payload", ns=(1, 1))  # whatever the resolution of its clock
        assert [getattr(pack, way)(index) for index in range(3)] == [chunks[0], None, chunks[2]]


@pytest.mark.parametrize("name", ["manifest", "payload", "done"])
@pytest.mark.parametrize("damage", FILE_DAMAGES.values(), ids=FILE_DAMAGES)
def test_store_opens_with_any_damaged_pack_and_can_add_it_again(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    with Store(tmp_path) as store:
        sealed(store)
        signed, manifest, chunks = make_pack(1, SIZES)
    damage(tmp_path / signed.id.hex() / name)
    with Store(tmp_path) as store:
        assert all("\n" not in line for line in store.diagnostics)
        pack = store.add(signed, manifest)
        for index, chunk in enumerate(chunks):
            given = pack.read(index)
            assert given in (None, chunk)
            if given is None:
                pack.write(index, chunk)
        pack.seal()
    with Store(tmp_path) as store:
        found = store.get(signed.id)
        assert found is not None
        assert [found.read(index) for index in range(3)] == chunks
    assert foreign_files_untouched(tmp_path)


@pytest.mark.parametrize("what", ["a file", "a link to nothing", "another pack"])
def test_foreign_file_at_a_packs_path_does_not_prevent_adding_it(tmp_path: Path, what: str) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)
    place = tmp_path / signed.id.hex()
    if what == "a file":
        place.write_text("somebody's")
    elif what == "a link to nothing":
        place.symlink_to("nowhere")
    else:
        with Store(tmp_path) as store:
            other = store.add(*make_pack(2, SIZES)[:2])
        other.path.rename(place)
    with Store(tmp_path) as store:
        (line,) = store.diagnostics
        assert signed.id.hex() in line
        pack = store.add(signed, manifest)
        pack.write(0, chunks[0])
        assert pack.read(0) == chunks[0]


def test_pack_removed_by_others_is_served_and_then_forgotten(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        pack, chunks = sealed(store)
        shutil.rmtree(pack.path)
        assert pack.view(1) == chunks[1]
        store.remove(pack.signed.id)
        assert store.packs() == []


def test_store_removed_by_others_while_open_is_made_again(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        shutil.rmtree(tmp_path / "packs")
        pack, chunks = sealed(store)
        assert pack.read(0) == chunks[0]
