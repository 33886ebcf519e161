"""Checks that every engine makes of a path before it changes anything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from p2psync.delta.tensors import TableRow, TensorSpec
from p2psync.engines.base import PathStep, Position, rows_after
from p2psync.engines.checkpoint.layout import check_rows
from p2psync.errors import BaseMismatchError
from p2psync.protocol.manifest import Manifest, check_consecutive


def position_of(manifest: Manifest) -> Position:
    """Returns the position of an engine on which this manifest is live."""
    return Position(run=manifest.run, epoch=manifest.epoch, version=manifest.version, digest=manifest.digest)


def rows_before(rows: Sequence[TableRow]) -> list[TensorSpec]:
    """Returns the specs that exist before a delta with these rows."""
    return [row.spec for row in rows if row.before]


def check_path(path: Sequence[PathStep], live: Position | None, table: Sequence[TensorSpec]) -> None:
    """Raises unless `path` leads, step by step, from the live version (position and specs), or from nothing.

    Raises `BaseMismatchError` where a step does not start where the one before it ends, `FormatError` for rows that no
    checkpoint can have.
    """
    if not path:
        raise BaseMismatchError("an empty path leads nowhere: resolve it again")
    first = path[0].manifest
    if first.base is not None:
        _check_base(first, live, table)
    elif rows_before(first.rows()):
        raise BaseMismatchError(f"the anchor of version {first.version} says that tensors were there before it")
    check_rows(rows_after(first.rows()))
    for before, step in itertools.pairwise(path):
        check_consecutive(before.manifest, step.manifest)
        rows = step.manifest.rows()
        if rows_after(before.manifest.rows()) != rows_before(rows):
            raise BaseMismatchError(f"version {step.manifest.version} changes tensors that its base has not")
        check_rows(rows_after(rows))


def _check_base(first: Manifest, live: Position | None, table: Sequence[TensorSpec]) -> None:
    if live is None or (live.run, live.version, live.digest) != (first.run, first.base, first.base_digest):
        at = "nothing" if live is None else f"version {live.version} of run {live.run[:8]}"
        raise BaseMismatchError(f"the path starts at version {first.base}, but {at} is live: resolve it again")
    if rows_before(first.rows()) != list(table):
        raise BaseMismatchError(f"version {first.version} changes tensors that version {first.base} has not")
