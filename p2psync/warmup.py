"""Compiles the codec once a machine, in one process, for every process that needs it.

Compiling takes tens of seconds of a core; loading what numba's cache holds takes about one. So a process of its own
(`python -m p2psync.warmup`) compiles under a file lock, on two cores, and leaves a stamp for each width of a unit,
named after all that makes numba compile again: its version, Python's, the processor, and the codec's source files.
Others wait for that process, and load. It can be ended at any moment, which a thread that compiles cannot: that is what
makes an interrupt end a daemon at once.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from p2psync.errors import P2PSyncError

__all__ = ["CODEC", "WIDTHS", "Warmup", "compiled", "stamp_file"]

#: How often `Warmup.run` tells that it still waits (seconds): after a longer silence a person thinks that it hangs.
TELL_SECONDS = 4.0
#: The source files that are compiled.
CODEC = Path(__file__).parent / "delta"
#: Bytes of a unit that the codec is compiled for unless fewer are asked for: those of bytes, bf16 and fp32.
WIDTHS = (1, 2, 4)


def compiled(widths: Collection[int] = WIDTHS) -> bool:
    """Returns whether some process has compiled the codec for this machine, for units of these widths (bytes)."""
    return not _missing(widths)


class Warmup:
    """Makes the codec ready in this process. One use; `run` in any thread, `stop` from any other."""

    def __init__(self, widths: Collection[int] = WIDTHS) -> None:
        """widths: of the units that are coded here (bytes)."""
        self._widths = widths
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, tell: Callable[[float], None] = lambda seconds: None) -> None:
        """Compiles the codec, if that is not done yet, and loads it.

        tell: called with the seconds waited so far, at once and every few seconds while the codec is being compiled.
        Returns early after `stop`. Where nothing can be kept on the disk, this process compiles for itself.
        """
        self.compile(tell)
        if not self._stopped:
            from p2psync.delta.warm import warm

            warm(self._widths)

    def compile(self, tell: Callable[[float], None] = lambda seconds: None) -> None:
        """Compiles the codec in another process, if that is not done yet, and loads nothing. tell: see `run`."""
        if not compiled(self._widths):
            self._compile(tell)

    def stop(self) -> None:
        """End the compiling process, if there is one."""
        with self._lock:
            self._stopped = True
            self._end()

    def _compile(self, tell: Callable[[float], None]) -> None:
        with self._lock:
            if self._stopped or stamp_file(0) is None:
                return
            command = [sys.executable, "-m", "p2psync.warmup", *map(str, self._widths)]
            # A session of its own: an interrupt at the terminal is for this process, which then ends that one.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        began = time.monotonic()
        try:
            while True:
                tell(time.monotonic() - began)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(TELL_SECONDS)
                    return
        finally:
            self._end()
            self._process.wait()

    def _end(self) -> None:
        """Ends the compiling process and its fork, if they still run."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)


def stamp_file(width: int) -> Path | None:
    """The file that says that the codec is compiled for a width; None where there is no directory to keep it in."""
    place = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        root = Path(place).expanduser() / "p2psync"
        root.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return root / f"compiled-{_machine()}-{width}" if os.access(root, os.W_OK) else None


def _missing(widths: Collection[int]) -> list[int]:
    stamps = {width: stamp_file(width) for width in widths}
    return [width for width, stamp in stamps.items() if stamp is None or not stamp.exists()]


def _machine() -> str:
    """A name for all that makes numba compile again (16 hex digits)."""
    parts = [sys.version, platform.machine(), importlib.metadata.version("numba"), str(CODEC), _processor()]
    parts += [f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("NUMBA_CPU")]
    for path in sorted(CODEC.rglob("*.py")):
        status = path.stat()
        parts.append(f"{path.name} {status.st_size} {status.st_mtime_ns}")
    return blake3("\n".join(parts).encode()).hexdigest(length=8)


def _processor() -> str:
    """The model and features of the first processor, as the kernel tells them; "" where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model", "flags", "Features", "CPU")))


def main(widths: Collection[int] = WIDTHS) -> None:
    """Compiles under the lock what no process has compiled yet. Raises `P2PSyncError` where nothing can be kept."""
    stamp = stamp_file(0)
    if stamp is None:
        raise P2PSyncError("no directory to keep compiled code in: set NUMBA_CACHE_DIR to one that can be written")
    with stamp.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = _missing(widths)
        if missing:
            _compile_halves(missing)
        for width in missing:
            stamp.with_name(f"compiled-{_machine()}-{width}").touch()


def _compile_halves(widths: Collection[int]) -> None:
    """Compiles the encoder in a fork of this process, and the rest in this one meanwhile."""
    # Not before: processes that only wait for another one need not load numba.
    from p2psync.delta import warm

    warm.warm_shared(widths)
    fork = os.fork()
    if not fork:
        warm.warm_encoder(widths)
        os._exit(0)
    warm.warm_rest(widths)
    if os.waitpid(fork, 0)[1]:
        raise P2PSyncError("the codec cannot be compiled; `p2psync doctor` may say why")


if __name__ == "__main__":
    main([int(width) for width in sys.argv[1:]] or WIDTHS)
