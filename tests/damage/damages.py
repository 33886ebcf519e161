"""Ways to damage a file: remove, truncate, grow, flip bits, swap, or replace it by something else."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

#: Maximum bytes of a file that are read into memory to flip bits.
_FLIPPED = 1 << 20


def delete(path: Path, dice: random.Random) -> None:
    """Removes it, with everything in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def empty(path: Path, dice: random.Random) -> None:
    """Empties it."""
    if path.is_dir():
        for entry in path.iterdir():
            delete(entry, dice)
    else:
        os.truncate(path, 0)


def cut(path: Path, dice: random.Random) -> None:
    """Truncates it."""
    os.truncate(path, dice.randrange(max(1, path.stat().st_size)))


def grow(path: Path, dice: random.Random) -> None:
    """Appends bytes."""
    with path.open("ab") as file:
        file.write(dice.randbytes(dice.choice([1, 100, 5000])))


def flip(path: Path, dice: random.Random) -> None:
    """Flips one bit."""
    size = path.stat().st_size
    if not size:
        return
    with path.open("r+b") as file:
        at = dice.randrange(size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))


def garble(path: Path, dice: random.Random) -> None:
    """Replaces its bytes by as many random ones."""
    path.write_bytes(dice.randbytes(min(_FLIPPED, path.stat().st_size)))


def to_directory(path: Path, dice: random.Random) -> None:
    """Replaces it by a directory, which may hold a file."""
    delete(path, dice)
    path.mkdir()
    if dice.random() < 0.5:
        (path / "notes.txt").write_text("somebody's")


def to_file(path: Path, dice: random.Random) -> None:
    """Replaces it by an empty or a small file."""
    delete(path, dice)
    path.write_bytes(dice.choice([b"", b"{}", b"somebody's"]))


def to_nowhere(path: Path, dice: random.Random) -> None:
    """Replaces it by a dangling link."""
    delete(path, dice)
    path.symlink_to("nowhere")


def to_fifo(path: Path, dice: random.Random) -> None:
    """Replaces it by a fifo, which blocks a plain open."""
    delete(path, dice)
    os.mkfifo(path)


def to_theirs(path: Path, dice: random.Random) -> None:
    """Replaces it by a link to a foreign file."""
    theirs = path.parent / ".theirs"
    if not theirs.exists():
        theirs.write_bytes(b"somebody's own" * 100)
    delete(path, dice)
    path.symlink_to(theirs.name)


def forbid(path: Path, dice: random.Random) -> None:
    """Removes all permissions."""
    path.chmod(0)


def replace(path: Path, dice: random.Random) -> None:
    """Replaces it by a copy, as a restored backup does."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def add_foreign_file(path: Path, dice: random.Random) -> None:
    """Adds a foreign file next to it."""
    (path.parent / dice.choice(["notes.txt", ".hidden", "zz.safetensors"])).write_bytes(b"somebody's")


Damage = Callable[[Path, random.Random], None]
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
