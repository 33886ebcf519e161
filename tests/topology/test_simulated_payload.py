"""Payloads of swarms in virtual time: as many bytes as asked for, in chunks that can be told apart."""

from __future__ import annotations

import pytest

from p2psync.errors import UsageError
from p2psync.protocol.manifest import HASH_BYTES
from p2psync.topology.simulated_payload import make_payload


@pytest.mark.parametrize(("rest", "sizes"), [(0, [64, 64]), (1, [64, 64, 1]), (7, [64, 64, 7]), (63, [64, 64, 63])])
def test_a_payload_has_all_its_bytes_however_small_the_last_chunk_is(rest: int, sizes: list[int]) -> None:
    payload = make_payload(128 + rest, 64)
    assert payload.manifest.sizes == sizes == [len(chunk) for chunk in payload.chunks]
    assert payload.nbytes == 128 + rest


def test_no_two_chunks_have_one_hash() -> None:
    payload = make_payload(4 * 1000 + 3, 4)
    hashes = payload.manifest.hashes
    assert all(payload.manifest.verify_chunk(i, chunk) for i, chunk in enumerate(payload.chunks))
    assert len({hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)}) == 1001


def test_each_byte_of_a_scaled_payload_stands_for_many() -> None:
    payload = make_payload(5 << 20, 2 << 20, scale=1024)
    assert payload.manifest.sizes == [2048, 2048, 1024]
    assert payload.nbytes == 5 << 20
    # Less than one simulated byte is left out.
    assert make_payload((5 << 20) + 1023, 2 << 20, scale=1024).nbytes == 5 << 20


def test_versions_of_a_payload_differ_in_id_and_lead_from_one_to_the_next() -> None:
    one = make_payload(256, 64)
    two = one.as_version(2)
    assert one.id != two.id and one.chunks == two.chunks
    assert two.manifest.base == one.manifest.version
    assert two.manifest.base_digest == one.manifest.digest


@pytest.mark.parametrize(("payload", "chunk", "scale"), [(64, 3, 1), (2, 4, 1), (1 << 20, 2048, 1024)])
def test_chunks_too_small_to_be_told_apart_are_refused(payload: int, chunk: int, scale: int) -> None:
    with pytest.raises(UsageError, match=f"chunks of at least {4 * scale} bytes"):
        make_payload(payload, chunk, scale=scale)


def test_more_chunks_than_a_manifest_may_have_are_refused() -> None:
    with pytest.raises(UsageError, match="choose larger"):
        make_payload(64 << 20, 8)
