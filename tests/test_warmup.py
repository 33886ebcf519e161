"""The codec is compiled by one process of a machine, and an interrupt does not wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from p2psync import warmup
from p2psync.warmup import Warmup, compiled


@pytest.fixture(autouse=True)
def fresh_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the stamps of earlier processes; numba's cache is the suite's own."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def compiling() -> list[psutil.Process]:
    """Processes below this one that compile; a worker of the suite has others, too."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # which a zombie counts as
            if "p2psync.warmup" in process.cmdline():
                found.append(process)
    return found


def test_the_first_warmup_has_another_process_compile_and_the_second_only_loads() -> None:
    told: list[float] = []
    assert not compiled()
    Warmup().run(told.append)
    assert told[0] < 1
    assert compiled()
    told.clear()
    Warmup().run(told.append)
    assert told == []


def test_processes_that_compile_at_once_wait_for_one_of_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "p2psync.warmup"]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert compiled()
    assert len(list(tmp_path.glob("p2psync/compiled-*-[124]"))) == 3


def test_stop_ends_a_compilation_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))  # nothing is compiled: it would take half a minute
    begun, running = threading.Event(), Warmup()
    thread = threading.Thread(target=running.run, args=(lambda seconds: begun.set(),))
    thread.start()
    assert begun.wait(30)
    running.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert compiling() == []
    assert not compiled()


def test_a_process_compiles_the_widths_that_it_needs() -> None:
    Warmup([1]).compile()
    assert compiled([1]) and not compiled([2]) and not compiled()


def test_an_interrupt_ends_the_compiling_process_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Warmup().run(interrupt)
    assert compiling() == []


def test_a_changed_source_file_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    codec = tmp_path / "codec"
    codec.mkdir()
    (codec / "kernels.py").write_text("one")
    monkeypatch.setattr(warmup, "CODEC", codec)
    stamp = warmup.stamp_file(2)
    assert stamp is not None
    stamp.touch()
    assert compiled([2])
    assert not compiled([1, 2]), "another width"
    (codec / "kernels.py").write_text("other")
    assert not compiled([2])


def test_where_nothing_can_be_kept_the_process_compiles_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    told: list[float] = []
    Warmup().run(told.append)
    assert told == []
    assert not compiled()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_process_that_waits_for_the_compiling_one_loads_no_numba() -> None:
    code = (
        "import sys\nfrom p2psync import warmup\n[warmup.stamp_file(width).touch() for width in (1, 2, 4)]\n"
        "warmup.main()\nprint('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_compiling_for_others_loads_nothing(tmp_path: Path) -> None:
    Warmup().compile()
    code = "import sys\nfrom p2psync.warmup import Warmup\nWarmup().compile()\nprint('numba' in sys.modules)"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
