"""Which file names a checkpoint may have. They come from manifests, so they may be hostile."""

from __future__ import annotations

from p2psync.errors import FormatError

_MAX_PART_BYTES = 255
_MAX_PATH_BYTES = 2048
SAFETENSORS = ".safetensors"


def check_path(name: str) -> str:
    """Return `name` if it is a plain relative path within a checkpoint, else raise `FormatError`.

    Refused, always: absolute paths, empty parts, parts that begin with a dot (so `.` and `..`, and hidden files, which
    a checkpoint never has), NUL and other control characters, backslashes, what is not UTF-8, parts over 255 bytes.
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
    """Whether a file of this name is read as safetensors."""
    return name.endswith(SAFETENSORS)
