"""Keeps a watcher's memory in one file in the trainer's store, which is replaced durably."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from p2psync.engines.checkpoint.file_names import is_weights
from p2psync.engines.checkpoint.framework_names import order_of
from p2psync.store.records import recover_record, save_record
from p2psync.trainer.watch.memory import LiveCheckpoint, SeenCheckpoint, WatchMemory

#: Files in the store: the memory, and the one of earlier releases, which is read where the first is missing.
MEMORY, OLD_MEMORY = "checkpoints.json", "watched.json"
#: Path, inode, size (bytes) and time of the last write (ns) of a file, as earlier releases remembered it.
_OldFile: TypeAlias = tuple[str, int, int, int]


def save_memory(store: Path, data: bytes) -> None:
    """Write an encoded memory durably. Raises `StoreError`."""
    save_record(store / MEMORY, msgspec.Raw(data))


def load_memory(store: Path, root: Path, tell: Callable[[str], None] = lambda line: None) -> WatchMemory:
    """Returns the memory in a store; an empty one if there is none. root: the watched directory, resolved.

    A damaged file is moved away; tell: takes a line about that. Raises `StoreError` if it cannot be moved away.
    """
    loss = "of the checkpoints that are there only the newest is published"
    memory = recover_record(store / MEMORY, WatchMemory, tell, loss)
    if memory is None:
        old = recover_record(store / OLD_MEMORY, dict[str, tuple[_OldFile, ...]], tell, loss)
        memory = WatchMemory() if old is None else _from_old(old, root)
    return memory


def _from_old(old: Mapping[str, tuple[_OldFile, ...]], root: Path) -> WatchMemory:
    """Returns a memory made of the paths and files that earlier releases remembered."""
    memory, newest = WatchMemory(), None
    for text, files in old.items():
        path = Path(text).resolve()
        if not path.is_relative_to(root):
            continue
        name = "" if path == root else path.relative_to(root).as_posix()
        weights = tuple((file, size, mtime) for file, _, size, mtime in files if is_weights(file))
        order, time = order_of(name), max((mtime for *_, mtime in weights), default=0)
        memory.remember(name, SeenCheckpoint("", weights))
        if (
            newest is None
            or (order.family == newest.family and order.numbers > newest.numbers)
            or (order.family != newest.family and time > newest.time)
        ):
            newest = LiveCheckpoint(name, order.family, order.numbers, weights, "", time, -1)
    memory.live = newest
    return memory
