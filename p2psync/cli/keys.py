"""`p2psync keys`: identities."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.errors import P2PSyncError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

app = typer.Typer(help="Make and show identities.", no_args_is_help=True)


@app.command("new")
def new(file: Annotated[Path, typer.Argument(help="Where the private key goes; must not exist.")]) -> None:
    """Make an identity and print its public key."""
    _print_public(make_key(file))


@app.command("show")
def show(file: Annotated[Path, typer.Argument(help="A private key file.")]) -> None:
    """Print the public key of an identity."""
    _print_public(read_key(file))


def _print_public(key: Ed25519PrivateKey) -> None:
    from p2psync.protocol.keys import public_text

    print(public_text(key.public_key().public_bytes_raw()))


def make_key(file: Path) -> Ed25519PrivateKey:
    """A new private key in a new file that only its owner can read. Raises `P2PSyncError`, and `UsageError` for a
    key's text in place of a file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from p2psync.protocol.keys import private_text

    _check_is_no_key(file)
    key = Ed25519PrivateKey.generate()
    # Linked into place when it is whole and durable: a key file is never empty, whatever happens meanwhile.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as out:
                out.write(private_text(key))
                out.flush()
                os.fsync(out.fileno())
            file.hardlink_to(temporary)
        finally:
            temporary.unlink()
    except FileExistsError:
        raise P2PSyncError(f"{file} exists; a key is never written over: choose another name") from None
    except OSError as error:
        raise P2PSyncError(f"{file}: {error.strerror}; choose a place that can be written") from None
    return key


def read_key(file: Path) -> Ed25519PrivateKey:
    """The private key in a file. Raises as `make_key`."""
    from p2psync.protocol.keys import parse_private

    _check_is_no_key(file)
    try:
        return parse_private(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise P2PSyncError(f"{file}: {error.strerror}; make a key with `p2psync keys new {file}`") from None
    except P2PSyncError as error:
        raise P2PSyncError(f"{file}: {error}") from None


def _check_is_no_key(file: Path) -> None:
    """Raises `UsageError`, which shows no private key, for a key's own text: a new key would get that name."""
    for start, kind in (("ed25519:", "a public key"), ("p2psync-private-", "a private key's text")):
        if file.name.startswith(start):
            raise UsageError(f"{kind} is no file's name: give the file of the private key (`p2psync keys new FILE`)")
