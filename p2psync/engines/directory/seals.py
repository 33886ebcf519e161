"""A seal: what tells at a glance whether anyone but us wrote to the files of a slot.

It is made of every file's name, inode, size, mode, owner and time of change, as the kernel keeps them, and costs a
`stat` for each: microseconds, where a digest reads every byte. A seal that differs proves nothing, since a backup may
change a time too; it says that the digest must be computed again. One that agrees rules out everything but a disk that
rots by itself, which the scrub looks for.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from blake3 import blake3

#: Of a slot that is missing, is no directory, cannot be listed, or holds a link or anything else that is no file.
NO_SEAL = ""


def seal_of(slot: Path) -> str:
    """The seal of everything below a directory, in hex. Hidden names are not part of a checkpoint, and do not count."""
    lines: list[str] = []
    try:
        _list(str(slot), "", lines)
    except OSError:
        return NO_SEAL
    return blake3("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest(16)


def _list(directory: str, prefix: str, lines: list[str]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                lines.append(f"{prefix}{entry.name}/ {found.st_mode} {found.st_uid}")
                _list(entry.path, f"{prefix}{entry.name}/", lines)
                continue
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{entry.path} is not a plain file")
            who = f"{found.st_ino} {found.st_mode} {found.st_uid}"
            lines.append(f"{prefix}{entry.name} {who} {found.st_size} {found.st_ctime_ns}")
