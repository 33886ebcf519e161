"""What a watcher remembers from one life to the next: what is live, and what has been published or overtaken."""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2psync.engines.checkpoint_names import order_of
from p2psync.engines.names import is_weights
from p2psync.errors import StoreError
from trainer.candidates import Weights

#: Names of the memory in a trainer's store: today's, and that of releases up to 0.1, which is read once.
MEMORY, OLD_MEMORY = "checkpoints.json", "watched.json"
#: Paths and prints that are remembered, the latest ones: 200 bytes each, so the file stays below a few MB.
MAX_REMEMBERED = 8192


class Live(msgspec.Struct, frozen=True):
    """The checkpoint that is live, as version `version`.

    family, numbers: its place in the order. print: of its weights, "" if not known. time: when its family was last
    written to (Unix ns).
    """

    path: str
    family: str
    numbers: tuple[int, ...]
    weights: Weights
    print: str
    time: int
    version: int


class Seen(msgspec.Struct, frozen=True):
    """A checkpoint that was published or overtaken. print: "" if it was not whole then."""

    print: str
    weights: Weights


class Pending(msgspec.Struct, frozen=True):
    """What is being published. before: the version that was live (None: none). overtaken: what it will overtake."""

    live: Live
    before: int | None
    overtaken: dict[str, Seen]


class Memory(msgspec.Struct):
    """paths: checkpoints that were dealt with. prints: their weights, now and before, with the path they were seen at.

    pending: what was being published when this was saved.
    """

    live: Live | None = None
    paths: dict[str, Seen] = {}
    prints: dict[str, str] = {}
    pending: Pending | None = None

    def remember(self, path: str, seen: Seen) -> None:
        """A checkpoint has been published or overtaken with these weights."""
        self.paths.pop(path, None)
        self.paths[path] = seen
        if seen.print:
            self.prints.pop(seen.print, None)
            self.prints[seen.print] = path
        for known in (self.paths, self.prints):
            while len(known) > MAX_REMEMBERED:
                del known[next(iter(known))]  # type: ignore[attr-defined]


def load_memory(store: Path, root: Path) -> Memory:
    """The memory in a store. root: the watched directory, resolved. Raises `StoreError`."""
    for name, read in ((MEMORY, _decode), (OLD_MEMORY, lambda data: _from_old(data, root))):
        try:
            return read((store / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(f"{store / name} cannot be read ({error}): remove it") from None
    return Memory()


def _decode(data: bytes) -> Memory:
    return msgspec.json.decode(data, type=Memory)


def _from_old(data: bytes, root: Path) -> Memory:
    """From the paths and files (path, inode, size, mtime) that earlier releases remembered."""
    old = msgspec.json.decode(data, type=dict[str, tuple[tuple[str, int, int, int], ...]])
    memory, newest = Memory(), None
    for text, files in old.items():
        path = Path(text).resolve()
        if not path.is_relative_to(root):
            continue
        name = "" if path == root else path.relative_to(root).as_posix()
        weights = tuple((file, size, mtime) for file, _, size, mtime in files if is_weights(file))
        order, time = order_of(name), max((mtime for *_, mtime in weights), default=0)
        memory.remember(name, Seen("", weights))
        if (
            newest is None
            or (order.family == newest.family and order.numbers > newest.numbers)
            or (order.family != newest.family and time > newest.time)
        ):
            newest = Live(name, order.family, order.numbers, weights, "", time, -1)
    memory.live = newest
    return memory
