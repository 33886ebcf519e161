"""A node's live version, and the manifests that lead from it to another."""

from __future__ import annotations

import msgspec

from p2psync.protocol.manifest import Manifest


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The live version. run: 32 hex digits. digest: over all weights, 16 bytes."""

    run: str
    epoch: int
    version: int
    digest: bytes


class PathStep(msgspec.Struct, frozen=True):
    """One manifest of a path, by its id (32 bytes)."""

    id: bytes
    manifest: Manifest
