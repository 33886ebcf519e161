"""Checks the file names of a checkpoint. They come from manifests, so they may be hostile."""

from __future__ import annotations

from p2psync.errors import FormatError

_MAX_PART_BYTES = 255
_MAX_PATH_BYTES = 2048
SAFETENSORS = ".safetensors"


def check_file_name(name: str) -> str:
    """Returns `name` if it is a plain relative path within a checkpoint, else raises `FormatError`.

    Refuses absolute paths, empty parts, parts that start with a dot (so `.`, `..`, and hidden files, which a checkpoint
    never has), control characters, backslashes, names that are not UTF-8, and parts over 255 bytes.
    """
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise FormatError(f"file name {name!r} is not UTF-8: rename the file") from None
    if len(encoded) > _MAX_PATH_BYTES:
        raise FormatError(f"a file name of {len(encoded)} bytes is over {_MAX_PATH_BYTES}")
    for part in name.split("/"):
        if not part or part.startswith(".") or "\\" in part or not part.isprintable():
            raise FormatError(f"file name {name!r} is not a plain path within a checkpoint")
        if len(part.encode()) > _MAX_PART_BYTES:
            raise FormatError(f"file name {name!r} has a part over {_MAX_PART_BYTES} bytes")
    return name


def is_weights(name: str) -> bool:
    """Returns whether a file of this name is read as safetensors."""
    return name.endswith(SAFETENSORS)
