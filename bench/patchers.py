"""General tools for binary deltas, called on a part of the model: zstd --patch-from, xdelta3, bsdiff."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from p2psync.bench.deltas import Bits


class Tool(NamedTuple):
    """Command lines, in which {old}, {new}, {patch}, {back} and {size} (bytes of new) stand for what they say."""

    name: str
    title: str
    package: str
    programs: tuple[str, ...]
    encode: str
    decode: str


TOOLS: tuple[Tool, ...] = (
    Tool(
        "zstd-patch",
        "zstd -3 --patch-from",
        "zstd",
        ("zstd",),
        "zstd -q -3 -T1 --patch-from={old} {new} -o {patch}",
        "zstd -q -d --long=31 --patch-from={old} {patch} -o {back}",
    ),
    Tool(
        "xdelta3",
        "xdelta3 -9",
        "xdelta3",
        ("xdelta3",),
        "xdelta3 -e -9 -B {size} -s {old} {new} {patch}",
        "xdelta3 -d -B {size} -s {old} {patch} {back}",
    ),
    Tool(
        "bsdiff",
        "bsdiff",
        "bsdiff",
        ("bsdiff", "bspatch"),
        "bsdiff {old} {new} {patch}",
        "bspatch {old} {back} {patch}",
    ),
)
_TIMEOUT = 600.0
_MIN_XDELTA_BYTES = 1 << 24


class PatchSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a tool's patch for the part. Sizes are bytes."""

    payload: int
    changed: int
    part_bytes: int
    seconds: float


def cut_part(old_bits: Sequence[Bits], new_bits: Sequence[Bits], limit: int) -> tuple[Bits, Bits]:
    """Returns an equal share of every tensor, from its beginning: at most `limit` bytes of one copy in all."""
    share = min(1.0, limit / max(1, sum(old.nbytes for old in old_bits)))
    cuts = [int(old.size * share) for old in old_bits]
    return (
        np.concatenate([old[:cut] for old, cut in zip(old_bits, cuts, strict=True)]),
        np.concatenate([new[:cut] for new, cut in zip(new_bits, cuts, strict=True)]),
    )


def missing(tool: Tool) -> str | None:
    """A line that says what to install, or None."""
    if all(map(shutil.which, tool.programs)):
        return None
    return f"{tool.name} skipped: not installed (Debian package {tool.package})"


def measure_tool(tool: Tool, old: Bits, new: Bits) -> PatchSize:
    """Make a patch, apply it, compare. Raises `AssertionError` if the new bytes do not come back, and
    `subprocess.SubprocessError` if the tool fails or takes longer than ten minutes."""
    with tempfile.TemporaryDirectory(prefix="p2psync-bench-") as folder:
        paths = {name: Path(folder) / name for name in ("old", "new", "patch", "back")}
        old.tofile(paths["old"])
        new.tofile(paths["new"])
        words = {name: str(path) for name, path in paths.items()} | {"size": str(max(new.nbytes, _MIN_XDELTA_BYTES))}
        began = time.perf_counter()
        _run(tool.encode, words)
        seconds = time.perf_counter() - began
        _run(tool.decode, words)
        if not np.array_equal(np.fromfile(paths["back"], np.uint16), new):
            raise AssertionError(f"{tool.name} did not bring back the new bytes")
        changed = int(np.count_nonzero(old != new))
        return PatchSize(payload=paths["patch"].stat().st_size, changed=changed, part_bytes=new.nbytes, seconds=seconds)


def _run(command: str, words: dict[str, str]) -> None:
    subprocess.run(
        [part.format(**words) for part in command.split()],
        check=True,
        timeout=_TIMEOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
