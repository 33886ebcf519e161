"""What can befall a file: removed, cut, grown, flipped, swapped, or replaced by something that is no such file."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

#: What a damaged file holds at most is read into memory to be flipped (bytes).
_FLIPPED = 1 << 20


def delete(path: Path, dice: random.Random) -> None:
    """Gone, with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def empty(path: Path, dice: random.Random) -> None:
    """Nothing is left of what was in it."""
    if path.is_dir():
        for entry in path.iterdir():
            delete(entry, dice)
    else:
        os.truncate(path, 0)


def cut(path: Path, dice: random.Random) -> None:
    """The end is missing."""
    os.truncate(path, dice.randrange(max(1, path.stat().st_size)))


def grow(path: Path, dice: random.Random) -> None:
    """There is more behind its end."""
    with path.open("ab") as file:
        file.write(dice.randbytes(dice.choice([1, 100, 5000])))


def flip(path: Path, dice: random.Random) -> None:
    """A bit is another one."""
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
    """Other bytes, as many as before."""
    path.write_bytes(dice.randbytes(min(_FLIPPED, path.stat().st_size)))


def to_directory(path: Path, dice: random.Random) -> None:
    """A directory stands in its place, which may hold something."""
    delete(path, dice)
    path.mkdir()
    if dice.random() < 0.5:
        (path / "notes.txt").write_text("somebody's")


def to_file(path: Path, dice: random.Random) -> None:
    """An empty or a small file stands in its place."""
    delete(path, dice)
    path.write_bytes(dice.choice([b"", b"{}", b"somebody's"]))


def to_nowhere(path: Path, dice: random.Random) -> None:
    """A link to nothing stands in its place."""
    delete(path, dice)
    path.symlink_to("nowhere")


def to_fifo(path: Path, dice: random.Random) -> None:
    """A fifo stands in its place, which blocks whoever opens it without care."""
    delete(path, dice)
    os.mkfifo(path)


def to_theirs(path: Path, dice: random.Random) -> None:
    """A link to a file of somebody else stands in its place."""
    theirs = path.parent / ".theirs"
    if not theirs.exists():
        theirs.write_bytes(b"somebody's own" * 100)
    delete(path, dice)
    path.symlink_to(theirs.name)


def forbid(path: Path, dice: random.Random) -> None:
    """Nobody may read or write it (but root)."""
    path.chmod(0)


def replace(path: Path, dice: random.Random) -> None:
    """Another file with the same bytes, as a restored backup is."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def add_beside(path: Path, dice: random.Random) -> None:
    """Somebody's file is beside it."""
    (path.parent / dice.choice(["notes.txt", ".hidden", "zz.safetensors"])).write_bytes(b"somebody's")


Damage = Callable[[Path, random.Random], None]
OF_FILES: Sequence[Damage] = (
    *(delete, empty, cut, cut, grow, flip, flip, garble, replace, add_beside),
    *(to_directory, to_nowhere, to_fifo, to_theirs, forbid),
)
OF_DIRECTORIES: Sequence[Damage] = (delete, empty, to_file, to_nowhere, to_fifo, forbid, add_beside)


def places(root: Path, spared: Callable[[Path], bool]) -> list[Path]:
    """Everything below a directory, in a fixed order, but for what is spared."""
    found = [path for path in root.rglob("*") if not spared(path) and not path.name.startswith(".theirs")]
    return sorted(found)


def damage_one(
    root: Path,
    dice: random.Random,
    spared: Callable[[Path], bool],
    unseen: Callable[[Path], bool] = lambda path: False,
) -> str:
    """Damage one thing below `root`; returns what was done, "" if there is nothing.

    unseen: files of which nobody looks whether their bits turned, so that none of them is.
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
    """Each stands in the other's place."""
    aside = one.with_name(one.name + ".swap")
    one.rename(aside)
    if two != one:
        two.rename(one)
    aside.rename(two)
    return f"swap {one.name} {two.name}"
