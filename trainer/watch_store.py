"""Where a watcher's memory is kept: one file in the trainer's store, replaced durably."""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2psync.engines.checkpoint_names import order_of
from p2psync.engines.names import is_weights
from p2psync.errors import StoreError
from p2psync.store.disk import disk_errors, write_durably
from trainer.watch_memory import Live, Memory, Seen

#: Names in the store: of today's memory, and of that of earlier releases, which is read where the first is missing.
MEMORY, OLD_MEMORY = "checkpoints.json", "watched.json"


def save_memory(store: Path, data: bytes) -> None:
    """Make an encoded memory durable. Raises `StoreError`."""
    with disk_errors(store / MEMORY):
        write_durably(store / MEMORY, data)


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
