"""The events that tell people of a version that was built. Pure but for the clock of `published_event`."""

from __future__ import annotations

import time

from p2psync.observe.events import FewTensorsShared, Published
from p2psync.trainer.versions.builder import BuiltVersion


def published_event(built: BuiltVersion, checkpoint: str = "") -> Published:
    """Returns the event of a version. checkpoint: where it was read from, for people."""
    manifest = built.pack.manifest
    return Published(
        version=manifest.version,
        digest=manifest.digest.hex(),
        anchor=manifest.base is None,
        changed=manifest.changed,
        total=manifest.total,
        payload_bytes=manifest.payload_bytes,
        full_bytes=sum(row.spec.nbytes for row in manifest.rows() if row.after),
        chunks=manifest.chunks,
        seconds=built.seconds,
        at=time.time(),
        profile=manifest.profile,
        checkpoint=checkpoint,
    )


def unlike_event(built: BuiltVersion) -> FewTensorsShared | None:
    """Returns the warning for a delta that keeps less than half of the bytes in their tensors; None for any other.

    Such a version is that of another model, most likely.
    """
    manifest = built.pack.manifest
    if manifest.base is None:
        return None
    rows = manifest.rows()
    after = [row.spec for row in rows if row.after]
    shared = [row.spec for row in rows if row.after and row.before]
    nbytes, kept = sum(spec.nbytes for spec in after), sum(spec.nbytes for spec in shared)
    if kept * 2 >= nbytes:
        return None
    return FewTensorsShared(manifest.version, manifest.base, len(shared), len(after), kept, nbytes)
