"""Ed25519 identities: files, and their text form."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.errors import FormatError

_PREFIX = "ed25519:"


def public_text(key: bytes) -> str:
    """The text form of a raw public key (32 bytes): `ed25519:` and 64 hex digits."""
    return _PREFIX + key.hex()


def parse_public(text: str) -> bytes:
    """The raw public key (32 bytes) of its text form. Raises `FormatError`."""
    hexed = text.strip().removeprefix(_PREFIX)
    try:
        raw = bytes.fromhex(hexed)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise FormatError(f"{text!r} is not a public key; `p2psync keys new FILE` prints one")
    return raw


def private_text(key: Ed25519PrivateKey) -> str:
    """The text of a key file: one line with the private key."""
    return f"p2psync-private-{_PREFIX}{key.private_bytes_raw().hex()}\n"


def parse_private(text: str) -> Ed25519PrivateKey:
    """The private key of a key file's text. Raises `FormatError`."""
    try:
        return Ed25519PrivateKey.from_private_bytes(
            bytes.fromhex(text.strip().removeprefix("p2psync-private-" + _PREFIX))
        )
    except ValueError:
        raise FormatError("not a p2psync key file; make one with `p2psync keys new FILE`") from None
