"""Names settings in messages as the caller of this process gave them: parameters in Python, options of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_as_options = False


@contextmanager
def named_as_options() -> Iterator[None]:
    """Makes `named` return options until the block ends: the command line runs in it."""
    global _as_options
    before, _as_options = _as_options, True
    try:
        yield
    finally:
        _as_options = before


def named(parameter: str, option: str = "") -> str:
    """Returns the name of a setting for a message: `hub_port`, or `--hub-port` on the command line.

    option: its name there, if it is another one.
    """
    if not _as_options:
        return parameter
    return option or f"--{parameter.replace('_', '-')}"
