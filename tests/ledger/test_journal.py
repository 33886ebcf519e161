"""The journal holds all changes up to the last batch that was written, wherever it was cut off."""

from __future__ import annotations

import asyncio
import random
import resource
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from p2psync.bench.rollouts.replay import Replay
from p2psync.bench.rollouts.world import digest_of
from p2psync.errors import StoreError
from p2psync.trainer.ledger.core import Ledger, LedgerConfig
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.journal_writer import JournalWriter
from p2psync.trainer.ledger.records import ItemsPut, LedgerChange, SavedLedger

KINDS = {
    "VersionAdmitted",
    "ItemsPut",
    "ItemsClaimed",
    "ClaimsEnded",
    "ResultAccepted",
    "ResultsTaken",
    "ResultsReturned",
    "StepCommitted",
    "ItemsDropped",
}


def history(seed: int, turns: int = 120) -> list[LedgerChange]:
    """All changes of a ledger that three nodes and a trainer use at random."""
    rng = random.Random(seed)
    changes: list[LedgerChange] = []
    ledger = Ledger(LedgerConfig(claim_ttl=5, max_hold=20), record=changes.append)
    leases: list[tuple[str, str]] = []
    for turn in range(turns):
        now = float(turn)
        match rng.randrange(8):
            case 0:
                version = (ledger.head or 0) + 1
                ledger.admit(version, digest_of(version), now)
            case 1:
                new = [(f"{turn}/{index}", rng.randbytes(20)) for index in range(rng.randint(1, 5))]
                ledger.put(ledger.head or 0, new)
            case 2 | 3:
                node = rng.choice("xyz")
                items = ledger.lease(node, f"w{turn}", rng.randint(1, 4), now)
                leases += [(f"w{turn}", item.item) for item in items]
            case 4 | 5 if leases:
                lease, item = rng.choice(leases)
                version = (ledger.head or 0) - rng.randrange(3)
                ledger.complete(
                    lease, item, rng.randbytes(rng.choice([0, 50, 40000])), version, digest_of(version), now
                )
            case 6:
                ledger.take(rng.randint(1, 3))
                if rng.random() < 0.3:
                    ledger.hand_back()
            case 7:
                ledger.commit_step()
                if rng.random() < 0.2:
                    ledger.drop_before((ledger.head or 0) - 1)
    return changes


def batches(seed: int, changes: list[LedgerChange]) -> list[list[LedgerChange]]:
    rng = random.Random(seed)
    parts = []
    while changes:
        count = rng.randint(1, 6)
        parts.append(changes[:count])
        changes = changes[count:]
    return parts


def reopened(path: Path) -> SavedLedger:
    journal = Journal(path)
    try:
        return journal.read()
    finally:
        journal.close()


@pytest.mark.parametrize("seed", range(8))
def test_the_journal_reads_back_the_state_after_every_batch(tmp_path: Path, seed: int) -> None:
    path, replay = tmp_path / "ledger.db", Replay()
    changes = history(seed)
    journal = Journal(path)
    for number, batch in enumerate(batches(seed, changes)):
        journal.write(batch)
        for change in batch:
            replay.apply(change)
        if number % 5 == 0:
            journal.close()
            journal = Journal(path)
        assert journal.read() == replay.saved()
    journal.close()


def test_the_histories_hold_every_kind_of_change() -> None:
    assert {type(change).__name__ for seed in range(8) for change in history(seed)} == KINDS


@pytest.mark.parametrize("seed", range(4))
def test_a_ledger_restored_from_any_prefix_equals_the_original(tmp_path: Path, seed: int) -> None:
    """Items that were pooled, claimed, done and taken at the time are so again, once each."""
    changes = history(seed)
    replay = Replay()
    for change in changes:
        replay.apply(change)
        saved = replay.saved()
        again = Ledger(LedgerConfig(claim_ttl=5, max_hold=20), saved=saved, now=0.0)
        claimed = {number for _, _, number in saved.claims}
        assert (again.pooled, again.claimed) == (len(saved.open) - len(claimed), len(claimed))
        assert (again.done, again.taken, again.step) == (len(saved.done), len(saved.taken), saved.step)
        for lease, node, number in saved.claims:
            item = dict(saved.open)[number]
            assert item in again.lease(node, lease, 1, 0.0)
        again.resume()
        assert again.take(10**6) == sorted([*saved.done, *saved.taken], key=lambda done: done.order)


@pytest.mark.parametrize("seed", range(3))
def test_a_log_cut_anywhere_holds_a_prefix_of_whole_batches(tmp_path: Path, seed: int) -> None:
    """The log is cut at any byte, as a power cut leaves it."""
    path, replay = tmp_path / "ledger.db", Replay()
    reopened(path)
    journal = Journal(path)
    states = [replay.saved()]
    lengths = [0]
    log = Path(f"{path}-wal")
    for batch in batches(seed, history(seed, 60)):
        journal.write(batch)
        for change in batch:
            replay.apply(change)
        states.append(replay.saved())
        lengths.append(log.stat().st_size)
    whole, base = log.read_bytes(), path.read_bytes()
    journal.close()
    assert lengths == sorted(lengths), "the log was not restarted meanwhile"
    rng = random.Random(seed)
    cuts = sorted({*lengths, *(length - 1 for length in lengths[2:]), *(rng.randrange(len(whole)) for _ in range(40))})
    cut = tmp_path / "cut.db"
    for length in cuts:
        cut.write_bytes(base)
        Path(f"{cut}-wal").write_bytes(whole[:length])
        Path(f"{cut}-shm").unlink(missing_ok=True)
        written = max(index for index, size in enumerate(lengths) if size <= length)
        assert reopened(cut) == states[written]


def test_damage_in_the_log_loses_no_batch_before_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    journal = Journal(path)
    journal.write([ItemsPut(first=0, items=[])])
    journal.write(history(1)[:1])
    before = journal.read()
    size = Path(f"{path}-wal").stat().st_size
    journal.write(history(1)[1:4])
    for name in ("", "-wal"):
        shutil.copy(f"{path}{name}", tmp_path / f"copy{name}")
    journal.close()
    log = tmp_path / "copy-wal"
    data = bytearray(log.read_bytes())
    data[size + 100] ^= 1
    log.write_bytes(data)
    assert reopened(tmp_path / "copy") == before


def test_the_file_stays_small_under_a_long_load(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    journal = Journal(path, remembered=100)
    changes: list[LedgerChange] = []
    ledger = Ledger(LedgerConfig(allot=False, remembered=100, max_items=100), record=changes.append)
    largest = 0
    for step in range(60):
        ledger.admit(step, digest_of(step))
        ledger.put(step, [(f"{step}/{index}", bytes(1000)) for index in range(8)])
        for work in ledger.lease("node", str(step), 8, 0.0):
            ledger.complete(str(step), work.item, bytes(200_000), step, digest_of(step), 0.0)
        ledger.take(8)
        ledger.commit_step()
        journal.write(changes)
        changes.clear()
        largest = max(largest, sum(file.stat().st_size for file in tmp_path.iterdir()))
    saved = journal.read()
    journal.close()
    assert (saved.step, saved.open, saved.done, len(saved.remembered)) == (60, [], [], 100)
    assert largest < 40e6  # of the 96 MB of answers that went through: 60 steps of 8 answers of 200 kB


def test_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "ledger.db")
    with pytest.raises(StoreError, match="in use by another"):
        Journal(tmp_path / "ledger.db")
    journal.close()
    Journal(tmp_path / "ledger.db").close()


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        Journal(tmp_path / "ledger.db")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("PRAGMA user_version=99")
    other.close()
    with pytest.raises(StoreError, match="layout 99"):
        Journal(tmp_path / "other.db")
    with pytest.raises(StoreError):
        Journal(tmp_path / "other.db" / "below" / "ledger.db")


def test_a_full_disk_refuses_a_batch_whole_and_takes_it_later(tmp_path: Path) -> None:
    changes: list[LedgerChange] = []
    ledger = Ledger(LedgerConfig(), record=changes.append)
    journal = Journal(tmp_path / "ledger.db")
    before = journal.read()
    ledger.put(0, [(str(index), bytes(1 << 20)) for index in range(8)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    try:
        with pytest.raises(StoreError):
            journal.write(changes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert journal.read() == before
    journal.write(changes)
    assert len(journal.read().open) == 8
    journal.close()


async def test_settled_waits_for_changes_that_come_during_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "ledger.db")
    write, allowed, written = journal.write, threading.Semaphore(0), []

    def slowly(changes: list[LedgerChange]) -> None:
        assert allowed.acquire(timeout=10)
        write(changes)
        written.extend(changes)

    monkeypatch.setattr(journal, "write", slowly)
    durable = JournalWriter(journal)
    changes = [ItemsPut(first=number, items=[]) for number in range(3)]
    durable.record(changes[0])
    first = asyncio.create_task(durable.settled())
    await asyncio.sleep(0.01)  # time for it to begin
    durable.record(changes[1])
    second = asyncio.create_task(durable.settled())
    allowed.release()
    await first
    assert written[:1] == changes[:1]
    durable.record(changes[2])
    third = asyncio.create_task(durable.settled())
    await asyncio.sleep(0.01)
    assert not second.done() or written == changes[:2]
    for _ in range(2):
        allowed.release()
    await asyncio.gather(second, third)
    assert written == changes
    allowed.release()
    await durable.close()
