"""`p2psync verify`: recompute the digest of a directory against a version's signed manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli import daemon
from p2psync.cli.output import report_json
from p2psync.errors import DigestMismatchError, P2PSyncError, TrustError
from p2psync.protocol.manifest import Manifest


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A checkpoint, such as an actor's DIR/current.")],
    join: Annotated[str, typer.Option(help="The hub's URL.")],
    trust: Annotated[list[str], typer.Option(help="The trainer's public key, or a file with it; may be repeated.")],
    version: Annotated[int | None, typer.Option(help="The version it should be [the newest].")] = None,
    token: Annotated[str | None, typer.Option(help="Join token.")] = None,
    json: Annotated[str | None, typer.Option(help="The figures as JSON to FILE, or - for stdout.")] = None,
) -> None:
    """Check every bit of a checkpoint against what the trainer signed; exit 1 if it differs."""
    from p2psync.engines.checkpoint import Checkpoint

    manifest = daemon.run(_manifest(join, token, version, daemon.trusted_keys(trust)))
    with Checkpoint.open(directory) as checkpoint:
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
        raise DigestMismatchError(
            f"{directory} is not version {manifest.version}: its digest is {digest.hex()}, {manifest.digest.hex()} was "
            f"signed"
        )
    if json != "-":
        print(f"{directory} is version {manifest.version}, every bit: digest {digest.hex()}")


async def _manifest(url: str, token: str | None, version: int | None, trusted: frozenset[bytes]) -> Manifest:
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
        return manifest
