"""Which states of a directory a watcher takes for complete; time is an argument."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainer.watch import Watcher


def shard(size: int = 8) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def write(place: Path, *names: str, size: int = 8, at: float | None = None) -> Path:
    place.mkdir(exist_ok=True, parents=True)
    for name in names:
        (place / name).write_bytes(shard(size) if name.endswith("safetensors") else b"{}")
        if at is not None:
            os.utime(place / name, (at, at))
    return place


def ready(watcher: Watcher, now: float) -> list[str]:
    return [found.path.name for found in watcher.scan(now)]


def test_it_counts_once_nothing_has_changed_for_the_settling_time(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, settle=2)
    place = write(tmp_path / "step-1", "model.safetensors")
    assert ready(watcher, 10.0) == []
    write(place, "config.json")
    assert ready(watcher, 11.9) == []
    assert ready(watcher, 13.8) == []
    assert ready(watcher, 13.9) == ["step-1"]


def test_without_settling_it_counts_at_the_first_look(tmp_path: Path) -> None:
    write(tmp_path / "step-1", "model.safetensors")
    assert ready(Watcher(tmp_path, settle=0), 0.0) == ["step-1"]


def test_with_a_marker_only_the_marker_counts(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, marker="DONE", settle=100)
    place = write(tmp_path / "step-1", "model.safetensors")
    assert ready(watcher, 0.0) == []
    write(place, "DONE")
    assert ready(watcher, 0.0) == ["step-1"]


def test_shards_that_the_index_names_are_waited_for(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, settle=0)
    place = write(tmp_path / "step-1", "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    assert ready(watcher, 0.0) == []
    assert "b.safetensors of its index is missing" in watcher.complaints[str(place)]
    write(place, "b.safetensors")
    assert ready(watcher, 0.0) == ["step-1"]
    assert not watcher.complaints


@pytest.mark.parametrize("name", [".step-1", "step-1.tmp", "step-1.partial", "tmp-step-1", "STEP-1.TMP"])
def test_what_is_named_as_unfinished_is_not_looked_at(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, "model.safetensors")
    assert ready(Watcher(tmp_path, settle=0), 0.0) == []


def test_directories_without_weights_do_not_count(tmp_path: Path) -> None:
    write(tmp_path / "logs", "events.json")
    watcher = Watcher(tmp_path, settle=0)
    assert ready(watcher, 0.0) == []


def test_the_oldest_comes_first_and_numbers_count_as_numbers(tmp_path: Path) -> None:
    write(tmp_path / "step-10", "model.safetensors", at=50)
    write(tmp_path / "step-9", "model.safetensors", at=50)
    write(tmp_path / "a-late-one", "model.safetensors", at=60)
    assert ready(Watcher(tmp_path, settle=0), 0.0) == ["step-9", "step-10", "a-late-one"]


def test_what_was_dealt_with_is_not_offered_again_even_after_a_restart(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, settle=0)
    write(tmp_path / "step-1", "model.safetensors")
    watcher.deal_with(watcher.scan(0.0)[0])
    assert ready(watcher, 1.0) == []
    assert ready(Watcher(tmp_path, settle=0, done=watcher.done), 1.0) == []


def test_a_state_that_came_while_the_last_one_was_dealt_with_is_offered(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, settle=0)
    place = write(tmp_path / "step-1", "model.safetensors")
    found = watcher.scan(0.0)[0]
    write(place, "model.safetensors", size=16)
    watcher.deal_with(found)
    assert ready(watcher, 1.0) == ["step-1"]


def test_one_checkpoint_replaced_in_place(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, settle=1)
    write(tmp_path, "model.safetensors", "config.json")
    write(tmp_path / "tokenizer", "tokenizer.json")
    assert ready(watcher, 0.0) == []
    found = watcher.scan(1.0)
    assert [f.path for f in found] == [tmp_path]
    watcher.deal_with(found[0])
    write(tmp_path, "model.safetensors", size=9)
    assert watcher.scan(2.0) == [] and [f.path for f in watcher.scan(3.0)] == [tmp_path]


def test_a_broken_file_is_complained_of_until_it_is_whole_or_gone(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, settle=0)
    place = write(tmp_path / "step-1", "model.safetensors")
    (place / "model.safetensors").write_bytes(shard()[:-3])
    assert ready(watcher, 0.0) == [] and "model.safetensors" in watcher.complaints[str(place)]
    (place / "model.safetensors").unlink()
    place.rmdir()
    assert ready(watcher, 0.0) == [] and not watcher.complaints


def test_a_link_beside_its_target_is_no_checkpoint_and_one_to_elsewhere_is(tmp_path: Path) -> None:
    write(tmp_path / "root" / "step-1", "model.safetensors")
    write(tmp_path / "elsewhere", "model.safetensors")
    (tmp_path / "root" / "latest").symlink_to("step-1")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "elsewhere")
    assert sorted(ready(Watcher(tmp_path / "root", settle=0), 0.0)) == ["linked", "step-1"]


def test_a_root_that_is_gone_is_the_callers_matter(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Watcher(tmp_path / "gone").scan(0.0)
