"""A checkpoint that changes, shrinks or vanishes while it is read is not published."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from p2psync.engines.checkpoint.files import Checkpoint, files_signature
from p2psync.trainer.versions.source import CheckpointReadError, CheckpointSource


@pytest.fixture
def place(tmp_path: Path) -> Path:
    table = {name: {"dtype": "U8", "shape": [8], "data_offsets": [at, at + 8]} for name, at in (("a", 0), ("b", 8))}
    header = json.dumps(table).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(16)))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def opened(place: Path) -> CheckpointSource:
    return CheckpointSource(Checkpoint.open(place), files_signature(place))


def test_checkpoint_source_reads_every_file_whole(place: Path) -> None:
    source = opened(place)
    read = {spec.name: source.units(spec).tobytes() for spec in source.specs}
    assert read["a"] + read["b"] == bytes(range(16))
    assert read["config.json"] == b"{}"
    assert source.unchanged()


def test_checkpoint_source_raises_for_a_file_cut_short_or_removed(place: Path) -> None:
    source = opened(place)
    last = source.specs[-1]
    os.truncate(place / "m.safetensors", (place / "m.safetensors").stat().st_size - 3)
    with pytest.raises(CheckpointReadError, match="became shorter"):
        source.units(last)
    (place / "m.safetensors").unlink()
    with pytest.raises(CheckpointReadError, match="No such file or directory while it was read"):
        source.units(last)


def test_a_failed_read_gives_its_reason_and_may_be_repeated(place: Path) -> None:
    source = opened(place)
    (place / "m.safetensors").unlink()
    (place / "m.safetensors").mkdir()
    with pytest.raises(CheckpointReadError, match="Is a directory while it was read"):
        source.units(source.specs[-1])
    with pytest.raises(CheckpointReadError, match="changed while it was read"):
        source.settled()


@pytest.mark.parametrize("change", ["new", "gone", "replaced", "written", "same time"])
def test_checkpoint_source_notices_any_change_of_the_files(place: Path, change: str) -> None:
    source = opened(place)
    config = place / "config.json"
    if change == "new":
        (place / "more.txt").write_text("x")
    elif change == "gone":
        config.unlink()
    elif change == "replaced":
        (place / ".other").write_text("{}")
        (place / ".other").replace(config)
    elif change == "same time":  # an archive's or a copy's: only the ctime tells
        times = config.stat()
        (place / ".other").write_text("[]")
        os.utime(place / ".other", ns=(times.st_atime_ns, times.st_mtime_ns))
        (place / ".other").replace(config)
    else:
        os.utime(config, ns=(1, 1))
    assert not source.unchanged()


def test_checkpoint_source_notices_a_change_between_scan_and_opening(place: Path) -> None:
    before = files_signature(place)
    (place / "config.json").write_text("{ }")
    assert not CheckpointSource(Checkpoint.open(place), before).unchanged()
