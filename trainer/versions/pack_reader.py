"""Reads back the chunks of the trainer's own packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from p2psync.errors import StoreError
from p2psync.store.pack import Pack


class UnreadableError(StoreError):
    """A chunk that the store had is damaged or cannot be read."""


def chunk_reader(pack: Pack) -> Callable[[int], bytes]:
    """Returns a function that reads chunk `index` of a pack and raises `UnreadableError` if it cannot."""

    def chunk(index: int) -> bytes:
        try:
            data = pack.read(index)
        except StoreError as error:
            raise UnreadableError(str(error)) from error
        if data is None:
            raise UnreadableError(f"{pack.path}: chunk {index} cannot be read back: is the disk sound?")
        return data

    return chunk


def held_chunks(pack: Pack) -> Iterator[bytes]:
    """Yields the chunks of a pack that are kept here, in order, as they are on the disk. Raises `UnreadableError`."""
    return map(chunk_reader(pack), (index for index, held in enumerate(pack.part) if held))


def pack_name(pack: Pack) -> str:
    """Returns a description of a pack's version."""
    m = pack.manifest
    return f"the anchor of version {m.version}" if m.base is None else f"the delta {m.base} → {m.version}"
