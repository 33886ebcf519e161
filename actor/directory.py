"""Opens the directory engine for an actor's daemon."""

from __future__ import annotations

from pathlib import Path

from p2psync.actor.node import chunk_reader
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.engines.directory.state import DirectoryFiles
from p2psync.store.packs import Store


def local_digest(into: Path, base: Path | None) -> str:
    """Returns the digest (hex) of a local copy of the base model, "" if there is none or `into` has a version already.

    Reads every byte of the copy, and changes nothing. Raises `FormatError` if it is not a valid checkpoint,
    `EngineError` if `into/current` was not made by this engine.
    """
    directory = DirectoryFiles(into)
    if base is None or directory.link.is_symlink():
        return ""
    with Checkpoint.open(base) as checkpoint:
        return checkpoint.digest().hex()


def open_directory(into: Path, store: Store, base: Path | None, reader_limit: float) -> DirectoryEngine:
    """Opens the engine that keeps `into/current`. Raises `EngineError`.

    base: a local checkpoint whose tensors are taken where they are equal. reader_limit: seconds.
    """
    return DirectoryEngine(into, chunk_reader(store), prefill=base, reader_limit=reader_limit)
