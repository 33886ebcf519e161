"""A record is read whole and right, or not at all, and can be written again whatever stands at its path."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psync.errors import DamagedError, StoreError
from p2psync.store.records import load_record, make_directory, recover_record, save_record


class Note(msgspec.Struct, frozen=True):
    run: str
    epoch: int


NOTE = Note("0123456789abcdef", 7)


def test_record_round_trips_and_a_missing_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "new" / "note.json"
    assert load_record(path, Note) is None
    for durably in (True, False):
        save_record(path, NOTE, durably=durably)
        assert load_record(path, Note) == NOTE
    assert [entry.name for entry in path.parent.iterdir()] == ["note.json"]


def test_record_is_plain_json(tmp_path: Path) -> None:
    save_record(tmp_path / "note.json", NOTE)
    found = json.loads((tmp_path / "note.json").read_text())
    assert (found["run"], found["epoch"]) == (NOTE.run, NOTE.epoch)
    save_record(tmp_path / "table.json", {})
    assert load_record(tmp_path / "table.json", dict[str, int]) == {}
    save_record(tmp_path / "table.json", {"a": 1})
    assert load_record(tmp_path / "table.json", dict[str, int]) == {"a": 1}


def test_record_without_checksum_is_read(tmp_path: Path) -> None:
    (tmp_path / "note.json").write_bytes(msgspec.json.encode(NOTE))
    assert load_record(tmp_path / "note.json", Note) == NOTE


@given(data=st.data())
def test_cut_or_flipped_record_never_gives_another_value(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("record") / "note.json"
    save_record(path, NOTE, durably=False)
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :]
    path.write_bytes(damaged)
    try:
        assert load_record(path, Note) == NOTE
    except DamagedError as error:
        assert "\n" not in str(error)


def directory(path: Path) -> None:
    (path / "sub").mkdir(parents=True)


PLACES: dict[str, Callable[[Path], object]] = {
    "a directory": directory,
    "a fifo": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "nonsense": lambda path: path.write_bytes(b"\xff\x00{"),
    "nothing": lambda path: path.touch(),
    "what is too long": lambda path: path.touch() or os.truncate(path, 1 << 40),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_recover_record_reports_and_moves_foreign_files_aside(tmp_path: Path, place: Callable[[Path], object]) -> None:
    path = tmp_path / "note.json"
    for _ in range(2):
        place(path)
        place(path.with_name("note.json.tmp"))
        with pytest.raises(DamagedError):
            load_record(path, Note)
        told: list[str] = []
        assert recover_record(path, Note, told.append, "so nothing is known") is None
        assert len(told) == 1
        assert "note.json.damaged; so nothing is known" in told[0]
        save_record(path, NOTE)
        assert load_record(path, Note) == NOTE
        path.unlink()
    assert [entry.name for entry in tmp_path.iterdir()] == ["note.json.damaged"]


def test_make_directory_moves_a_file_aside_but_refuses_one_as_parent(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("somebody's")
    with pytest.raises(StoreError, match=r"place is not a directory: move it away"):
        make_directory(tmp_path / "place" / "below")
    assert make_directory(tmp_path / "place")
    assert not make_directory(tmp_path / "place")
    assert (tmp_path / "place.damaged").read_text() == "somebody's"
