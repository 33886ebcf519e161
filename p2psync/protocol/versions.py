"""A version as a place to be at, and a manifest as a step towards one."""

from __future__ import annotations

import msgspec

from p2psync.protocol.manifest import Manifest


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Which version is live. digest: 16 bytes over all weights."""

    run: str
    epoch: int
    version: int
    digest: bytes


class PathStep(msgspec.Struct, frozen=True):
    """One manifest of a path, by its id (32 bytes)."""

    id: bytes
    manifest: Manifest
