"""A map whose file is cut reads zeros from there on, and says so; SIGBUS elsewhere ends the process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from p2psync.store import guarded_map
from p2psync.store.guarded_map import GuardedMap

PAGES = 16 * os.sysconf("SC_PAGE_SIZE")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guard knows Linux' signals")


def mapped(path: Path) -> GuardedMap:
    path.write_bytes(b"\1" * PAGES)
    with path.open("r+b") as file:
        return GuardedMap(file.fileno(), PAGES, writable=True)


def test_guarded_map_reads_missing_pages_as_zeros_and_notes_them(tmp_path: Path) -> None:
    one, other = mapped(tmp_path / "one"), mapped(tmp_path / "other")
    array = np.frombuffer(one.map, np.uint8)
    os.truncate(tmp_path / "one", 5000)
    assert not one.torn, "nobody has looked yet"
    assert int(array.sum()) == 5000
    array[-1] = 7
    assert array[-1] == 7
    assert (one.torn, other.torn) == (True, False)
    assert (tmp_path / "one").stat().st_size == 5000, "the write reaches no file"


def test_guarded_map_refuses_a_shorter_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"short")
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError, match="shorter"):
        GuardedMap(file.fileno(), PAGES, writable=False)


def test_guarded_map_is_guarded_until_its_last_array_is_dropped(tmp_path: Path) -> None:
    free = len(guarded_map._free)
    one = mapped(tmp_path / "one")
    array = np.frombuffer(one.map, np.uint8)
    assert not one.close()
    assert len(guarded_map._free) == free - 1
    del array
    assert one.close()
    assert len(guarded_map._free) == free
    two = mapped(tmp_path / "two")
    array = np.frombuffer(two.map, np.uint8)
    del two
    os.truncate(tmp_path / "two", 0)
    assert not array.any()
    del array
    gc.collect()
    assert len(guarded_map._free) == free


@pytest.mark.parametrize("first", ["", "import faulthandler; faulthandler.enable();"])
def test_sigbus_in_an_unguarded_map_ends_the_process(tmp_path: Path, first: str) -> None:
    program = f"""{first}
import mmap, os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_guarded_map import mapped
guarded = mapped(Path("guarded"))
with open("plain", "w+b") as file:
    file.write(bytes(100000)); file.flush()
    plain = mmap.mmap(file.fileno(), 100000)
os.truncate("guarded", 0)
assert guarded.map[50000] == 0 and guarded.torn
os.truncate("plain", 0)
plain[50000]
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGBUS, done.stderr
    assert bool(first) == ("Bus error" in done.stderr)
