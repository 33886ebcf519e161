"""Ways to damage a file: remove, truncate, grow, flip bits, or replace it by something else."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

#: Flipping a bit reads at most so many bytes of a file into memory.
_FLIPPED = 1 << 20
#: The content of foreign files.
FOREIGN = b"somebody's own" * 100


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
        theirs.write_bytes(FOREIGN)
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
    """Adds a foreign file beside it."""
    (path.parent / dice.choice(["notes.txt", ".hidden", "zz.safetensors"])).write_bytes(b"somebody's")


Damage = Callable[[Path, random.Random], None]
#: Each damage after which a file no longer holds what was written to it.
HARMFUL: Sequence[Damage] = (
    *(delete, empty, cut, grow, flip, garble),
    *(to_directory, to_nowhere, to_fifo, to_theirs),
)


def always_alike(damage: Damage) -> Callable[[Path], None]:
    """Returns the damage with dice that fall alike each time."""
    return lambda path: damage(path, random.Random(0))


#: The harmful damages by their names, to parametrize a test.
FILE_DAMAGES = {damage.__name__: always_alike(damage) for damage in HARMFUL}


def foreign_files_untouched(root: Path) -> bool:
    """Whether every file below `root` to which `to_theirs` made a link holds what it held."""
    return all(path.read_bytes() == FOREIGN for path in root.rglob(".theirs"))
