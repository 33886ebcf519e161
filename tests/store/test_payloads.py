"""A store keeps open only the payloads of packs in use, however many packs it has."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from store_parts import make_pack

from p2psync.errors import StoreError
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.store.payloads import MAX_OPEN_PAYLOADS

PACKS = 3 * MAX_OPEN_PAYLOADS


def fill(store: Store, count: int = PACKS) -> list[tuple[Pack, bytes]]:
    """Sealed packs of one chunk each, and their chunks."""
    made = []
    for seed in range(count):
        signed, manifest, (chunk,) = make_pack(seed, [100])
        pack = store.add(signed, manifest)
        pack.write(0, chunk)
        pack.seal()
        made.append((pack, chunk))
    return made


def open_below(root: Path) -> int:
    """Number of this process's descriptors of files below `root`."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += link.readlink().is_relative_to(root)
        except FileNotFoundError:
            continue  # it was that of the listing itself
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the kernel does not tell what is open")


@needs_proc
def test_open_payloads_bounds_the_open_files(tmp_path: Path) -> None:
    most = 2 * MAX_OPEN_PAYLOADS + 1  # each and its map, and the store's lock
    with Store(tmp_path) as store:
        for pack, chunk in fill(store):
            assert pack.read(0) == pack.view(0) == chunk
            assert open_below(tmp_path) <= most
    assert open_below(tmp_path) == 0
    with Store(tmp_path) as store:
        assert open_below(tmp_path) <= most, "as many are opened to look at them"
        assert [bytes(pack.view(0) or b"") for pack in store.packs()] == [
            make_pack(i, [100])[2][0] for i in range(PACKS)
        ]
        assert open_below(tmp_path) <= most


def test_pack_reopens_its_closed_payload(tmp_path: Path) -> None:
    signed, manifest, chunks = make_pack(1000, [100, 200])
    with Store(tmp_path) as store:
        pack = store.add(signed, manifest)
        pack.write(0, chunks[0])
        view = pack.view(0)
        fill(store)
        pack.write(1, chunks[1])
        pack.seal()
        assert [pack.read(0), pack.read(1), view] == [*chunks, chunks[0]]


def test_threads_read_the_right_bytes_while_payloads_are_closed(tmp_path: Path) -> None:
    wrong = []
    with Store(tmp_path) as store:
        made = fill(store)
        begin = threading.Barrier(4)

        def read(first: int) -> None:
            begin.wait()
            for place in range(2000):
                pack, chunk = made[(first + 7 * place) % PACKS]
                if pack.read(0) != chunk:
                    wrong.append(pack.path)

        threads = [threading.Thread(target=read, args=(25 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_removed_pack_never_reads_its_successors_file(tmp_path: Path) -> None:
    signed, manifest, (chunk,) = make_pack(1, [100])
    with Store(tmp_path) as store:
        removed = store.add(signed, manifest)
        removed.write(0, chunk)
        view = removed.view(0)
        store.remove(signed.id)
        again = store.add(signed, manifest)
        for use in (removed.read, removed.view):
            with pytest.raises(StoreError, match="removed"):
                use(0)
        assert view == chunk, "what was handed out stays good"
        again.write(0, chunk)
        assert again.read(0) == chunk


@needs_proc
def test_payload_in_use_stays_open_after_eviction(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        (pack, chunk), *_ = fill(store)
        payload = pack._payload()
        for other in store.packs():
            other.read(0)
        assert os.pread(payload.file, 100, 0) == chunk
