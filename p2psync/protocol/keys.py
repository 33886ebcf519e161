"""Ed25519 identities: files, and their text form."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.errors import FormatError

_PREFIX = "ed25519:"
_PRIVATE_PREFIX = f"p2psync-private-{_PREFIX}"
#: The line at the start of private keys of OpenSSL and OpenSSH.
_FOREIGN_PRIVATE = "PRIVATE KEY-----"


def public_text(key: bytes) -> str:
    """The text form of a raw public key (32 bytes): `ed25519:` and 64 hex digits."""
    return _PREFIX + key.hex()


def parse_public(text: str) -> bytes:
    """The raw public key (32 bytes) of its text form. Raises `FormatError`, which shows no private key."""
    if is_private(text):
        raise FormatError("this is a private key: give the public one, which `p2psync keys show FILE` prints")
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
    return f"{_PRIVATE_PREFIX}{key.private_bytes_raw().hex()}\n"


def parse_private(text: str) -> Ed25519PrivateKey:
    """The private key of a key file's text. Raises `FormatError`."""
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text.strip().removeprefix(_PRIVATE_PREFIX)))
    except ValueError:
        what = "a public key, which signs nothing" if text.startswith(_PREFIX) else "not a p2psync key file"
        raise FormatError(f"{what}; give the file that `p2psync keys new FILE` makes") from None


def is_private(text: str) -> bool:
    """Returns whether a text is meant as a private key: one of p2psync, OpenSSL or OpenSSH, whole or not."""
    return text.lstrip().startswith("p2psync-private-") or _FOREIGN_PRIVATE in text
