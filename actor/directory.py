"""The directory engine as an actor's daemon uses it."""

from __future__ import annotations

from pathlib import Path

from p2psync.actor.node import chunk_reader
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.engines.directory.state import EngineDirectory
from p2psync.store.packs import Store


def local_digest(into: Path, base: Path | None) -> str:
    """The digest (hex) of a local copy of the base model, "" if there is none or `into` has a version already.

    Reads every byte of it. Raises `FormatError` if it is no sound checkpoint, `EngineError` if `into/current` is not
    one of ours; nothing was made yet.
    """
    home = EngineDirectory(into)
    if base is None or home.link.is_symlink():
        return ""
    with Checkpoint.open(base) as checkpoint:
        return checkpoint.digest().hex()


def open_directory(into: Path, store: Store, base: Path | None, reader_limit: float) -> DirectoryEngine:
    """The engine that keeps `into/current`. Raises `EngineError`."""
    return DirectoryEngine(into, chunk_reader(store), prefill=base, reader_limit=reader_limit)
