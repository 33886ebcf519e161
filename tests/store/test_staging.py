"""A staged file or directory reaches its target whole and in one step, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2psync.errors import StoreError
from p2psync.store import staging
from p2psync.store.staging import StagedPath


@pytest.fixture(params=["renameat2", "plain renames"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system with renameat2, and one without."""
    if request.param == "plain renames":
        monkeypatch.setattr(staging, "_renameat2", lambda: None)


@pytest.mark.usefixtures("system")
def test_staged_path_places_a_file_or_directory(tmp_path: Path) -> None:
    with StagedPath(tmp_path / "file", directory=False) as made:
        made.path.write_bytes(b"new")
        made.place()
    with StagedPath(tmp_path / "directory", directory=True) as made:
        (made.path / "below").write_bytes(b"new")
        made.place()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]
    assert (tmp_path / "directory/below").read_bytes() == (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.usefixtures("system")
def test_staged_path_replaces_a_directory_if_forced(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place/stale").write_bytes(b"old")
    with StagedPath(tmp_path / "place", directory=True, force=True) as made:
        (made.path / "fresh").write_bytes(b"new")
        made.place()
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["fresh"]


@pytest.mark.usefixtures("system")
def test_staged_path_replaces_a_link_and_keeps_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with StagedPath(tmp_path / "link", directory=True, force=True) as made:
        made.place()
    assert (tmp_path / "link").is_dir()
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").is_dir()


@pytest.mark.usefixtures("system")
def test_staged_path_does_not_overwrite_a_new_target(tmp_path: Path) -> None:
    with StagedPath(tmp_path / "place", directory=False) as made:
        (tmp_path / "place").write_bytes(b"somebody else's")
        with pytest.raises(StoreError):
            made.place()
    assert (tmp_path / "place").read_bytes() == b"somebody else's"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_staged_path_leaves_nothing_unless_placed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), StagedPath(tmp_path / "place", directory=True) as made:
        (made.path / "half").write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_staged_path_removes_only_temporary_files_of_dead_processes(tmp_path: Path) -> None:
    (tmp_path / ".place.1.tmp").mkdir()
    (tmp_path / ".place.1.tmp/half").write_bytes(b"half")
    (tmp_path / ".place.old.tmp").write_bytes(b"not ours")
    with StagedPath(tmp_path / "place", directory=False) as other:
        busy = other.path.rename(tmp_path / ".place.2.tmp")
        with StagedPath(tmp_path / "place", directory=False):
            assert busy.exists()
            assert not (tmp_path / ".place.1.tmp").exists()
        busy.unlink()
    assert [path.name for path in tmp_path.iterdir()] == [".place.old.tmp"]


def test_staged_path_in_an_unwritable_directory_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        StagedPath(tmp_path / "missing/place", directory=False)
