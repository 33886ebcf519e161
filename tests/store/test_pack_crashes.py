"""A process killed at any moment leaves a store that the next one opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crash_parts import run_in_child
from store_parts import make_pack

from p2psync.store.packs import Store

SIZES = [5000, 1, 9000]


def _every_kill(tmp_path: Path, work: Callable[[Path], None], check: Callable[[Path], None]) -> int:
    total = run_in_child(lambda event: work(tmp_path / "whole"), None)
    assert total is not None
    for limit in range(total):
        root = tmp_path / str(limit)
        assert run_in_child(lambda event, root=root: work(root), limit) is None  # type: ignore[misc]
        check(root)
    return total


def test_store_killed_while_receiving_keeps_written_chunks(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)

    def work(root: Path) -> None:
        with Store(root) as store:
            pack = store.add(signed, manifest)
            for index in (2, 0, 1):
                pack.write(index, chunks[index])
            pack.seal()

    def check(root: Path) -> None:
        with Store(root) as store:
            before = store.get(signed.id)
            held = [] if before is None else [i for i in range(3) if before.have[i]]
            assert held in ([], [2], [0, 2], [0, 1, 2])
            work_again = store.add(signed, manifest)
            assert [work_again.read(i) for i in held] == [chunks[i] for i in held]
            for index, chunk in enumerate(chunks):
                work_again.write(index, chunk)
            work_again.seal()
            assert [work_again.read(i) for i in range(3)] == chunks
        assert sorted(path.name for path in root.iterdir()) == sorted(["lock", signed.id.hex()])

    assert _every_kill(tmp_path, work, check) > 10


def test_store_killed_while_removing_has_the_pack_whole_or_not_at_all(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1, SIZES)

    def work(root: Path) -> None:
        with Store(root) as store:
            draft = store.draft()
            for chunk in chunks:
                draft.append(chunk)
            draft.seal(signed, manifest)
            store.remove(signed.id)

    def check(root: Path) -> None:
        with Store(root) as store:
            pack = store.get(signed.id)
            assert pack is None or [pack.read(i) for i in range(3)] == chunks

    assert _every_kill(tmp_path, work, check) > 10
