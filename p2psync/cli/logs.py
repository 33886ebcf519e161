"""The log of a command: events and Python's logging under `p2psync`, as text or JSON lines on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
from enum import StrEnum
from typing import TextIO

from p2psync.observe.log_format import JsonFormatter, TerminalFormatter, TextFormatter


class Format(StrEnum):
    """The format of log lines."""

    text = "text"
    json = "json"


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at the moment. A stream that refuses, such as a closed pipe, stops nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            print(self.format(record), file=sys.stderr, flush=True)


def level_of(*, verbose: bool, quiet: bool) -> int:
    """The least severity that is logged."""
    return logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO


def set_up(level: int = logging.INFO, form: Format = Format.text) -> None:
    """Log what happens under `p2psync` to stderr, from `level` on; replaces an earlier set-up."""
    logger = logging.getLogger("p2psync")
    for handler in [one for one in logger.handlers if isinstance(one, _Stderr)]:
        logger.removeHandler(handler)
    handler = _Stderr()
    handler.setFormatter(_formatter(form, sys.stderr, level))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def _formatter(form: Format, stream: TextIO, level: int) -> logging.Formatter:
    if form is Format.json:
        return JsonFormatter()
    return TerminalFormatter() if stream.isatty() else TextFormatter(names=level <= logging.DEBUG)
