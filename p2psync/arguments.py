"""Takes settings as people have them: paths and keys as text, keys as files. Refuses the rest in one line."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from p2psync.errors import FormatError, UsageError
from p2psync.protocol.keys import is_private, parse_private, parse_public, public_text

#: Bytes of a raw public key.
_PUBLIC_BYTES = 32
#: Characters of an invalid key that an error shows.
_SHOWN = 100
_NO_KEY = "is not a public key: give its text (ed25519: and 64 hex digits), its 32 raw bytes, or a file of it"

if TYPE_CHECKING:
    OnePublicKey: TypeAlias = str | bytes | Path | Ed25519PublicKey

    class Directory:
        """A setting that takes a path or text, and is a path."""

        def __get__(self, instance: object, owner: type | None = None) -> Path: ...
        def __set__(self, instance: object, value: str | Path) -> None: ...

    class PrivateKey:
        """A setting that takes a private key, a key file or its text, and is a key."""

        def __get__(self, instance: object, owner: type | None = None) -> Ed25519PrivateKey: ...
        def __set__(self, instance: object, value: Ed25519PrivateKey | str | Path) -> None: ...

    class PublicKeys:
        """A setting that takes one or several public keys, each as `as_public_keys` does, and is raw keys."""

        def __get__(self, instance: object, owner: type | None = None) -> frozenset[bytes]: ...
        def __set__(self, instance: object, value: OnePublicKey | Iterable[OnePublicKey]) -> None: ...
else:
    Directory, PrivateKey, PublicKeys = Path, Ed25519PrivateKey, frozenset[bytes]

T = TypeVar("T")


def required(kind: type[T], *, shown: bool = True) -> T:
    """A setting without a default; a type checker takes for it what the setter of `kind` takes. shown: in the repr."""
    setting: T = field(repr=shown)
    return setting


def as_directory(given: object, setting: str) -> Path:
    """A directory given as a path or text. Raises `UsageError`, which names the setting."""
    return _as_path(given, setting, "directory")


def as_file(given: object, setting: str) -> Path:
    """A file given as a path or text. Raises `UsageError`, which names the setting."""
    return _as_path(given, setting, "file")


def _as_path(given: object, setting: str, kind: str) -> Path:
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given):
        return Path(given)
    raise UsageError(f"{setting}={given!r}: give a {kind}, as a path or text")


def as_private_key(given: object, setting: str) -> Ed25519PrivateKey:
    """A private key given as one, as the text of a key file, or as the path of one. Raises `UsageError`."""
    if isinstance(given, Ed25519PrivateKey):
        return given
    try:
        if isinstance(given, str) and is_private(given):
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
    """Public keys, one or several. Raises `UsageError`, which names the setting.

    Each is text (`ed25519:…`), 32 raw bytes, an Ed25519PublicKey, or a file with such text. A private key is refused.
    """
    keys = [given] if isinstance(given, str | bytes | Path | Ed25519PublicKey | Ed25519PrivateKey) else given
    if not isinstance(keys, Iterable) or not (several := list(keys)):
        raise UsageError(f"{setting}={given!r}: give the publisher's public key; `p2psync keys new FILE` prints it")
    return frozenset(_public_key(key, setting) for key in several)


def host_name(given: str) -> str:
    """Returns the name of a node for people: the given one, or else that of this machine."""
    return given or socket.gethostname()


def _public_key(given: object, setting: str) -> bytes:
    if isinstance(given, Ed25519PublicKey):
        return given.public_bytes_raw()
    if isinstance(given, bytes) and len(given) == _PUBLIC_BYTES:
        return given
    if isinstance(given, bytes):
        try:
            given = given.decode()
        except UnicodeDecodeError:
            raise UsageError(f"{setting}: {_short(given)} {_NO_KEY}") from None
    if isinstance(given, Ed25519PrivateKey):
        raise _is_private(given, setting, "this")
    if isinstance(given, str):
        if is_private(given):
            raise _is_private(given, setting, "this")
        with suppress(FormatError):
            return parse_public(given)
    if isinstance(given, str | Path):
        return _key_in_file(given, setting)
    raise UsageError(f"{setting}: {_short(given)} {_NO_KEY}")


def _key_in_file(given: str | Path, setting: str) -> bytes:
    try:
        text = Path(given).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        if isinstance(given, Path):
            raise UsageError(f"{setting}: the key file {str(given)!r} cannot be read") from None
        raise UsageError(f"{setting}: {_short(given)} {_NO_KEY}") from None
    if is_private(text):
        raise _is_private(text, setting, repr(str(given)))
    try:
        return parse_public(text)
    except FormatError:
        raise UsageError(f"{setting}: {str(given)!r} holds no key; `p2psync keys new FILE` makes one") from None


def _is_private(key: Ed25519PrivateKey | str, setting: str, what: str) -> UsageError:
    """Returns the refusal of a private key in place of a public one. what: names it; its text is never shown."""
    public = "which `p2psync keys new FILE` prints"
    with suppress(FormatError):
        key = key if isinstance(key, Ed25519PrivateKey) else parse_private(key)
        public = f"{public_text(key.public_key().public_bytes_raw())}, or a file of it"
    return UsageError(f"{setting}: {what} is a private key, for its owner alone: give the public key, {public}")


def _short(given: object) -> str:
    text = repr(given)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
