"""Takes settings as people have them: paths and keys as text, keys as files. Refuses the rest in one line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.errors import FormatError, UsageError
from p2psync.protocol.keys import parse_private, parse_public

#: Bytes of a raw public key.
_PUBLIC_BYTES = 32


def as_directory(given: object, setting: str) -> Path:
    """A directory given as a path or text. Raises `UsageError`, which names the setting."""
    if isinstance(given, Path) or (isinstance(given, str) and given):
        return Path(given)
    raise UsageError(f"{setting}={given!r}: give a directory, as a path or text")


def as_private_key(given: object, setting: str) -> Ed25519PrivateKey:
    """A private key given as one, as the text of a key file, or as the path of one. Raises `UsageError`."""
    if isinstance(given, Ed25519PrivateKey):
        return given
    try:
        if isinstance(given, str) and given.strip().startswith("p2psync-private-"):
            return parse_private(given)
        if isinstance(given, str | Path) and str(given):
            return parse_private(Path(given).read_text())
    except OSError as error:
        raise UsageError(f"{setting}: the key file {str(given)!r} cannot be read ({error.strerror})") from None
    except ValueError:  # of a file that is no text, or a path that no file can have
        raise UsageError(f"{setting}: {str(given)!r} is no key file; `p2psync keys new FILE` makes one") from None
    except FormatError as error:
        raise UsageError(f"{setting}: {error}") from None
    raise UsageError(
        f"{setting}={type(given).__name__}: give an Ed25519PrivateKey, or a key file that `p2psync keys new FILE` made"
    )


def as_public_keys(given: object, setting: str) -> frozenset[bytes]:
    """Public keys, one or several, each given as text (`ed25519:…`) or as 32 raw bytes. Raises `UsageError`."""
    keys = [given] if isinstance(given, str | bytes) else given
    if not isinstance(keys, Iterable) or not (several := list(keys)):
        raise UsageError(f"{setting}={given!r}: give the publisher's public key; `p2psync keys new FILE` prints it")
    return frozenset(_public_key(key, setting) for key in several)


def _public_key(given: object, setting: str) -> bytes:
    if isinstance(given, bytes) and len(given) == _PUBLIC_BYTES:
        return given
    try:
        return parse_public(given.decode() if isinstance(given, bytes) else str(given))
    except (FormatError, UnicodeDecodeError):
        raise UsageError(
            f"{setting}: {given!r} is no public key: give its text (ed25519: and 64 hex digits) or its 32 raw bytes"
        ) from None
