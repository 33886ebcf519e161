"""`p2psync verify`: recompute the digest of a directory against a version's signed manifest."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.options import HubUrl, JoinToken, JsonTarget, TrainerKeys
from p2psync.cli.output import report_json
from p2psync.errors import DigestMismatchError, P2PSyncError, TrustError

if TYPE_CHECKING:
    from p2psync.membership.records import View
    from p2psync.protocol.manifest import Manifest


def verify(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A checkpoint, or the directory that an actor keeps.")
    ],
    join: HubUrl,
    trust: TrainerKeys,
    version: Annotated[int | None, typer.Option(help="The version it should be [the newest].")] = None,
    token: JoinToken = None,
    json: JsonTarget = None,
) -> None:
    """Check every bit of a checkpoint against what the trainer signed; exit 1 if it differs."""
    from p2psync.cli import daemon
    from p2psync.engines.checkpoint.files import Checkpoint

    if (directory / ".p2psync").is_dir() and (directory / "current").is_symlink():
        directory /= "current"  # as `p2psync actor --into` keeps it
    manifest, view = daemon.run(_manifest(join, token, version, daemon.trusted_keys(trust)))
    with _held_still(directory) as place, Checkpoint.open(place) as checkpoint:
        digest = checkpoint.digest()
    result = {
        "directory": str(directory),
        "version": manifest.version,
        "digest": digest.hex(),
        "signed": manifest.digest.hex(),
        "equal": digest == manifest.digest,
    }
    if json is not None:
        report_json(result, json)
    if digest != manifest.digest:
        what = next(
            (f"it is version {a.version}" for a in view.lineage if a.digest == digest.hex()), "no version is it"
        )
        raise DigestMismatchError(
            f"{directory} is not version {manifest.version}, {what}: its digest is {digest.hex()}, "
            f"{manifest.digest.hex()} was signed"
        )
    if json != "-":
        print(f"{directory} is version {manifest.version}, every bit: digest {digest.hex()}")


@contextmanager
def _held_still(directory: Path) -> Iterator[Path]:
    """Holds a lock under which no actor patches the files of a directory; yields the directory of the files."""
    if not directory.is_dir():
        yield directory
        return
    while True:
        place = directory.resolve()
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if directory.resolve() == place:
                yield place
                return
        finally:
            os.close(descriptor)


async def _manifest(
    url: str, token: str | None, version: int | None, trusted: frozenset[bytes]
) -> tuple[Manifest, View]:
    from p2psync.net.hub_client import HubClient
    from p2psync.protocol.manifest import open_signed

    async with HubClient(url, token) as client:
        view = await client.view()
        wanted = view.head if version is None else version
        ids = [a for a in view.lineage if a.version == wanted]
        if not ids:
            known = sorted({a.version for a in view.lineage})
            told = f"it has {known[0]} to {known[-1]}" if known else "it has none"
            raise P2PSyncError(f"the hub knows no version {wanted}: {told}")
        newest = max(ids, key=lambda a: a.epoch)
        manifest, signed = open_signed(await client.manifest(newest.id), trusted)
        if signed.id.hex() != newest.id:
            raise TrustError("the hub gave another manifest than the one it announced")
        return manifest, view
