"""Seals: a fingerprint of a slot's file metadata, which shows cheaply whether another process wrote to the slot.

A seal covers every file's name, inode, size, mode, owner and change time (ctime). It costs one `stat` for each file,
where a digest reads every byte. A different seal proves nothing, since a backup may change a time too; the digest must
then be computed again. An equal seal rules out all damage but bit rot on the disk, which the scrub finds.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from blake3 import blake3

#: The seal of a slot that is missing, cannot be listed, or holds anything but plain files and directories.
NO_SEAL = ""


def seal_of(slot: Path) -> str:
    """Returns the seal (hex) of all files below a directory. Skips hidden names, which are no part of a checkpoint."""
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
