"""Damages one thing of many below a directory, as dice fall."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from file_damages import (
    Damage,
    add_foreign_file,
    cut,
    delete,
    empty,
    flip,
    forbid,
    garble,
    grow,
    replace,
    to_directory,
    to_fifo,
    to_file,
    to_nowhere,
    to_theirs,
)

OF_FILES: Sequence[Damage] = (
    *(delete, empty, cut, cut, grow, flip, flip, garble, replace, add_foreign_file),
    *(to_directory, to_nowhere, to_fifo, to_theirs, forbid),
)
OF_DIRECTORIES: Sequence[Damage] = (delete, empty, to_file, to_nowhere, to_fifo, forbid, add_foreign_file)


def places(root: Path, spared: Callable[[Path], bool]) -> list[Path]:
    """Returns everything below a directory, in a fixed order, without spared paths."""
    found = [path for path in root.rglob("*") if not spared(path) and not path.name.startswith(".theirs")]
    return sorted(found)


def damage_one(
    root: Path,
    dice: random.Random,
    spared: Callable[[Path], bool],
    unseen: Callable[[Path], bool] = lambda path: False,
) -> str:
    """Damages one file or folder below `root`. Returns a description of the damage, "" if nothing lies there.

    unseen: tells files whose flipped bits nobody would notice; their bits are left alone.
    """
    found = places(root, spared)
    if not found:
        return ""
    # A directory of many chunks or files is as likely as one of few.
    folder = dice.choice(sorted({path.parent for path in found}))
    path = dice.choice([path for path in found if path.parent == folder])
    if path.is_dir() and not path.is_symlink():
        which = dice.choice(OF_DIRECTORIES)
    elif path.is_symlink() or not path.is_file():
        which = dice.choice((delete, to_directory, to_nowhere, to_fifo))
    elif unseen(path):
        which = dice.choice([damage for damage in OF_FILES if damage not in (flip, garble)])
    elif dice.random() < 0.1:
        return swap_two(path, dice.choice([path for path in found if path.is_file()]))
    else:
        which = dice.choice(OF_FILES)
    try:
        which(path, dice)
    except PermissionError:
        return f"{which.__name__} {path.relative_to(root)} was not permitted"
    return f"{which.__name__} {path.relative_to(root)}"


def swap_two(one: Path, two: Path) -> str:
    """Swaps two files."""
    aside = one.with_name(one.name + ".swap")
    one.rename(aside)
    if two != one:
        two.rename(one)
    aside.rename(two)
    return f"swap {one.name} {two.name}"
