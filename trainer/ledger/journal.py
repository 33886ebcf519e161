"""A ledger's changes on disk: an SQLite file, so that acknowledged changes outlive the process and the machine.

SQLite runs in WAL mode with synchronous=FULL: each batch of changes is one transaction, appended with checksums and
synced once; a torn tail is left out at the next start; pages of removed rows are used again, so the file stays about as
large as the most state alive at once. The cost is that results are written twice (log and table); an append-only
journal of our own would have to rewrite live results instead, to compact itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from p2psync.errors import StoreError
from p2psync.membership.work import WorkItem
from p2psync.trainer.ledger.records import (
    ClaimsEnded,
    ItemsClaimed,
    ItemsDropped,
    ItemsPut,
    LedgerChange,
    LedgerResult,
    ResultAccepted,
    ResultsReturned,
    ResultsTaken,
    SavedLedger,
    StepCommitted,
    VersionAdmitted,
)

#: Version of the file's layout.
FORMAT = 1
#: The write-ahead log is cut to this length when it was longer (bytes); free pages beyond these go back to the disk.
_LOG_BYTES = 16 << 20
_FREE_PAGES = 4096
_PAGE = 16384

_TABLES = """
CREATE TABLE number (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE version (number INTEGER PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE item (number INTEGER PRIMARY KEY, id TEXT NOT NULL, version INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE TABLE claim (item INTEGER, lease TEXT, node TEXT NOT NULL, PRIMARY KEY (item, lease)) WITHOUT ROWID;
CREATE TABLE result (place INTEGER PRIMARY KEY, item INTEGER NOT NULL UNIQUE, node TEXT NOT NULL,
    version INTEGER NOT NULL, tokens INTEGER NOT NULL, taken INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE remembered (place INTEGER PRIMARY KEY, id TEXT NOT NULL);
"""


class Journal:
    """One file. `write` and `close` from one thread at a time; the constructor's thread may be another."""

    def __init__(self, path: Path, remembered: int = 65536) -> None:
        """Opens or makes the file at `path`, and locks it. remembered: how many ids of completed items are kept.

        Raises `StoreError` if it is in use, unreadable, or of another layout.
        """
        self._path = path
        self._remembered = remembered
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path}: {error}: check the path and its permissions") from None
        try:
            with self._errors():
                self._open()
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        run = self._db.execute
        run(f"PRAGMA page_size={_PAGE}")
        run("PRAGMA auto_vacuum=INCREMENTAL")
        run("PRAGMA locking_mode=EXCLUSIVE")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        run(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        run("BEGIN EXCLUSIVE")
        (found,) = run("PRAGMA user_version").fetchone()
        if found not in (0, FORMAT):
            raise StoreError(f"{self._path} is of layout {found}, not {FORMAT}: move it away, or use the right p2psync")
        if found == 0:
            for statement in _TABLES.split(";")[:-1]:
                run(statement)
            run(f"PRAGMA user_version={FORMAT}")
        run("COMMIT")

    def read(self) -> SavedLedger:
        """Returns the state that was written. Raises `StoreError`."""
        with self._errors():
            run = self._db.execute
            numbers = dict(run("SELECT name, value FROM number"))
            work = {
                number: WorkItem(item=item, version=version, payload=payload)
                for number, item, version, payload in run("SELECT number, id, version, payload FROM item")
            }
            results: list[list[LedgerResult]] = [[], []]
            for place, item, node, version, tokens, taken, data in run("SELECT * FROM result ORDER BY place"):
                results[taken].append(
                    LedgerResult(
                        item=work.pop(item),
                        node=node,
                        version=version,
                        result=data,
                        tokens=tokens,
                        number=item,
                        order=place,
                    )
                )
            return SavedLedger(
                step=numbers.get("step", 0),
                next_number=numbers.get("next_number", 0),
                next_order=numbers.get("next_order", 0),
                versions=list(run("SELECT number, digest FROM version ORDER BY number")),
                open=sorted(work.items()),
                claims=list(run("SELECT lease, node, item FROM claim ORDER BY lease, item")),
                done=results[0],
                taken=results[1],
                remembered=[row[0] for row in run("SELECT id FROM remembered ORDER BY place")],
            )

    def write(self, changes: Sequence[LedgerChange]) -> None:
        """Make these changes durable, all or none. Raises `StoreError`; then nothing was written."""
        with self._errors():
            self._db.execute("BEGIN")
            try:
                for change in changes:
                    self._apply(change)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            if any(isinstance(change, StepCommitted) for change in changes):
                self._give_back()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()

    def _apply(self, change: LedgerChange) -> None:
        run, many = self._db.execute, self._db.executemany
        match change:
            case VersionAdmitted():
                run("INSERT OR REPLACE INTO version VALUES (?, ?)", (change.version, change.digest))
                run("DELETE FROM version WHERE number < ?", (change.oldest,))
            case ItemsPut():
                rows = enumerate(change.items, change.first)
                many("INSERT INTO item VALUES (?, ?, ?, ?)", ((n, w.item, w.version, w.payload) for n, w in rows))
                self._set("next_number", change.first + len(change.items))
            case ItemsClaimed():
                many("INSERT INTO claim VALUES (?, ?, ?)", ((n, change.lease, change.node) for n in change.items))
            case ClaimsEnded():
                many("DELETE FROM claim WHERE item = ? AND lease = ?", ((n, change.lease) for n in change.items))
            case ResultAccepted():
                self._accept(change)
            case ResultsTaken():
                many("UPDATE result SET taken = 1 WHERE item = ?", _each(change.items))
            case ResultsReturned():
                many("UPDATE result SET taken = 0 WHERE item = ?", _each(change.items))
            case StepCommitted():
                run("DELETE FROM item WHERE number IN (SELECT item FROM result WHERE taken = 1)")
                run("DELETE FROM result WHERE taken = 1")
                self._set("step", change.step)
            case ItemsDropped():
                many("DELETE FROM claim WHERE item = ?", _each(change.items))
                many("DELETE FROM item WHERE number = ?", _each(change.items))

    def _accept(self, change: ResultAccepted) -> None:
        run = self._db.execute
        run("DELETE FROM claim WHERE item = ?", (change.item,))
        row = (change.order, change.item, change.node, change.version, change.tokens, 0, change.result)
        run("INSERT INTO result VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        run("INSERT INTO remembered SELECT ?, id FROM item WHERE number = ?", (change.order, change.item))
        run("DELETE FROM remembered WHERE place <= ?", (change.order - self._remembered,))
        self._set("next_order", change.order + 1)

    def _set(self, name: str, value: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO number VALUES (?, ?)", (name, value))

    def _give_back(self) -> None:
        (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
        if free > _FREE_PAGES:
            self._db.execute(f"PRAGMA incremental_vacuum({free - _FREE_PAGES})").fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text:
                raise StoreError(f"{self._path} is in use by another trainer: stop that one first") from None
            if "full" in text:
                raise StoreError(f"{self._path}: the disk is full: free space there, or use another disk") from None
            raise StoreError(f"{self._path}: {text}: check the disk") from None
        except (sqlite3.Error, ValueError, KeyError) as error:
            raise StoreError(f"{self._path} is damaged ({error}): move it away; put its work in again") from None


def _each(numbers: Iterable[int]) -> Iterator[tuple[int]]:
    return ((number,) for number in numbers)
